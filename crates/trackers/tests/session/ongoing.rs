//! Waits that are not over: their stacks, read from outside, against what each thread says of itself; and
//! what becomes of them when they are over.

use std::collections::BTreeMap;

use underspan_cpython::code::CodeReader;
use underspan_cpython::{Inspector, Interpreter};
use underspan_model::StackEnd;
use underspan_trackers::offcpu::OngoingWait;
use underspan_trackers::stack::{PythonFrame, PythonLayout};
use underspan_trackers::{ProcessConfig, ThreadSnapshot};

use crate::off_cpu::kernel_function;
use crate::python_stacks::common::trees::{self, Told};
use crate::python_stacks::common::{Program, Python, interpreters};
use crate::watcher::{Watcher, monotonic};
use crate::workload::eventually;

/// Deeper stacks are cut.
const DEEPEST: usize = 512;

/// What the agent does with a thread that sleeps. `None`: it has moved meanwhile.
fn look(watcher: &mut Watcher, python: &Interpreter, thread: ThreadSnapshot) -> Option<()> {
    let facts = python.frames.as_ref().unwrap();
    let reader = CodeReader::new(python).unwrap();
    let found = facts.read_frames(python.pid, |pthread| pthread == thread.pthread).unwrap();
    let found = found.expect("Python knows the thread");
    let frame = |frame: underspan_cpython::RawFrame| PythonFrame {
        code: frame.code,
        check: reader.check(frame.code).unwrap(),
        lasti: frame.lasti,
        entry: frame.entry,
    };
    let seen = monotonic();
    let now = watcher.session.thread(thread.tid)?;
    let python_end = if found.is_cut { StackEnd::TooDeep } else { StackEnd::Complete };
    let python = found.frames.into_iter().map(frame).collect();
    now.sleeps_on_since(&thread).then(|| {
        watcher.ongoing(&OngoingWait { thread, seen, python, python_end });
    })
}

#[test]
fn a_wait_that_goes_on_tells_where_it_stands() {
    for python in interpreters() {
        every_thread_is_seen(&python);
    }
}

fn every_thread_is_seen(python: &Python) {
    let mut watcher = Watcher::new();
    let mut program = Program::start(python, &trees::program());
    let told = trees::hear(&mut program);
    let told: BTreeMap<u32, Told> = told.into_iter().skip(1).map(|told| (told.tid, told)).collect();
    let interpreter = Inspector::new().inspect(program.pid()).unwrap();
    // They waited before anybody watched: what they do now is all that can be known.
    watcher.watch(program.pid() as u32);
    // Some may be on their way to it.
    let waits = |tid: u32| {
        let (_, since) = watcher.session.thread(tid)?.waits()?;
        (since + 50_000_000 < monotonic()).then_some(())
    };
    for tid in told.keys() {
        eventually("a long wait", || waits(*tid));
    }

    let futex = kernel_function("__x64_sys_futex");
    let tids: Vec<_> = told.keys().copied().collect();
    watcher.session.take_ongoing().unwrap().tell(&tids).unwrap();
    watcher.drain();
    for (tid, told) in &told {
        let thread = watcher.session.thread(*tid).unwrap();
        let (_, since) = thread.waits().expect("it waits");
        assert_eq!(thread.pthread, told.pthread, "{python:?} {}", told.thread);
        look(&mut watcher, &interpreter, thread).expect("it sleeps");
        let rows = watcher.rows_of("off_cpu_ongoing", *tid);
        let [row] = rows.as_slice() else { panic!("{python:?} {}: {rows:?}", told.thread) };
        assert_eq!(row.text("state"), "lock_wait", "{row:?}");
        assert_eq!(row.u64("start_time"), since, "{row:?}");
        assert!(row.u64("duration_ns") >= 50_000_000, "{row:?}");
        assert_ne!(row.u64("lock_addr"), 0, "{row:?}");
        let stack = watcher.stack_of(row).expect("it has a stack");
        assert!(stack.kernel.iter().any(|frame| futex.contains(frame)), "{stack:x?}");
        let found: Vec<_> = stack.python.iter().map(|frame| (frame.code, frame.lasti)).collect();
        let expected: Vec<_> =
            told.frames.iter().map(|frame| (frame.code, frame.lasti)).take(DEEPEST).collect();
        assert_eq!(found, expected, "{python:?} {}", told.thread);
        let end = if told.frames.len() > DEEPEST { StackEnd::TooDeep } else { StackEnd::Complete };
        assert_eq!((stack.ends.kernel, stack.ends.python), (StackEnd::Complete, end));
        // What waits on is no sample.
        assert!(watcher.rows_of("off_cpu", *tid).is_empty());
    }
    watcher.assert_nothing_lost();
}

