//! Locks: the interpreter's, and every other.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use underspan_model::{Frame, FrameKind, LostEvents, State, Wait};

use crate::case::{Case, Suspect, clipped, doing_words, gil_row, proven, wait_row};
use crate::finding::{Finding, INTERFERENCE, Kind, Relation};
use crate::interval::{Cover, Interval};
use crate::words;

/// CPython asks the holder to let go every 5 ms. A wait this long with one holder means code that
/// cannot be asked: an extension that computes without releasing the GIL.
const UNINTERRUPTED_NS: u64 = 100_000_000;

/// Waits for the GIL while nobody collected.
pub(super) fn gil(case: &Case<'_>) -> Option<Finding> {
    let ns = case.window.ledger[State::GilWait];
    if !case.worth(ns, INTERFERENCE) {
        return None;
    }
    let tid = case.request.tid;
    let own = case.gil_waits.iter().filter(|w| w.tid == tid);
    let own = own.map(|w| (*w, Interval::new(w.start_time, w.duration_ns)));
    let own = clipped(own, case.window.handler);
    let waits = case.waits_of(tid, case.window.handler, |state| state == State::GilWait);

    let mut holders: BTreeMap<u32, Suspect> = BTreeMap::new();
    for (wait, part) in own.iter().filter(|(w, _)| w.holder_tid != 0 && w.holder_tid != tid) {
        // What a collection took of the wait is in another cell and another finding.
        let held = wait.holder_ns.min(part.len()).saturating_sub(wait.gc_ns);
        holders.entry(wait.holder_tid).or_default().add(&wait.holder_thread, held);
    }
    if own.is_empty() {
        for (wait, part) in waits.iter().filter(|(w, _)| w.holder_tid != 0 && w.holder_tid != tid) {
            holders.entry(wait.holder_tid).or_default().add(&wait.holder_thread, part.len());
        }
    }
    let mut rows: Vec<_> = own.iter().map(|(w, part)| (part.len(), gil_row(w))).collect();
    rows.extend(waits.iter().map(|(w, part)| (part.len(), wait_row(w))));

    let collecting = case.pauses.iter().map(|p| Interval::new(p.start_time, p.duration_ns));
    let at = case.gil_cover(tid, case.window.handler).subtract(&collecting.collect());
    // A name is only as good as the rows: they must show the time to have been a GIL wait.
    let culprit = Some(case.blame(&holders, ns, &at)).flatten().filter(|_| proven(at.total(), ns));
    let longest = own.iter().map(|(w, _)| w.duration_ns.saturating_sub(w.gc_ns)).max();
    let advice = match longest {
        Some(longest) if longest >= UNINTERRUPTED_NS => {
            "The holder did not let go when asked: C code that computes without releasing the GIL. \
             Move that work to another process (a task queue, ProcessPoolExecutor), or use a library \
             that releases the GIL"
        }
        _ => {
            "Move the computing work to another process (a task queue, ProcessPoolExecutor), or run \
             more worker processes with fewer threads each (gunicorn: --workers)"
        }
    };
    let waited = words::duration(ns);
    let draft = case.draft(Kind::GilWait, &[(State::GilWait.name(), ns)]);
    let draft = draft.located(case, &at).rows(rows);
    Some(match culprit {
        Some(culprit) => {
            let text = format!(
                "Waited {waited} for the GIL, held by {}{}",
                named(&culprit),
                doing_words(&culprit)
            );
            draft.relation(Relation::Caused).culprit(Some(culprit)).say(text, advice)
        }
        None => {
            let text = format!("Waited {waited} for the GIL; rows do not show who held it");
            draft.say(text, advice)
        }
    })
}

