//! One test per kind of call tree.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use underspan_model::StackEnd;
use underspan_trackers::GcTarget;
use underspan_trackers::stack::RawStack;

use crate::program::{self, Program};
use crate::sampler::Sampler;

/// At least so many of a tree's 100 sleeps must have been sampled.
const SAMPLES: usize = 90;

/// Plays a role, and compares every sample with what the program said.
#[track_caller]
fn compare(what: &str, sampler: &mut Sampler, program: &mut Program) {
    let told = program.play();
    compare_with(&told, what, sampler, program);
}

/// The program's list begins in the function that sleeps; the sample with the system call.
#[track_caller]
fn compare_with(
    (tid, told): &(u32, Vec<u64>),
    what: &str,
    sampler: &mut Sampler,
    program: &mut Program,
) {
    let callers = &told[1..];
    let is_right = |stack: &RawStack| {
        stack.native.ends_with(callers) && stack.ends.native == StackEnd::Complete
    };
    // Some of its sleeps may be over, if we are late. What else it waited for until now is nothing wrong.
    sampler.take();
    let early = sampler.stacks(*tid).0.into_iter().filter(|(stack, _)| is_right(stack));
    let (mut right, mut wrong) = (early.map(|(_, count)| count).sum::<usize>(), 0);
    sampler.forget();
    assert!(told.len() >= 5, "{what}: {told:x?}");
    assert_eq!(program.line(), "done", "{what}");
    sampler.drain();
    for (stack, count) in sampler.waits(*tid) {
        if is_right(&stack) {
            right += count;
        } else {
            wrong += count;
            let seen = &stack.native;
            eprintln!("{what}: {count} times {:?} {seen:x?}, not {told:x?}", stack.ends);
        }
    }
    println!("{what:20} {} frames, {right} samples right, {wrong} wrong", told.len());
    assert!(right >= SAMPLES, "{what}: {right} samples are right");
    // One in 200 may fail; there are 100.
    assert!(wrong <= 1, "{what}: {wrong} of {} samples are wrong", right + wrong);
}

fn c_role(sampler: &mut Sampler, binary: &Path, role: &str, more: &[&Path]) {
    let mut program = Program::start(Command::new(binary).arg(role).args(more));
    sampler.watch(program.pid);
    compare(role, sampler, &mut program);
}

fn trees() -> PathBuf {
    program::c("trees", "trees.c", &[])
}

fn library() -> PathBuf {
    program::c("library.so", "library.c", &["-shared", "-fPIC"])
}

fn giant() -> PathBuf {
    program::c("giant.so", "giant.S", &["-shared"])
}

/// Needs no root: tests/kernels has it build them, for machines without compilers.
#[test]
fn every_program_is_there() {
    let programs = [trees(), library(), giant(), program::rust()];
    for program in programs.into_iter().chain(program::go()) {
        assert!(program.is_file(), "{}", program.display());
    }
}

const ROLES: [&str; 10] = [
    "deep",
    "realigned",
    "large",
    "callback",
    "tail",
    "noreturn",
    "signal",
    "surprise",
    "other-stack",
    "thread",
];

#[test]
fn c_without_frame_pointers() {
    let binary = trees();
    let mut sampler = Sampler::new();
    for role in ROLES {
        c_role(&mut sampler, &binary, role, &[]);
    }
}

/// Its thread does nothing for that: its memory is read from outside.
#[test]
fn a_thread_that_sleeps_on() {
    let binary = trees();
    let mut sampler = Sampler::new();
    for role in ROLES {
        let mut program = Program::start(Command::new(&binary).arg(role).env("ASLEEP", "1"));
        sampler.watch(program.pid);
        let (tid, told) = program.play();
        let stack = sampler.asleep(tid);
        assert_eq!(stack.ends.native, StackEnd::Complete, "{role}: {:x?}", stack.native);
        assert!(stack.native.ends_with(&told[1..]), "{role}: {:x?}, not {told:x?}", stack.native);
        assert!(!stack.kernel.is_empty(), "{role}");
    }
}

/// The parent sleeps in `vfork`, which keeps its return address in a register.
#[test]
fn a_parent_whose_child_has_its_stack() {
    c_role(&mut Sampler::new(), &trees(), "vfork", &[]);
}