/// A thread holds a lock for longer than the other's wait is looked at.
const HELD: &str = r"
import threading, time
lock = threading.Lock()
def wait():
    say(threading.get_native_id())
    with lock:
        pass
    say('released')
lock.acquire()
thread = threading.Thread(target=wait)
sys.stdin.readline()
thread.start()
sys.stdin.readline()
lock.release()
sys.stdin.readline()
";

#[test]
fn when_it_is_over_it_is_a_sample_like_any_other() {
    let python = interpreters().pop().unwrap();
    let mut watcher = Watcher::new();
    watcher.session.start_unwinding().expect("unwinding starts");
    let mut program = Program::start(&python, HELD);
    let interpreter = eventually("Python", || Inspector::new().inspect(program.pid()).ok());
    let layout = interpreter.frames.as_ref().map(PythonLayout::from).unwrap();
    let config = ProcessConfig { python: layout, ..ProcessConfig::default() };
    watcher.session.watch(program.pid() as u32, config).unwrap();
    let pid = program.pid() as u32;
    eventually("mappings", || {
        watcher.session.unwind_stats().processes.contains(&pid).then_some(())
    });
    let tid: u32 = program.ask("").parse().unwrap();
    let asleep = |watcher: &Watcher| {
        let thread = watcher.session.thread(tid)?;
        thread.waits().is_some_and(|(_, since)| monotonic() - since > 300_000_000).then_some(thread)
    };
    let thread = eventually("a long wait", || asleep(&watcher));
    let (_, since) = thread.waits().unwrap();
    watcher.session.take_ongoing().unwrap().tell(&[tid]).unwrap();
    watcher.drain();
    look(&mut watcher, &interpreter, thread.clone()).expect("it sleeps");
    // What is read of a thread that has moved is not believed.
    assert_eq!(program.ask(""), "released");
    assert_eq!(look_again(&watcher, &thread), None);

    let ended = watcher
        .row("off_cpu", |row| row.u64("tid") == u64::from(tid) && row.text("state") == "lock_wait");
    assert_eq!(ended.u64("start_time"), since, "the same wait");
    assert_eq!(ended.u64("weight_ns"), ended.u64("duration_ns"));
    let ongoing = watcher.rows_of("off_cpu_ongoing", tid);
    let [row] = ongoing.as_slice() else { panic!("{ongoing:?}") };
    assert_eq!(row.u64("start_time"), since, "the same wait");
    assert!(row.u64("duration_ns") < ended.u64("duration_ns"));
    // What was seen from outside is what the thread itself told when it went on.
    let (before, after) = (watcher.stack_of(row).unwrap(), watcher.stack_of(&ended).unwrap());
    assert_eq!(before, after);
    let complete = [before.ends.kernel, before.ends.native, before.ends.python];
    assert_eq!(complete, [StackEnd::Complete; 3], "{before:x?}");
    watcher.row("thread_states", |row| row.u64("tid") == u64::from(tid));
    // Once: the ledger has the wait, and its samples sum to that.
    let waited = watcher.rows_of("off_cpu", tid);
    let waited = waited.iter().filter(|row| row.text("state") == "lock_wait");
    let sampled: u64 = waited.map(|row| row.u64("weight_ns")).sum();
    let ledger = watcher.rows_of("thread_states", tid);
    let ledger: u64 = ledger.iter().map(|row| row.u64("lock_wait_ns")).sum();
    assert!(sampled.abs_diff(ledger) <= 10_000_000, "{sampled} sampled, {ledger} waited");
    watcher.assert_nothing_lost();
}

fn look_again(watcher: &Watcher, then: &ThreadSnapshot) -> Option<()> {
    watcher.session.thread(then.tid)?.sleeps_on_since(then).then_some(())
}