/// Waits for other locks and conditions.
pub(super) fn lock(case: &Case<'_>) -> Option<Finding> {
    let ns = case.window.ledger[State::LockWait];
    if !case.worth(ns, INTERFERENCE) {
        return None;
    }
    let own =
        case.waits_of(case.request.tid, case.window.handler, |state| state == State::LockWait);
    let at: Cover = own.iter().map(|(_, part)| *part).collect();
    let mut releasers: BTreeMap<u32, Suspect> = BTreeMap::new();
    let mut turns = 0;
    for (wait, part) in &own {
        let Some((tid, name)) = releaser(wait) else { continue };
        // Whoever got the same lock meanwhile held it for a while too: the thread that released it in
        // the end is only to blame since then.
        let taken = acquired_by_others(case, wait, *part);
        turns += taken.len();
        let since = taken.into_iter().max().unwrap_or(part.start);
        releasers.entry(tid).or_default().add(name, Interval::between(since, part.end).len());
    }
    let rows = own.iter().map(|(w, part)| (part.len(), wait_row(w))).collect();
    let draft = case.draft(Kind::LockWait, &[(State::LockWait.name(), ns)]);
    let draft = draft.located(case, &at).rows(rows);
    let waited = words::duration(ns);
    let lock = Lock::of(case);
    let advice = lock.advice();
    let queue = queue_for(case, &own);
    let draft = if turns > 0 && queue >= CONVOY { draft.pattern("convoy") } else { draft };
    let gap =
        |lost: &LostEvents| lost.tracker == "ledger" && lost.count > 0 && !lost.leaves_no_gap();
    let lost = case.evidence.lost.iter().any(gap);
    let culprit = case.blame(&releasers, ns, &at).map(|culprit| {
        // A file lock can be released by another process.
        let released = |w: &&(&Wait, Interval)| culprit.tid != 0 && w.0.waker_tid == culprit.tid;
        let pid = own.iter().find(released).map(|(w, _)| w.waker_pid).filter(|&pid| pid != 0);
        crate::Culprit { pid: pid.unwrap_or(culprit.pid), ..culprit }
    });
    Some(match culprit {
        // A lost row could have been another thread's turn.
        Some(culprit) if lost => {
            let text = format!(
                "Waited {waited} for {} that {} released{}; events were lost meanwhile, so others may \
                 have held it too",
                lock.words(),
                named(&culprit),
                doing_words(&culprit),
            );
            draft.relation(Relation::Coincided).culprit(Some(culprit)).say(text, advice)
        }
        Some(culprit) => {
            let by = format!("{}{}", named(&culprit), doing_words(&culprit));
            let text = match lock {
                Lock::Exclusive => format!("Waited {waited} for a lock held by {by}"),
                _ => format!("Waited {waited} for {} that {by} released", lock.words()),
            };
            draft.relation(Relation::Caused).culprit(Some(culprit)).say(text, advice)
        }
        None if turns > 0 => {
            let text = format!(
                "Waited {waited} for {} that other threads were given first ({}): {} want it",
                lock.words(),
                words::count(turns, "turn"),
                words::count(queue + 1, "thread"),
            );
            draft.say(text, advice)
        }
        None if case.request.end == "open" => draft.say(
            format!("Has waited {waited} for {}; nobody has released it yet", lock.words()),
            advice,
        ),
        None => draft
            .say(format!("Waited {waited} for a lock; rows do not show who released it"), advice),
    })
}

/// This many threads beside the request's in the queue for one lock make a convoy.
const CONVOY: usize = 2;

/// What kind of lock it was, by the code that waited for it.
#[derive(Clone, Copy, PartialEq)]
enum Lock {
    /// Whoever has it keeps others out: the thread that releases it held it.
    Exclusive,
    /// Whoever signals it held nothing: a condition, an event, a queue, a future.
    Condition,
    /// No stack was taken, or it does not tell.
    Unknown,
}

