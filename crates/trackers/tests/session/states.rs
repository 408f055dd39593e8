//! Each way to wait has its state, for threads that begin to wait while they are watched and for
//! those that were waiting before.

use std::time::Duration;

use nix::sys::signal::Signal;
use underspan_model::State;
use underspan_trackers::ProcessConfig;

use crate::watcher::Watcher;
use crate::workload::{Workload, eventually};

/// Role, its state, and its state if it was already waiting when it was first watched.
const ROLES: [(&str, State, State); 21] = [
    ("sleep", State::Sleep, State::Sleep),
    ("pause", State::Sleep, State::Sleep),
    ("select-sleep", State::Sleep, State::Sleep),
    ("poll-sleep", State::Sleep, State::Sleep),
    ("lock", State::LockWait, State::LockWait),
    ("flock", State::LockWait, State::LockWait),
    ("file-lock", State::LockWait, State::LockWait),
    ("gil-wait", State::GilWait, State::GilWait),
    ("gil-mutex", State::GilWait, State::GilWait),
    ("before-gil", State::LockWait, State::LockWait),
    ("after-gil", State::LockWait, State::LockWait),
    ("net-read", State::NetRead, State::NetRead),
    ("net-write", State::NetWrite, State::NetWrite),
    ("unix-read", State::NetRead, State::NetRead),
    // What poll() was asked can be read only while its thread runs.
    ("poll-one", State::NetRead, State::PollWait),
    ("poll-two", State::PollWait, State::PollWait),
    ("epoll", State::PollWait, State::PollWait),
    ("accept", State::PollWait, State::PollWait),
    ("pipe", State::PipeIpc, State::PipeIpc),
    ("eventfd", State::PipeIpc, State::PipeIpc),
    ("child", State::ChildWait, State::ChildWait),
];

/// Fails unless every thread is in its state, with no time in any other blocked state.
fn check(watcher: &Watcher, pid: u32, expected: &[(&str, u32, State)], only: bool) {
    let threads = watcher.threads(pid);
    let mut wrong = Vec::new();
    for (role, tid, state) in expected {
        let Some(thread) = threads.get(tid) else {
            wrong.push(format!("{role}: no ledger"));
            continue;
        };
        let found = State::from_index(thread.state);
        if found != Some(*state) {
            wrong.push(format!("{role}: {found:?}, not {state:?}"));
        }
        let ledger = watcher.ledger(pid, *tid);
        let elsewhere: u64 = ledger
            .iter()
            .filter(|(other, _)| other.is_blocked() && other != state)
            .map(|(_, ns)| ns)
            .sum();
        if only && elsewhere > 0 {
            wrong.push(format!("{role}: {:?}", ledger.largest_first()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn threads_that_begin_to_wait() {
    let watcher = Watcher::new();
    let mut workload = Workload::new();
    let config = ProcessConfig { gil: workload.addresses().gil, ..ProcessConfig::default() };
    watcher.session.watch(workload.pid, config).unwrap();
    let expected: Vec<_> = ROLES
        .into_iter()
        .map(|(role, state, _)| (role, workload.start_and_block(role), state))
        .collect();
    check(&watcher, workload.pid, &expected, false);
    watcher.assert_nothing_lost();
}

#[test]
fn threads_that_were_waiting_before() {
    let watcher = Watcher::new();
    let mut workload = Workload::new();
    let mut expected: Vec<_> = ROLES
        .into_iter()
        .map(|(role, _, state)| (role, workload.start_and_block(role), state))
        .collect();
    // The first thread reads its standard input.
    expected.push(("main", workload.pid, State::PipeIpc));
    assert!(watcher.threads(workload.pid).is_empty());

    let config = ProcessConfig { gil: workload.addresses().gil, ..ProcessConfig::default() };
    watcher.session.watch(workload.pid, config).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    check(&watcher, workload.pid, &expected, true);

    let mut watched: Vec<_> = watcher.threads(workload.pid).into_keys().collect();
    let mut alive = workload.tids();
    watched.sort_unstable();
    alive.sort_unstable();
    assert_eq!(watched, alive);
    for (role, tid, state) in expected {
        let ledger = watcher.ledger(workload.pid, tid);
        assert!(ledger[state] >= 100_000_000, "{role}: {:?}", ledger.largest_first());
    }
}

#[test]
fn a_thread_that_was_running_before() {
    let watcher = Watcher::new();
    let mut workload = Workload::new();
    let tid = workload.start("spin");
    watcher.watch(workload.pid);
    let ledger = eventually("it has run", || {
        let ledger = watcher.ledger(workload.pid, tid);
        (ledger[State::Running] > 30_000_000).then_some(ledger)
    });
    let others = ledger.total() - ledger[State::Running] - ledger[State::Runnable];
    assert_eq!(others, 0, "{:?}", ledger.largest_first());
}

#[test]
fn a_stopped_thread_waits_for_nothing_of_its_own() {
    let watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let tid = workload.start("spin");
    let is = |wanted: &[State]| {
        let state = watcher.threads(workload.pid).get(&tid).map(|thread| thread.state)?;
        wanted.contains(&State::from_index(state)?).then_some(())
    };
    eventually("it spins", || is(&[State::Running]));
    workload.signal(Signal::SIGSTOP);
    eventually("it is stopped", || is(&[State::Other]));
    workload.signal(Signal::SIGCONT);
    eventually("it goes on", || is(&[State::Running]));
    let ledger = watcher.ledger(workload.pid, tid);
    assert_eq!(ledger[State::PageFault], 0, "{:?}", ledger.largest_first());
}
