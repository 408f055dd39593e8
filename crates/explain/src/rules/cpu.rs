//! The CPU: used by the handler itself, taken by others, or withheld by a quota.

use std::collections::BTreeMap;

use underspan_model::{State, Wait};

use crate::case::{Case, ROW_NS, Suspect, clipped, proven, ready, wait_row};
use crate::finding::{Culprit, Finding, Kind, Relation};
use crate::interval::{Cover, Interval};
use crate::words;

/// A row names one thread, the last that ran for long on the CPU that was waited for. With several in
/// the queue others ran before it, each for a slice: no more than that is proof against the one named.
const SLICE_NS: u64 = 4_000_000;

/// Which CPUs it may use is not recorded: others may have been idle.
pub(super) const MORE_CPUS: &str = "Give the machine more CPUs or less work: fewer worker processes and \
    threads than the CPUs can run, and batch jobs elsewhere or at a lower priority (nice, \
    cpu.weight). If other CPUs were idle, look at what it is pinned to (taskset, \
    cpuset.cpus of its cgroup)";

pub(super) fn find(case: &Case<'_>) -> Vec<Finding> {
    [running(case), run_queue(case), throttled(case)].into_iter().flatten().collect()
}

fn running(case: &Case<'_>) -> Option<Finding> {
    let ns = worth(case, Kind::Running, State::Running)?;
    let request = case.request;
    let culprit = Culprit {
        host: request.host.clone(),
        pid: request.pid,
        tid: request.tid,
        thread: request.thread.clone(),
        request_id: request.request_id.clone(),
        route: crate::case::route(request),
        place: case.own_place(&Cover::from(case.window.handler), |state| state == State::Running),
        ..Culprit::new(ns)
    };
    let place = culprit.place.as_ref().map(|place| format!(", mostly in {}", place.words()));
    let text = format!(
        "The handler itself computed for {}{}",
        words::duration(ns),
        place.unwrap_or_default()
    );
    let draft = case.draft(Kind::Running, &[(State::Running.name(), ns)]);
    Some(draft.relation(Relation::Caused).culprit(Some(culprit)).say(
        text,
        "Profile this handler; cache its result, or move the computation out of the request",
    ))
}

fn run_queue(case: &Case<'_>) -> Option<Finding> {
    let ns = worth(case, Kind::Runnable, State::Runnable)?;
    let request = case.request;
    let waits = case.waits_of(request.tid, case.window.handler, |state| state == State::Runnable);
    let (mut proof, mut last) = (BTreeMap::new(), BTreeMap::new());
    for (wait, part) in waits.iter().filter(|(w, _)| w.holder_tid != 0 && w.holder_tid != w.tid) {
        let add = |runners: &mut BTreeMap<u32, Suspect>, ns| {
            runners.entry(wait.holder_tid).or_default().add(&wait.holder_thread, ns);
        };
        add(&mut proof, part.len().min(SLICE_NS));
        add(&mut last, part.len());
    }
    let at: Cover = waits.iter().map(|(_, part)| *part).collect();
    let mut rows: Vec<_> = waits.iter().map(|(w, part)| (part.len(), wait_row(w))).collect();
    // Woken from another wait, and then waiting for a CPU: who ran meanwhile is not recorded.
    let woken = case.waits.iter().filter(|w| w.tid == request.tid && w.state != State::Runnable);
    let woken = woken.filter(|w| w.state != State::Throttled).map(|w| (*w, ready(w)));
    let woken = clipped(woken, case.window.handler);
    rows.extend(woken.iter().map(|(w, part)| (part.len(), wait_row(w))));
    // To be woken takes some microseconds, also if a CPU is idle: that is part of every wait.
    let woken = woken.iter().map(|(_, part)| *part).filter(|part| part.len() >= ROW_NS);
    let long = at.union(&woken.collect()).total();
    let draft = case.draft(Kind::Runnable, &[(State::Runnable.name(), ns)]);
    let draft = draft.located(case, &at).rows(rows);
    let waited = words::duration(ns);
    let is_long = long >= ns / 2;
    let mut text = match (proven(long, ns), is_long) {
        (true, _) => format!("Ready to run, and no CPU that it may use was free for {waited}"),
        (_, true) => format!(
            "Ready to run for {waited}, {} of it in waits of a millisecond or longer, in which no CPU that \
             it may use was free",
            words::duration(long)
        ),
        _ => short_words(case, ns, long),
    };
    if let Some((cpus, of_ns)) = cpus_used(case) {
        text += &format!(
            "; in the {} recorded around it its own process used {cpus:.1} CPUs on average",
            words::duration(of_ns)
        );
    }
    let advice = if is_long { MORE_CPUS } else { FEWER_WAKEUPS };
    let runner = case.blame(&proof, ns, &at);
    let relation = if runner.is_some() { Relation::Caused } else { Relation::Coincided };
    Some(match runner.or_else(|| case.blame(&last, ns, &at)) {
        Some(mut culprit) => {
            // A run queue is shared by all processes: the thread is of this one only if it is known here.
            if !in_process(case, culprit.tid) {
                (culprit.pid, culprit.process) = other_process(case, &waits, culprit.tid);
            }
            text += &match relation {
                Relation::Caused => format!("; {} ran instead", culprit.named()),
                _ => format!("; {} ran there last, and others may have before", culprit.named()),
            };
            draft.relation(relation).culprit(Some(culprit)).say(text, advice)
        }
        None => draft.say(text, advice),
    })
}

