//! Processes and threads that come and go.

use std::collections::BTreeSet;

use underspan_model::{Ledger, State, column};
use underspan_trackers::{LifecycleKind, ProcessConfig};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::machine::taken;
use crate::support::Row;
use crate::watcher::Watcher;
use crate::workload::{Workload, eventually};

impl Watcher {
    /// Waits until this has happened to a thread; when.
    #[track_caller]
    fn happened(&mut self, kind: LifecycleKind, tid: u32) -> u64 {
        eventually(&format!("{kind:?} of {tid}"), || {
            self.drain();
            self.lives.iter().find(|life| life.kind == kind && life.tid == tid).map(|l| l.time)
        })
    }
}

/// Fails unless rows follow one another without a gap; the sum of their ledgers, and their end.
#[track_caller]
fn whole(rows: &[Row]) -> (Ledger, u64) {
    let mut sum = Ledger::default();
    let mut at = rows.first().expect("it has rows").u64("start_time");
    for row in rows {
        assert_eq!(row.u64("start_time"), at, "no gap, no overlap");
        assert_eq!(row.ledger_total(), u128::from(row.u64("duration_ns")));
        at += row.u64("duration_ns");
        for state in State::ALL {
            sum[state] += row.u64(&column(state));
        }
    }
    (sum, at)
}

#[test]
fn a_threads_rows_are_its_whole_life() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let tid = workload.start("brief-lock");
    for _ in 0..3 {
        watcher.read_ledgers();
        std::thread::sleep(std::time::Duration::from_millis(7));
    }
    workload.ask("unlock");
    let started = watcher.happened(LifecycleKind::ThreadStart, tid);
    let born = watcher.happened(LifecycleKind::ThreadExit, tid);
    assert_eq!(started, born, "its ledger begins when the thread does");
    let rows = watcher.rows_of("thread_states", tid);
    let (sum, _) = whole(&rows);
    assert!(rows.len() > 1, "it was read while it lived");
    assert_eq!(rows[0].u64("start_time"), born);
    assert!(sum[State::Sleep] >= 20_000_000, "{:?}", sum.largest_first());
    let awake = sum[State::Running] + sum[State::Runnable];
    assert!(awake >= 5_000_000 && sum[State::Running] > 0, "{:?}", sum.largest_first());
    assert!(!watcher.threads(workload.pid).contains_key(&tid), "its ledger is gone");
}

#[test]
fn a_sleep_over_the_threshold_has_a_row_that_names_no_waker() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let before = taken();
    let tid = workload.start("brief");
    let row = watcher
        .row("waits", |row| row.u64("tid") == u64::from(tid) && row.text("state") == "sleep");
    let late = row.u64("runnable_ns") + taken() - before;
    assert!((20_000_000..60_000_000 + late).contains(&row.u64("duration_ns")), "{row:?}");
    assert!(row.u64("runnable_ns") <= row.u64("duration_ns") - 19_000_000, "{row:?}");
    assert_eq!((row.u64("waker_pid"), row.u64("waker_tid")), (0, 0), "a timer ended it");
    assert!(
        [libc::SYS_nanosleep, libc::SYS_clock_nanosleep].contains(&(row.number("syscall") as i64))
    );
}

#[test]
fn a_child_process_is_watched_from_its_first_moment() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let child = workload.ask("fork");
    watcher.happened(LifecycleKind::ProcessFork, child);
    let fork = watcher.lives.iter().find(|life| life.tid == child).unwrap();
    assert_eq!((fork.pid, fork.parent), (child, workload.pid));
    assert!(watcher.session.is_watched(child));
    eventually("it pauses", || {
        let state = watcher.threads(child).get(&child)?.state;
        (State::from_index(state) == Some(State::Sleep)).then_some(())
    });

    kill(Pid::from_raw(child as i32), Signal::SIGKILL).unwrap();
    assert_eq!(workload.ask("reap"), child);
    watcher.happened(LifecycleKind::ThreadExit, child);
    watcher.happened(LifecycleKind::ProcessExit, child);
    assert!(!watcher.session.is_watched(child));
    assert!(watcher.threads(child).is_empty());
    assert!(watcher.session.is_watched(workload.pid), "its parent still is");
}

