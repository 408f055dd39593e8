//! Locks: the interpreter's, and every other.

use std::collections::{BTreeMap, BTreeSet};

use underspan_model::{FrameKind, GilWait, State, Wait, idle};

use crate::case::{
    Case, Suspect, blocked, clipped, doing_words, gil_row, proven, ready, route, wait_row,
    without_work_words,
};
use crate::finding::{Finding, INTERFERENCE, Kind, Relation};
use crate::interval::{Cover, Interval};
use crate::losses::gaps;
use crate::rules::cpu::MORE_CPUS;
use crate::rules::lock_kind::Lock;
use crate::words;

/// CPython asks the holder to let go every 5 ms. One that kept it for so long in one wait could not be
/// asked. With many threads a wait as long is just their turns, one after another.
const UNINTERRUPTED_NS: u64 = 100_000_000;

/// A holder that had no CPU for this share of a wait is a victim too.
const STARVED: f64 = 0.2;

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

    let (mut holders, mut starved) = (BTreeMap::<u32, Suspect>::new(), Cover::default());
    let ended =
        own.iter().filter(|(w, _)| !case.outlasts(Interval::new(w.start_time, w.duration_ns)));
    for (wait, part) in ended.filter(|(w, _)| w.holder_tid != 0 && w.holder_tid != tid) {
        let without_cpu = without_cpu(case, wait.holder_tid, *part);
        let held = held(wait, *part).min(part.len() - without_cpu.total());
        holders.entry(wait.holder_tid).or_default().add(&wait.holder_thread, held);
        starved = starved.union(&without_cpu);
    }
    let mut rows: Vec<_> = own.iter().map(|(w, part)| (part.len(), gil_row(w))).collect();
    rows.extend(waits.iter().map(|(w, part)| (part.len(), wait_row(w))));

    let collecting = case.pauses.iter().map(|p| Interval::new(p.start_time, p.duration_ns));
    let at = case.gil_cover(tid, case.window.handler).subtract(&collecting.collect());
    // A name is only as good as the rows: they must show the time to have been a GIL wait.
    let culprit = Some(case.blame(&holders, ns, &at)).flatten().filter(|_| proven(at.total(), ns));
    // What of a wait was waiting for a CPU, its row does not tell: as much of it as the ledger has.
    let runnable = case.window.ledger[State::Runnable] + case.window.ledger[State::Throttled];
    let kept = own.iter().any(|(wait, part)| {
        let held = held(wait, *part);
        held.saturating_sub(runnable) >= UNINTERRUPTED_NS && proven(held, wait.duration_ns)
    });
    let processes = case.server().processes();
    let advice = if kept {
        String::from(
            "The holder did not let go when asked: it ran C code that computes without releasing the GIL, or \
         was kept from running itself. Move that work to another process (a task queue, \
         ProcessPoolExecutor), or use a library that releases the GIL",
        )
    } else {
        format!(
            "Move the computing work to another process (a task queue, ProcessPoolExecutor), or run more \
             worker processes with fewer threads each{processes}"
        )
    };
    let waited = words::duration(ns);
    let draft = case.draft(Kind::GilWait, &[(State::GilWait.name(), ns)]);
    let draft = draft.located(case, &at).rows(rows);
    let starved = starved.intersect(&at).total();
    Some(match culprit {
        None if starved > 0 && words::fraction(starved, ns) >= STARVED => {
            let text = format!(
                "Waited {waited} for the GIL; who held it waited for a CPU itself for {} of that",
                words::duration(starved)
            );
            draft.say(text, MORE_CPUS)
        }
        Some(culprit) => {
            let text = format!(
                "Waited {waited} for the GIL, held by {}{}",
                culprit.named(),
                doing_words(&culprit)
            );
            draft.relation(Relation::Caused).culprit(Some(culprit)).say(text, advice)
        }
        None if own
            .iter()
            .any(|(w, _)| case.outlasts(Interval::new(w.start_time, w.duration_ns))) =>
        {
            let text = format!(
                "Its thread waited {waited} for the GIL, and still did {}",
                case.answered_words()
            );
            draft.say(text, elsewhere(case))
        }
        None => {
            let text = format!("Waited {waited} for the GIL; nothing recorded shows who held it");
            draft.say(text, advice)
        }
    })
}