/// A thread that was ready for long in all, and never for long at a time.
fn short_words(case: &Case<'_>, ns: u64, long: u64) -> String {
    let waited = words::duration(ns);
    let woken = "To be woken takes some microseconds each time, also if a CPU is idle: that CPUs were \
        lacking, this does not show";
    match case.short_waits(ns, long) {
        Some(waits) => format!(
            "Ready to run, and not on a CPU yet, for {waited}, {} of it in waits too short for rows of \
             their own (less than a millisecond each, by default), so in at least {waits} of them. {woken}",
            if long == 0 { String::from("all") } else { words::duration(ns - long) },
        ),
        None => format!(
            "Ready to run, and not on a CPU yet, for {waited}, of which rows show {}. {woken}",
            words::duration(long)
        ),
    }
}

const FEWER_WAKEUPS: &str = "Make fewer and larger round trips (to databases, caches, other threads): each \
    costs a sleep and a wake-up. Only if the CPUs were busy meanwhile, give the machine more of them";

fn throttled(case: &Case<'_>) -> Option<Finding> {
    let ns = worth(case, Kind::Throttled, State::Throttled)?;
    let request = case.request;
    let waits = case.waits_of(request.tid, case.window.handler, |state| state == State::Throttled);
    let at: Cover = waits.iter().map(|(_, part)| *part).collect();
    let rows = waits.iter().map(|(w, part)| (part.len(), wait_row(w))).collect();
    let culprit = quota(case, ns);
    let text = format!("Held back for {} {}", words::duration(ns), quota_words(&culprit));
    let draft = case.draft(Kind::Throttled, &[(State::Throttled.name(), ns)]);
    let draft = draft.relation(Relation::Caused).culprit(Some(culprit));
    Some(draft.located(case, &at).rows(rows).say(text, RAISE_QUOTA))
}

pub(super) const RAISE_QUOTA: &str =
    "Raise the quota (cpu.max; in Kubernetes the CPU limit), or run fewer threads at once";

/// Who is to blame for what a quota took: the cgroup that the request's process is in.
pub(super) fn quota(case: &Case<'_>, ns: u64) -> Culprit {
    let process = case.evidence.process.as_ref();
    Culprit {
        host: case.request.host.clone(),
        pid: case.request.pid,
        cgroup: process.map(|process| process.cgroup.clone()).unwrap_or_default(),
        ..Culprit::new(ns)
    }
}

/// `because its cgroup (/shop), or one above it, had used up its CPU quota`.
pub(super) fn quota_words(culprit: &Culprit) -> String {
    let cgroup = &culprit.cgroup;
    let place = if cgroup.is_empty() { String::new() } else { format!(" ({cgroup})") };
    format!("because its cgroup{place}, or one above it, had used up its CPU quota")
}

fn worth(case: &Case<'_>, kind: Kind, state: State) -> Option<u64> {
    let ns = case.window.ledger[state];
    case.worth(ns, kind.threshold()).then_some(ns)
}

/// The process of a thread that ran instead, as rows name it, and its name, if that is not this one; 0: not known.
fn other_process(case: &Case<'_>, waits: &[(&Wait, Interval)], tid: u32) -> (u32, String) {
    let ran = |(wait, _): &&(&Wait, Interval)| tid != 0 && wait.holder_tid == tid;
    let named = waits.iter().filter(ran).find(|(wait, _)| wait.holder_pid != 0);
    match named {
        Some((wait, _)) if wait.holder_pid == case.request.pid => (wait.holder_pid, String::new()),
        Some((wait, _)) => (wait.holder_pid, wait.holder_process.clone()),
        None => (0, String::new()),
    }
}

fn in_process(case: &Case<'_>, tid: u32) -> bool {
    let here = |host: &str, pid: u32| host == case.request.host && pid == case.request.pid;
    case.siblings.iter().any(|s| s.tid == tid)
        || case.evidence.thread_states.iter().any(|t| t.tid == tid && here(&t.host, t.pid))
}

/// How many CPUs the process used on average, by the seconds that overlap the handler, and how long these
/// were. A short handler's own time may have been quite another.
fn cpus_used(case: &Case<'_>) -> Option<(f64, u64)> {
    let mut used = 0u128;
    let mut during = Vec::new();
    for row in &case.evidence.thread_states {
        let interval = Interval::new(row.start_time, row.duration_ns);
        let here = row.host == case.request.host && row.pid == case.request.pid;
        if here && interval.overlap(case.window.handler).len() > 0 {
            used += u128::from(row.ledger[State::Running]) + u128::from(row.ledger[State::GcRun]);
            during.push(interval);
        }
    }
    let wall = during.into_iter().collect::<Cover>().total();
    (wall > 0).then(|| (used as f64 / wall as f64, wall))
}
