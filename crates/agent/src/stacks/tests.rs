use std::process::{Command, Stdio};

use underspan_model::FrameKind;

use super::*;

fn own_stack(tag: u64) -> RawStack {
    let here = own_stack as *const () as u64;
    RawStack { pid: std::process::id(), native: vec![here, here + tag], ..RawStack::default() }
}

fn named_within(stacks: &mut Stacks, count: usize) -> Vec<Named> {
    let until = Instant::now() + Duration::from_secs(20);
    let mut named = Vec::new();
    while named.len() < count && Instant::now() < until {
        named.extend(stacks.named());
        std::thread::sleep(Duration::from_millis(5));
    }
    named
}

#[test]
fn an_empty_stack_has_no_id() {
    let mut stacks = Stacks::new();
    assert_eq!(stacks.id(RawStack { pid: 1, ..RawStack::default() }, 0), 0);
    assert!(stacks.worker.is_none(), "nothing needs the thread");
}

#[test]
fn a_stack_is_named_once_and_keeps_its_id() {
    let mut stacks = Stacks::new();
    let id = stacks.id(own_stack(4), 77);
    assert_eq!(stacks.id(own_stack(4), 78), id);
    assert_ne!(stacks.id(own_stack(6), 79), id);
    let named = named_within(&mut stacks, 2);
    assert_eq!(named.len(), 2);
    assert_eq!((named[0].id, named[0].at), (id, 77));
    let innermost = named[0].stack.frames.last().unwrap();
    assert_eq!(innermost.kind, FrameKind::Native);
    assert!(innermost.function.ends_with("own_stack"), "{innermost:?}");
    assert_eq!(named[0].stack.truncated, "");
    assert!(stacks.finish(Duration::from_secs(5)).is_empty());
    assert_eq!(stacks.take_lost(), 0);
}

#[test]
fn ids_differ_between_processes_programs_and_lives() {
    let mut stacks = Stacks::new();
    let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
    let stack = |pid| RawStack { pid, native: vec![0x1000], ..RawStack::default() };
    let pid = child.id();
    let first = stacks.id(stack(pid), 0);
    assert_ne!(stacks.id(stack(std::process::id()), 0), first);
    stacks.began_program(pid);
    let second = stacks.id(stack(pid), 0);
    assert_ne!(second, first);
    stacks.ended(pid);
    assert_eq!(stacks.id(stack(pid), 0), second, "its last stacks come when it has ended");
    child.kill().unwrap();
    child.wait().unwrap();
    stacks.forked(std::process::id(), pid);
    assert_ne!(stacks.id(stack(pid), 0), second, "its id was used again");
}

#[test]
fn what_is_too_much_is_counted_and_asked_for_again() {
    let mut stacks = Stacks::new();
    let large = |tag: u64| RawStack { native: vec![tag + 1; 400_000], ..own_stack(0) };
    for tag in 0..8 {
        assert_ne!(stacks.id(large(tag), 0), 0);
    }
    let lost = stacks.take_lost();
    assert!(lost > 0);
    let left = named_within(&mut stacks, 8 - lost as usize).len() as u64;
    assert_eq!(left + lost, 8);
    let again =
        (0..8).filter(|tag| stacks.known.is_due(stacks_id(&mut stacks.processes, large(*tag))));
    assert_eq!(again.count() as u64, lost);
}

/// The id alone.
fn stacks_id(processes: &mut HashMap<u32, Process>, stack: RawStack) -> u64 {
    Ids::default().of(processes[&stack.pid].incarnation, &stack)
}

#[test]
fn how_walks_ended_is_counted() {
    let mut stacks = Stacks::new();
    let ends =
        Ends { kernel: StackEnd::Complete, native: StackEnd::NoTable, python: StackEnd::Absent };
    for _ in 0..3 {
        stacks.id(RawStack { ends, ..own_stack(4) }, 0);
    }
    let counts = stacks.take_ends();
    let expected = [(("kernel", StackEnd::Complete), 3), (("native", StackEnd::NoTable), 3)];
    assert_eq!(counts, EndCounts::from(expected));
    assert!(stacks.take_ends().is_empty());
}