/// When a thread was ready to run, and did not.
pub(super) fn without_cpu(case: &Case<'_>, tid: u32, part: Interval) -> Cover {
    let waits = case.waits.iter().filter(|wait| wait.tid == tid);
    waits.map(|wait| ready(wait).overlap(part)).collect()
}

/// How long the holder had the GIL within a part of a wait, at the least: what it had may all lie in the
/// rest. What a collection took of the wait is in another cell and another finding.
pub(super) fn held(wait: &GilWait, part: Interval) -> u64 {
    let rest = wait.duration_ns.saturating_sub(part.len());
    wait.holder_ns.saturating_sub(rest).min(part.len()).saturating_sub(wait.gc_ns)
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
    if let Some(reason) = case.without_work(&Cover::from(case.window.handler), State::LockWait) {
        let rows = own.iter().map(|(w, part)| (part.len(), wait_row(w))).collect();
        let draft = case.draft(Kind::LockWait, &[(State::LockWait.name(), ns)]);
        let (text, advice) = without_work_words(&words::duration(ns), reason);
        return Some(draft.located(case, &at).rows(rows).say(text, advice));
    }
    let lock = Lock::of(case, case.request.tid, case.window.handler);
    let mut releasers: BTreeMap<u32, Suspect> = BTreeMap::new();
    let (mut turns, mut waited_itself) = (0, BTreeMap::<u32, Suspect>::new());
    let mut routes = BTreeSet::new();
    let (ended, unended): (Vec<_>, Vec<_>) =
        own.iter().partition(|(wait, _)| !case.outlasts(blocked(wait)));
    let unended = unended.iter().fold(0u64, |sum, (_, part)| sum.saturating_add(part.len()));
    for (wait, part) in ended.iter().copied() {
        let Some((tid, name)) = releaser(case, wait) else { continue };
        // Whoever got the same lock meanwhile held it for a while too: the thread that released it in
        // the end is only to blame since then.
        let taken = acquired_by_others(case, wait, part);
        turns += taken.len();
        let since = taken.last().map_or(part.start, |other| blocked(other).end);
        if lock == Lock::Exclusive {
            in_turn(case, &taken, part, &mut releasers, &mut routes);
        }
        let since = Cover::from(Interval::between(since, part.end));
        routes.extend(case.serving(tid, &since).map(route));
        let passive = match lock {
            // Whoever keeps others out does so while it waits, too.
            Lock::Exclusive => 0,
            _ => since.intersect(&passive(case, tid, &since)).total(),
        };
        releasers.entry(tid).or_default().add(name, since.total() - passive);
        waited_itself.entry(tid).or_default().add(name, passive);
    }
    let rows = own.iter().map(|(w, part)| (part.len(), wait_row(w))).collect();
    let draft = case.draft(Kind::LockWait, &[(State::LockWait.name(), ns)]);
    let draft = draft.located(case, &at).rows(rows);
    let waited = words::duration(ns);
    let advice = lock.advice();
    let queue = queue_for(case, &own);
    let draft = if turns > 0 && queue >= CONVOY { draft.pattern("convoy") } else { draft };
    let lost = gaps(case).any(|lost| lost.tracker == "ledger");
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
                culprit.named(),
                doing_words(&culprit),
            );
            draft.relation(Relation::Coincided).culprit(Some(culprit)).say(text, advice)
        }
        Some(culprit) => {
            let mut by = format!("{}{}", culprit.named(), doing_words(&culprit));
            if culprit.tid == 0 {
                by += " in turn";
                if let (Some(route), 1) = (routes.first(), routes.len()) {
                    by += &format!(", serving {route}");
                }
            }
            let text = match lock {
                Lock::Exclusive => format!("Waited {waited} for a lock held by {by}"),
                _ => format!("Waited {waited} for {} that {by} released", lock.words()),
            };
            draft.relation(Relation::Caused).culprit(Some(culprit)).say(text, advice)
        }
        None if unended > 0 && !proven(ns.saturating_sub(unended), ns) => draft.say(
            format!(
                "Its thread waited {waited} for {}, and still did {}: who ended that wait later did not \
                 do it for this request",
                lock.words(),
                case.answered_words()
            ),
            elsewhere(case),
        ),
        None if let Some(other) = foreign(case, &ended, ns) => {
            let by = format!(
                "thread {} ({}) of another process ({})",
                other.waker_thread, other.waker_tid, other.waker_pid
            );
            let text = format!("Waited {waited} for {}, until {by} woke it", lock.words());
            if !is_file_lock(other) {
                let said = "whether that released it or sent a signal is not recorded";
                return Some(draft.say(format!("{text}; {said}"), advice));
            }
            let culprit = crate::Culprit {
                host: case.request.host.clone(),
                pid: other.waker_pid,
                tid: other.waker_tid,
                thread: other.waker_thread.clone(),
                ..crate::Culprit::new(ns)
            };
            let said = "as who releases a file lock does, or who sends a signal";
            let draft = draft.relation(Relation::Coincided).culprit(Some(culprit));
            draft.say(format!("{text}, {said}"), advice)
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
        None if let Some((tid, other)) = waited_itself.iter().max_by_key(|(_, other)| other.ns)
            && other.ns > 0 =>
        {
            let text = format!(
                "Waited {waited} for {}, which thread {} ({tid}) released after it had waited itself for {}",
                lock.words(),
                other.name,
                words::duration(other.ns),
            );
            draft.say(text, format!("Look at what that thread waited for: the critical path has it. {advice}"))
        }
        None if case.request.end == "open" => draft.say(
            format!("Has waited {waited} for {}; nobody has released it yet", lock.words()),
            advice,
        ),
        // A thread that releases is named in the row; a timer is not.
        None if proven(at.total(), ns) && own.iter().all(|(w, _)| w.waker_tid == 0) => draft.say(
            format!(
                "Waited {waited} for {}, which no thread was seen to release: a time limit may have \
                 ended the wait",
                lock.words()
            ),
            advice,
        ),
        None => draft.say(
            format!("Waited {waited} for {}; nothing recorded shows who released it", lock.words()),
            advice,
        ),
    })
}

