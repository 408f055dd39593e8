//! A ledger is the whole of a thread's time, whatever the thread does, and agrees with the kernel's
//! own accounts.

use std::collections::BTreeMap;
use std::time::Duration;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use underspan_model::{Ledger, State};

use crate::machine::taken;
use crate::watcher::{Watcher, maps, monotonic};
use crate::workload::{Workload, eventually};

/// Puts a thread on one CPU.
pub(crate) fn pin(tid: u32, cpu: usize) {
    let mut only = CpuSet::new();
    only.set(cpu).expect("there is such a CPU");
    sched_setaffinity(Pid::from_raw(tid as i32), &only).expect("the thread may be moved");
}

pub(crate) fn cpus() -> Vec<usize> {
    let allowed = nix::sched::sched_getaffinity(Pid::from_raw(0)).expect("an affinity");
    (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)).collect()
}

#[test]
fn every_read_of_busy_and_migrating_threads_sums() {
    const READS: u64 = 1_000;
    let watcher = Watcher::new();
    let mut workload = Workload::new();
    let early = workload.start("mix");
    watcher.watch(workload.pid);
    let tids: Vec<_> = (0..5).map(|_| workload.start("mix")).chain([early]).collect();
    let cpus = cpus();

    let mut last = BTreeMap::<u32, (u64, u64, Ledger)>::new();
    let mut seen = BTreeMap::<u32, u64>::new();
    for read in 0..READS {
        pin(tids[read as usize % tids.len()], cpus[(read as usize / tids.len()) % cpus.len()]);
        let before = monotonic();
        let threads = watcher.threads(workload.pid);
        let after = monotonic();
        for (tid, thread) in threads {
            *seen.entry(tid).or_default() += 1;
            assert_eq!(thread.born + thread.ledger.total(), thread.since);
            assert!(thread.since <= after, "settled in the future");
            if State::from_index(thread.state) == Some(State::Running) {
                // Every thread here blocks or is preempted within a second.
                assert!(before.saturating_sub(thread.since) < 1_000_000_000, "{thread:?}");
            }
            let now = (thread.born, thread.since, thread.ledger);
            if let Some((born, since, ledger)) = last.insert(tid, now) {
                assert_eq!(born, thread.born);
                assert!(since <= thread.since);
                assert!(thread.ledger.since(&ledger).is_some(), "a cell went backwards");
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    for tid in tids {
        let often = seen[&tid];
        assert!(often >= READS * 99 / 100, "thread {tid}: in {often} of {READS} reads");
        let (_, _, ledger) = last[&tid];
        for state in [State::Running, State::Sleep] {
            assert!(ledger[state] > 0, "thread {tid}: {:?}", ledger.largest_first());
        }
        assert_eq!(ledger[State::Other], 0, "thread {tid}: {:?}", ledger.largest_first());
    }
    watcher.assert_nothing_lost();
}

/// The session's own map of ledgers: the one among this program's descriptors that knows the thread. Another agent's
/// may know it too.
fn ledgers(tid: u32) -> MapHandle {
    maps("threads")
        .into_iter()
        .find(|map| {
            map.lookup(&tid.to_ne_bytes(), MapFlags::ANY).is_ok_and(|value| value.is_some())
        })
        .expect("a map has it")
}

#[test]
fn a_ledger_that_is_wrong_is_begun_anew_and_told() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let (tid, bystander) = (workload.start("mix"), workload.start("mix"));
    let first = |watcher: &Watcher| watcher.threads(workload.pid);
    let born = first(&watcher)[&tid].born;
    let other = first(&watcher)[&bystander].born;

    // No program writes here: nothing but `born` need hold still, and the ledger lacks a microsecond.
    let map = ledgers(tid);
    let key = tid.to_ne_bytes();
    let mut value = map.lookup(&key, MapFlags::ANY).unwrap().unwrap();
    let at = value.windows(8).position(|bytes| bytes == born.to_ne_bytes()).expect("it was born");
    value[at..at + 8].copy_from_slice(&(born - 1_000).to_ne_bytes());
    map.update(&key, &value, MapFlags::EXIST).unwrap();
    assert!(!first(&watcher).contains_key(&tid), "its cells do not sum");

    let anew = eventually("a ledger that sums", || first(&watcher).remove(&tid));
    assert!(anew.born > born);
    assert_eq!(first(&watcher)[&bystander].born, other, "another's was right");
    let torn = |watcher: &Watcher| {
        let lost = watcher.session.lost().unwrap();
        lost.iter()
            .filter(|lost| lost.count > 0 && lost.reason == "torn")
            .cloned()
            .collect::<Vec<_>>()
    };
    let told = torn(&watcher);
    assert_eq!(
        told.iter().map(|lost| (lost.tracker, lost.count)).collect::<Vec<_>>(),
        [("ledger", 1)]
    );

    // From then on it has rows again, and is left alone.
    watcher.row("thread_states", |row| row.u64("tid") == u64::from(tid));
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(first(&watcher)[&tid].born, anew.born);
    assert_eq!(torn(&watcher), told);
}

/// The kernel brings a running thread's account up to date at each tick, 100 to 1,000 a second.
const TICK_NS: u64 = 10_000_000;

/// `schedstat`, the ledger, `schedstat`.
struct Bracket {
    /// When the ledger was read: not before, and not after.
    read: [u64; 2],
    before: [u64; 3],
    ledger: Ledger,
    /// Time without a CPU: without the wait that it may be in, and with it. `schedstat` adds a wait
    /// when it is over, or when the thread moves to another CPU's queue in the middle of it.
    waited: [u64; 2],
    after: [u64; 3],
    taken: u64,
}

fn bracket(watcher: &Watcher, workload: &Workload, tid: u32) -> Bracket {
    let before = workload.schedstat(tid);
    let settled = watcher.threads(workload.pid)[&tid].ledger;
    let begin = monotonic();
    let ledger = watcher.ledger(workload.pid, tid);
    let read = [begin, monotonic()];
    let waited = [settled, ledger].map(|ns| ns[State::Runnable] + ns[State::Throttled]);
    Bracket { read, before, ledger, waited, after: workload.schedstat(tid), taken: taken() }
}

#[track_caller]
fn check_between(what: &str, ours: u64, [low, high]: [u64; 2], slack: u64) {
    assert!(
        ours + slack >= low && ours <= high + slack,
        "{what}: {ours} ns, the kernel says {low} to {high} ns, give or take {slack}"
    );
}

/// A hypervisor that takes the CPU away in the middle of a switch makes the kernel's own account
/// wrong by that much: what agrees in one of three plays was counted right.
#[test]
fn running_and_runnable_agree_with_the_scheduler() {
    let agrees = |attempt: &u32| {
        let outcome = std::panic::catch_unwind(agree_with_the_scheduler);
        if outcome.is_err() {
            eprintln!("play {attempt} of 3 did not agree");
        }
        outcome.is_ok()
    };
    assert!((1..=3).any(|attempt| agrees(&attempt)), "no play agreed");
}

fn agree_with_the_scheduler() {
    let watcher = Watcher::new();
    let mut workload = Workload::new();
    // Before they start: half of a wait that had begun would be the kernel's alone.
    watcher.watch(workload.pid);
    // More than there are CPUs, so that they queue.
    let mut tids: Vec<_> = (0..cpus().len() + 1).map(|_| workload.start("spin")).collect();
    tids.extend((0..3).map(|_| workload.start("mix")));
    tids.push(workload.start("sleep"));
    std::thread::sleep(Duration::from_millis(50));

    let first: Vec<_> = tids.iter().map(|tid| bracket(&watcher, &workload, *tid)).collect();
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(150));
        for (tid, first) in tids.iter().zip(&first) {
            let now = bracket(&watcher, &workload, *tid);
            let done = now.ledger.since(&first.ledger).expect("no cell goes backwards");
            let bounds = |field: usize| {
                [
                    now.before[field].saturating_sub(first.after[field]),
                    now.after[field] - first.before[field],
                ]
            };
            let on_cpu = done[State::Running] + done[State::GcRun];
            // The two clocks are read some hundred nanoseconds apart at every switch.
            let taken = now.taken - first.taken;
            let slack = 2 * TICK_NS + 1_000 * bounds(2)[1] + taken;
            check_between("on CPU", on_cpu, bounds(0), slack);
            let least = now.waited[0].saturating_sub(first.waited[1]);
            let most = now.waited[1] - first.waited[0];
            let [low, high] = bounds(1);
            assert!(
                least <= high + slack && low <= most + slack,
                "waiting for a CPU: {least} to {most} ns, the kernel says {low} to {high} ns"
            );
        }
    }
}

#[test]
fn a_thread_moved_between_cpus_loses_nothing() {
    let watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let tid = workload.start("spin");
    let cpus = cpus();
    let first = bracket(&watcher, &workload, tid);
    for round in 0..200 {
        pin(tid, cpus[round % cpus.len()]);
        std::thread::sleep(Duration::from_millis(2));
    }
    let last = bracket(&watcher, &workload, tid);
    let elapsed = [last.read[0] - first.read[1], last.read[1] - first.read[0]];
    let done = last.ledger.since(&first.ledger).expect("no cell goes backwards");
    let least = last.before[0].saturating_sub(first.after[0]);
    let most = last.after[0] - first.before[0] + (last.taken - first.taken);
    check_between("on CPU", done[State::Running], [least, most], TICK_NS + 1_000_000);
    check_between("altogether", done.total(), elapsed, 0);
}