/// Each of them returns to the kernel's page first, and one of them has jumped to another.
#[test]
fn functions_whose_return_is_probed() {
    let binary = trees();
    let mut sampler = Sampler::new();
    let mut program = Program::start(Command::new(&binary).arg("probed"));
    sampler.watch(program.pid);
    // Without probes, with which no program knows its own callers.
    let told = program.play();
    let probed = ["deep", "tail_call", "last_of_chain"];
    let offsets = program::offsets(&binary, &probed);
    let target = GcTarget::Symbol(program::probed(&binary), offsets);
    sampler.session.attach_gc(&target).expect("probes can be attached");
    program.tell("go on");
    assert_eq!(program.line(), "again");
    // By then it has said so.
    std::thread::sleep(Duration::from_millis(10));
    compare_with(&told, "probed", &mut sampler, &mut program);
}

#[test]
fn a_library_that_is_loaded_later() {
    loads_later("library");
}

/// For four seconds, addresses in no mapping had the list read again, in vain, at longer and longer intervals.
#[test]
fn a_library_that_is_loaded_after_vain_readings() {
    loads_later("nowhere");
}

fn loads_later(role: &str) {
    let binary = trees();
    let library = library();
    let mut sampler = Sampler::new();
    let mut program = Program::start(Command::new(&binary).arg(role).arg(&library));
    sampler.watch(program.pid);
    let (tid, told) = program.play();
    // The first samples find it missing, and have the list of mappings read again.
    let start = Instant::now();
    loop {
        sampler.take();
        if sampler.stacks(tid).0.keys().any(|stack| stack.native.ends_with(&told[1..])) {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{role}: the library is not found");
        std::thread::sleep(Duration::from_millis(2));
    }
    sampler.forget();
    assert_eq!(program.line(), "done");
    sampler.drain();
    let stacks = sampler.waits(tid);
    let right = stacks.iter().filter(|(stack, _)| stack.native.ends_with(&told[1..]));
    let right: usize = right.map(|(_, count)| count).sum();
    let all: usize = stacks.values().sum();
    println!("{role}: {right} of {all} samples are right");
    assert!(right >= 20 && right == all, "{right} of {all} samples are right");
}

/// Its tables take longest, and are read last, though it was there first.
#[test]
fn a_giant_does_not_delay_others() {
    let giant = giant();
    let binary = trees();
    let mut sampler = Sampler::without_tables();
    let mut first = Program::start(Command::new(&binary).arg("deep").env("LD_PRELOAD", &giant));
    let mut second = Program::start(Command::new(&binary).arg("callback"));
    sampler.begin_to_watch(first.pid);
    sampler.begin_to_watch(second.pid);
    sampler.session.start_unwinding().expect("a thread");
    sampler.wait_for(second.pid);
    compare("beside a giant", &mut sampler, &mut second);
    sampler.wait_for(first.pid);
    compare("with a giant", &mut sampler, &mut first);
    assert_eq!(sampler.session.unwind_stats().processes, [second.pid, first.pid]);
}

#[test]
fn a_child_shares_its_parents_mappings() {
    let binary = trees();
    let mut sampler = Sampler::new();
    c_role(&mut sampler, &binary, "fork", &[]);
    let mappings = sampler.session.unwind_stats().mappings;
    assert!(mappings < 20, "{mappings} mappings: the child's were read again");
}

#[test]
fn a_deleted_executable() {
    let binary = program::output("deleted-trees");
    std::fs::copy(trees(), &binary).expect("a copy");
    let mut sampler = Sampler::new();
    let mut program = Program::start(Command::new(&binary).arg("deep"));
    std::fs::remove_file(&binary).expect("it is there");
    sampler.watch(program.pid);
    compare("deleted", &mut sampler, &mut program);
}

#[test]
fn in_another_mount_namespace() {
    let binary = trees();
    let mut sampler = Sampler::new();
    // There, a file system of its own holds the program, and nobody else sees it.
    let script = "mount -t tmpfs none /mnt && cp \"$0\" /mnt/trees && exec /mnt/trees deep";
    let mut command = Command::new("unshare");
    let mut program = Program::start(command.args(["-m", "sh", "-c", script]).arg(&binary));
    assert!(!Path::new("/mnt/trees").exists());
    sampler.watch(program.pid);
    compare("mount namespace", &mut sampler, &mut program);
}

#[test]
fn rust_without_frame_pointers() {
    let binary = program::rust();
    let mut sampler = Sampler::new();
    let mut program = Program::start(&mut Command::new(&binary));
    sampler.watch(program.pid);
    compare("rust", &mut sampler, &mut program);
}

#[test]
fn go() {
    let Some(binary) = program::go() else {
        println!("left out: there is no Go compiler");
        return;
    };
    let mut sampler = Sampler::new();
    // With fewer its thread waits for one now and then, when it has slept on a busy machine: in Go's scheduler.
    let mut program = Program::start(Command::new(&binary).env("GOMAXPROCS", "16"));
    sampler.watch(program.pid);
    compare("go", &mut sampler, &mut program);
}