/// When a thread that signals in the end does nothing for it: it waits for a lock or a condition itself, or for
/// something to do.
fn passive(case: &Case<'_>, tid: u32, during: &Cover) -> Cover {
    let locks = case.waits.iter().filter(|w| w.tid == tid && w.state == State::LockWait);
    let serves = case.serving(tid, during).is_some();
    let own = case.samples.iter().filter(|s| s.tid == tid);
    let idle = own.filter(|s| idle(&s.stack.frames, s.state, serves).is_some());
    let idle = idle.map(|s| Interval::new(s.start_time, s.duration_ns));
    locks.map(|wait| blocked(wait)).chain(idle).collect()
}

/// This many threads beside the request's in the queue for one lock make a convoy.
const CONVOY: usize = 2;

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

/// What helps where another thread answered: this one's wait is not what the request waited for.
fn elsewhere(case: &Case<'_>) -> &'static str {
    match case.request.sent_tid {
        0 => {
            "Look at what the handler waited for there: nobody ended that wait while the request went on"
        }
        _ => {
            "Look at what the thread that answered did meanwhile (`underspan flame`): it had the request \
             then, and the time of this one is not what the request took"
        }
    }
}

/// Who released what the thread waited for.
fn releaser<'a>(case: &Case<'_>, wait: &'a Wait) -> Option<(u32, &'a str)> {
    if wait.holder_tid != 0 {
        return Some((wait.holder_tid, &wait.holder_thread));
    }
    if wait.waker_tid == 0 || is_foreign(wait) && !was_released(case, wait) {
        return None;
    }
    Some((wait.waker_tid, &wait.waker_thread))
}

