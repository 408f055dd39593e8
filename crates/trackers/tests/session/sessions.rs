//! Sessions beside one another, and what is left when they go.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd as _;

use libbpf_rs::query::{LinkInfoIter, ProgInfoIter};
use underspan_model::State;
use underspan_trackers::{Attach, ProcessConfig, Session};

use crate::watcher::{Watcher, open};
use crate::workload::{Workload, eventually};

/// The kernel's numbers of a session's programs.
fn programs(session: &Session) -> BTreeSet<u32> {
    let mut ids = BTreeSet::new();
    session.each_program(|name, fd| {
        let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
        let info = std::fs::read_to_string(path).unwrap();
        let id = info.lines().find_map(|line| line.strip_prefix("prog_id:"));
        let id = id.unwrap_or_else(|| panic!("{name} has no number: {info}"));
        ids.insert(id.trim().parse().unwrap());
    });
    ids
}

#[test]
fn nothing_is_left_in_the_kernel() {
    let watcher = Watcher::new();
    let ours = programs(&watcher.session);
    assert!(ours.len() > 10, "{ours:?}");
    let links = |ours: &BTreeSet<u32>| {
        LinkInfoIter::default().filter(|link| ours.contains(&link.prog_id)).count()
    };
    let loaded = |ours: &BTreeSet<u32>| {
        ProgInfoIter::default().filter(|program| ours.contains(&program.id)).count()
    };
    assert_eq!(loaded(&ours), ours.len());
    assert!(links(&ours) >= watcher.session.attached());
    drop(watcher);
    eventually("programs and links go", || (links(&ours) + loaded(&ours) == 0).then_some(()));
}

#[test]
fn every_required_hook_is_taken_and_the_best_of_each() {
    let watcher = Watcher::new();
    for hook in watcher.session.hooks() {
        assert!(hook.outcome.is_some() || !hook.required, "{hook:?}");
        for (better, why) in &hook.failed {
            assert!(!why.is_empty(), "{better} was not taken, and nobody says why");
        }
        if let Some(Attach::Tracepoint(_)) = hook.outcome {
            assert!(!hook.failed.is_empty(), "{hook:?}: a plain tracepoint is never the best");
        }
    }
}

/// Instructions that the verifier looks at before it gives up.
const VERIFIER_LIMIT: u32 = 1_000_000;

/// Kernels and compilers differ: there must be room for one that needs more.
#[test]
fn no_program_is_near_the_verifiers_limit() {
    let watcher = Watcher::new();
    let ours = programs(&watcher.session);
    let mut all: Vec<_> = ProgInfoIter::default()
        .filter(|program| ours.contains(&program.id))
        .map(|program| (program.verified_insns, program.name))
        .collect();
    all.sort();
    for (instructions, name) in all.iter().rev().take(5) {
        println!("{}: {instructions} instructions verified", name.display());
    }
    let (most, name) = all.pop().expect("programs");
    assert!((1..VERIFIER_LIMIT / 2).contains(&most), "{}: {most}", name.display());
}

#[test]
fn two_sessions_do_not_disturb_one_another() {
    let one = Watcher::new();
    let two = open();
    let (mut first, mut second) = (Workload::new(), Workload::new());
    let gil = first.addresses().gil;
    one.session.watch(first.pid, ProcessConfig { gil, ..ProcessConfig::default() }).unwrap();
    two.watch(first.pid, ProcessConfig::default()).unwrap();
    two.watch(second.pid, ProcessConfig::default()).unwrap();
    assert!(!one.session.is_watched(second.pid));

    let waiter = first.start_and_block("gil-wait");
    second.start_and_block("sleep");
    let state_in = |session: &Session| {
        let threads = session.threads().unwrap();
        let thread = threads.into_iter().find(|thread| thread.tid == waiter).unwrap();
        State::from_index(thread.state).unwrap()
    };
    assert_eq!(state_in(&one.session), State::GilWait);
    assert_eq!(state_in(&two), State::LockWait, "it was not told of a GIL");
    assert!(one.threads(second.pid).is_empty());

    drop(two);
    let mixer = first.start("mix");
    eventually("the first goes on", || {
        let ledger = one.threads(first.pid).get(&mixer)?.ledger;
        (ledger[State::Sleep] > 1_000_000).then_some(())
    });
    one.assert_nothing_lost();
}
