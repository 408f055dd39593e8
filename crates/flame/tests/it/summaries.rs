//! Where most of the time was.

use underspan_flame::{Diff, Grouping, Per, Sample, Side, Summary, Tree, telling_function};
use underspan_model::State;

use crate::story::{sample, stack, thread};

/// A wait for a lock in a program that is linked statically, one of which only the kernel's part is known,
/// and a copy.
fn samples() -> [Sample; 3] {
    let worker = thread(4107, "worker_3");
    let lock = stack(&[
        "native main server.c:10",
        "native refresh cache.c:42",
        "native syscall syscall.s:13",
        "kernel do_syscall_64",
        "kernel futex_wait_queue",
        "kernel schedule",
    ]);
    let poll = stack(&[
        "kernel entry_SYSCALL_64_after_hwframe",
        "kernel do_syscall_64",
        "kernel do_epoll_wait",
        "kernel schedule",
    ]);
    let copy = stack(&["native main server.c:11", "native __memmove_avx_unaligned"]);
    [
        sample(&worker, 0, 180, State::LockWait, &lock),
        sample(&worker, 180, 40, State::PollWait, &poll),
        sample(&worker, 220, 20, State::Running, &copy),
    ]
}

#[test]
fn a_wait_is_told_by_who_waits_and_a_run_by_what_runs() {
    let summary = Summary::of(&samples());
    let top: Vec<_> = summary.top.iter().map(|share| share.name()).collect();
    assert_eq!(top, ["refresh (cache.c:42)", "do_epoll_wait_[k]", "__memmove_avx_unaligned"]);
}

#[test]
fn a_difference_tells_the_same_places() {
    let grouping = Grouping { states: true, ..Grouping::default() };
    let (before, after) = (Tree::new(&[], grouping), Tree::new(&samples(), grouping));
    let side = |tree| Side { tree, requests: 1, range_ns: 1 };
    let diff = Diff::new(side(&before), side(&after), Per::Absolute);
    let changed = (0..diff.nodes().len()).filter(|at| diff.nodes()[*at].own_after > 0.0);
    let mut told: Vec<_> = changed
        .map(|at| telling_function(&diff.path(at)).map(|function| function.name.clone()).unwrap())
        .collect();
    told.sort();
    assert_eq!(told, ["__memmove_avx_unaligned", "do_epoll_wait", "refresh"]);
}