impl Lock {
    /// By the stacks of the request's own thread while it waited.
    fn of(case: &Case<'_>) -> Lock {
        let (mut conditions, mut exclusive) = (0u64, 0u64);
        let own = case.samples.iter().filter(|s| s.tid == case.request.tid);
        for sample in own.filter(|s| s.state == State::LockWait) {
            let wait = Interval::new(sample.start_time, sample.duration_ns);
            let ns = wait.overlap(case.window.handler).len();
            let innermost = sample.stack.frames.iter().rev();
            let python = innermost.filter(|frame| frame.kind == FrameKind::Python);
            let python: Vec<_> = python.take(3).collect();
            if python.iter().any(|frame| is_signalled(frame)) {
                conditions += ns;
            } else if !python.is_empty() {
                exclusive += ns;
            }
        }
        match conditions.cmp(&exclusive) {
            Ordering::Greater => Lock::Condition,
            Ordering::Less => Lock::Exclusive,
            Ordering::Equal => Lock::Unknown,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Lock::Exclusive => "a lock",
            Lock::Condition => "a condition",
            Lock::Unknown => "a lock or condition",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Lock::Exclusive => {
                "Hold that lock for less: no I/O and no computing while it is held, or split it by \
                 what it protects"
            }
            Lock::Condition => {
                "It waits for another thread's result or for a pool: enlarge the pool (database \
                 connections, threads), or let the request not wait for it"
            }
            Lock::Unknown => {
                "Hold that lock for less: no I/O and no computing while it is held, or split it by \
                 what it protects. If it is a pool's condition, enlarge the pool (database \
                 connections, threads)"
            }
        }
    }
}

/// Python's ways to wait for a signal. Each sleeps on a lock that the signalling thread releases, and
/// never held to keep others out.
fn is_signalled(frame: &Frame) -> bool {
    const BY_FILE: [(&str, &[&str]); 4] = [
        ("/threading.py", &["wait", "wait_for", "join", "_wait_for_tstate_lock", "acquire"]),
        ("/queue.py", &["get", "put", "join"]),
        ("/concurrent/futures/_base.py", &["result", "exception", "wait", "as_completed"]),
        ("/multiprocessing/pool.py", &["get", "wait"]),
    ];
    let name = frame.function.rsplit('.').next().unwrap_or_default();
    // `RLock.acquire` written in Python keeps others out; `Semaphore.acquire` waits for a signal.
    let lock = frame.function.ends_with("RLock.acquire");
    !lock && BY_FILE.iter().any(|(file, names)| frame.file.ends_with(file) && names.contains(&name))
}

/// How many other threads waited for the same locks at the same time.
fn queue_for(case: &Case<'_>, own: &[(&Wait, Interval)]) -> usize {
    let others = case.waits.iter().filter(|w| w.tid != case.request.tid);
    let others = others.filter(|w| w.state == State::LockWait && w.futex_addr != 0);
    let queued = others.filter(|w| {
        let other = Interval::new(w.start_time, w.duration_ns);
        own.iter()
            .any(|(mine, part)| mine.futex_addr == w.futex_addr && part.overlap(other).len() > 0)
    });
    queued.map(|w| w.tid).collect::<BTreeSet<_>>().len()
}

/// Who released what the thread waited for.
fn releaser(wait: &Wait) -> Option<(u32, &str)> {
    if wait.holder_tid != 0 {
        return Some((wait.holder_tid, &wait.holder_thread));
    }
    (wait.waker_tid != 0).then_some((wait.waker_tid, wait.waker_thread.as_str()))
}

/// When, during a wait, another thread's wait for the same futex ended.
fn acquired_by_others(case: &Case<'_>, wait: &Wait, part: Interval) -> Vec<u64> {
    let same = |other: &&&Wait| {
        other.tid != wait.tid && other.futex_addr == wait.futex_addr && wait.futex_addr != 0
    };
    let locks = case.waits.iter().filter(|other| other.state == State::LockWait);
    locks
        .filter(same)
        .map(|other| other.start_time.saturating_add(other.duration_ns))
        .filter(|end| part.contains(*end))
        .collect()
}

fn named(culprit: &crate::Culprit) -> String {
    match culprit.tid {
        0 => culprit.thread.clone(),
        tid => format!("thread {} ({tid})", culprit.thread),
    }
}