/// Whether another process ended a wait. It may have sent a signal, which nothing in the row tells from the
/// release of a lock that both share.
pub(super) fn is_foreign(wait: &Wait) -> bool {
    wait.waker_pid != 0 && wait.waker_pid != wait.pid
}

/// The longest of the waits that another process ended, if what ended the others proves nothing.
fn foreign<'a>(case: &Case<'_>, own: &[(&'a Wait, Interval)], ns: u64) -> Option<&'a Wait> {
    let foreign = own.iter().filter(|(w, _)| is_foreign(w) && !was_released(case, w));
    let (wait, part) = foreign.max_by_key(|(w, part)| (part.len(), w.start_time))?;
    proven(part.len(), ns).then_some(*wait)
}

/// What a thread that releases a lock of several processes calls. None of them sends signals.
const RELEASES: [&str; 8] = [
    "sem_post",
    "pthread_mutex_unlock",
    "pthread_rwlock_unlock",
    "pthread_cond_signal",
    "pthread_cond_broadcast",
    "flock",
    "fcntl",
    "lockf",
];

/// Whether the stack of the thread that ended a wait shows that it released a lock just then.
fn was_released(case: &Case<'_>, wait: &Wait) -> bool {
    let meant = case.samples.iter().filter(|s| {
        let at = Interval::new(s.start_time, s.duration_ns);
        s.tid == wait.tid && s.waker_tid == wait.waker_tid && at.overlap(blocked(wait)).len() > 0
    });
    let innermost = meant.flat_map(|s| s.waker_stack.frames.iter().rev().take(3));
    let mut native = innermost.filter(|frame| frame.kind == FrameKind::Native);
    native.any(|frame| RELEASES.iter().any(|name| frame.function.contains(name)))
}

/// Whether the wait was in flock or fcntl (x86-64's numbers): locks of files are everybody's.
fn is_file_lock(wait: &Wait) -> bool {
    matches!(wait.syscall, 72 | 73)
}

/// A lock that keeps others out was each one's from when it got it until the next one did, and before that the
/// one's who released it to the first. The last of them is another one's business.
fn in_turn(
    case: &Case<'_>,
    taken: &[&Wait],
    part: Interval,
    holders: &mut BTreeMap<u32, Suspect>,
    routes: &mut BTreeSet<String>,
) {
    let mut held = |(tid, name): (u32, &str), from: u64, until: u64| {
        let during = Interval::between(from, until);
        holders.entry(tid).or_default().add(name, during.len());
        routes.extend(case.serving(tid, &Cover::from(during)).map(route));
    };
    if let Some(first) = taken.first()
        && let Some(before) = releaser(case, first)
    {
        held(before, part.start, blocked(first).end);
    }
    for pair in taken.windows(2) {
        let [one, next] = [pair[0], pair[1]];
        // Unless somebody who had not to wait came in between.
        if releaser(case, next).is_some_and(|(tid, _)| tid == one.tid) {
            held((one.tid, &one.thread), blocked(one).end, blocked(next).end);
        }
    }
}

/// Other threads' waits for the same futex that ended during a wait, in the order in which they did.
fn acquired_by_others<'a>(case: &Case<'a>, wait: &Wait, part: Interval) -> Vec<&'a Wait> {
    let same = |other: &&&Wait| {
        other.tid != wait.tid && other.futex_addr == wait.futex_addr && wait.futex_addr != 0
    };
    let locks = case.waits.iter().filter(|other| other.state == State::LockWait);
    let ended = locks.filter(same).filter(|other| part.contains(blocked(other).end));
    let mut ended: Vec<_> = ended.copied().collect();
    ended.sort_by_key(|other| blocked(other).end);
    ended
}