#[test]
fn exec_keeps_the_ledger_and_forgets_the_program() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    let config = ProcessConfig { gil: workload.addresses().gil, ..ProcessConfig::default() };
    watcher.session.watch(workload.pid, config).unwrap();
    let state_of =
        |watcher: &Watcher, pid, tid| State::from_index(watcher.threads(pid)[&tid].state).unwrap();
    let waiting = workload.start_and_block("gil-wait");
    assert_eq!(state_of(&watcher, workload.pid, waiting), State::GilWait);
    let before = watcher.threads(workload.pid).remove(&workload.pid).unwrap();

    assert_eq!(workload.ask("exec"), workload.pid);
    watcher.happened(LifecycleKind::ProcessExec, workload.pid);
    watcher.happened(LifecycleKind::ThreadExit, waiting);
    let threads = watcher.threads(workload.pid);
    assert_eq!(threads.keys().collect::<Vec<_>>(), [&workload.pid]);
    let after = &threads[&workload.pid];
    assert_eq!(after.born, before.born);
    assert!(after.ledger.since(&before.ledger).is_some());
    // The same program at the same addresses: but nobody has looked at it yet.
    let waiting = workload.start_and_block("gil-wait");
    assert_eq!(state_of(&watcher, workload.pid, waiting), State::LockWait);
}

#[test]
fn exec_by_another_thread_than_the_first() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let sleeper = workload.start_and_block("sleep");
    let first = watcher.threads(workload.pid).remove(&workload.pid).unwrap();
    watcher.read_ledgers();

    let caller = workload.ask("thread-exec");
    assert_eq!(workload.answer(), workload.pid, "it is started again");
    watcher.happened(LifecycleKind::ProcessExec, workload.pid);
    for tid in [sleeper, caller, workload.pid] {
        watcher.happened(LifecycleKind::ThreadExit, tid);
        whole(&watcher.rows_of("thread_states", tid));
    }
    let threads = watcher.threads(workload.pid);
    assert_eq!(threads.keys().collect::<Vec<_>>(), [&workload.pid]);
    assert!(threads[&workload.pid].born > first.born, "another thread took the first one's tid");
}

#[test]
fn a_process_that_is_no_longer_watched_has_no_ledgers() {
    let watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let before = workload.start("mix");
    assert!(watcher.session.is_watched(workload.pid));
    assert!(watcher.threads(workload.pid).contains_key(&before));

    watcher.session.unwatch(workload.pid).unwrap();
    assert!(!watcher.session.is_watched(workload.pid));
    let after = workload.start_and_block("sleep");
    assert_ne!(before, after);
    assert!(watcher.threads(workload.pid).is_empty());

    watcher.watch(workload.pid);
    let threads = watcher.threads(workload.pid);
    assert_eq!(threads.len(), workload.tids().len());
    watcher.session.unwatch(workload.pid).unwrap();
    watcher.session.unwatch(workload.pid).expect("twice does no harm");
}

#[test]
fn a_process_that_does_not_exist_can_be_watched_and_let_go() {
    let watcher = Watcher::new();
    let nobody = 0x3fff_fff0;
    watcher.watch(nobody);
    assert!(watcher.threads(nobody).is_empty());
    watcher.session.unwatch(nobody).unwrap();
    assert!(!watcher.session.is_watched(nobody));
}

/// So many that a reading in parts of a thousand would, more often than not, have ended early.
#[test]
fn every_ledger_of_thousands_is_read() {
    let watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    for _ in 0..6_000 {
        workload.start("pause");
    }
    let ledgers: BTreeSet<_> = watcher.threads(workload.pid).into_keys().collect();
    assert_eq!(ledgers, workload.tids().into_iter().collect());
    assert_eq!(ledgers.len(), 6_001);
    watcher.assert_nothing_lost();
}
