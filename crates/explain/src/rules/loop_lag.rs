//! Event loops: a thread that serves many requests at once.

use underspan_model::{Class, Frame, LoopStall, State};

use crate::case::{Case, Draft, doing_words, proven, request_row, stall_row};
use crate::finding::{Finding, INTERFERENCE, Kind, Relation};
use crate::interval::{Cover, Interval};
use crate::place::place;
use crate::words;

/// The time until the loop came to read the request. Its handler time is shared with other requests,
/// and how it splits cannot be known.
pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let (accept_queue, handoff) = (case.window.accept_queue, case.window.handoff);
    let ns = accept_queue.len() + handoff.len();
    if !case.worth(ns, INTERFERENCE) {
        return None;
    }
    let at: Cover = [accept_queue, handoff].into_iter().collect();
    let of_loop = case.siblings.iter().filter(|s| s.tid == case.request.tid);
    let overlapping: Vec<_> = of_loop
        .map(|s| (at.within(Interval::new(s.start_time, s.duration_ns)), s))
        .filter(|(part, _)| part.total() > 0)
        .map(|(part, s)| (part.total(), request_row(s)))
        .collect();
    if let Some(finding) = stalled(case, &at, ns) {
        return Some(finding);
    }
    let parts = [("accept_queue", accept_queue.len()), ("handoff", handoff.len())];
    let text = format!(
        "The event loop ({}) came to this request {} late, and nothing recorded shows why; {} in flight on it \
         meanwhile",
        case.request.thread,
        words::duration(ns),
        words::count(overlapping.len(), "other request")
    );
    let advice = format!(
        "Something ran too long on the loop, or it had no CPU: move computing and blocking calls to a \
         thread or process{}, or run more processes",
        elsewhere(case, " (run_in_executor)")
    );
    let draft = case.draft(Kind::LoopLag, &parts).located(case, &at).rows(overlapping);
    Some(draft.say(text, advice))
}

/// The same for a request that had the loop to itself once it was read: nobody else was in flight. Only what
/// iterations show, as far as collections do not explain it; the rest is for the rules about threads.
pub(super) fn before_its_turn(case: &Case<'_>, explained: &Cover) -> Option<Finding> {
    let (request, window) = (case.request, &case.window);
    let is_accepted_by_loop = request.accept_tid == request.tid || window.accept_queue.len() == 0;
    let at: Cover = [window.accept_queue, window.handoff].into_iter().collect();
    let at = at.subtract(explained);
    let ns = at.total();
    if !is_accepted_by_loop || !case.worth(ns, INTERFERENCE) {
        return None;
    }
    stalled(case, &at, ns)
}

/// Iterations that took long while the request was on the loop. Nothing on it went on meanwhile; but
/// whether this request had anything to go on with, and whose code that was, is not known.
pub(super) fn in_handler(case: &Case<'_>) -> Option<Finding> {
    let (request, handler) = (case.request, case.window.handler);
    let of_loop = case.evidence.stalls.iter();
    let of_loop = of_loop.filter(|s| s.host == request.host && s.tid == request.tid);
    let stalls: Stalls<'_> = of_loop
        .map(|s| (handler.overlap(Interval::new(s.start_time, s.duration_ns)), s))
        .filter(|(part, _)| part.len() > 0)
        .map(|(part, s)| (part.len(), s))
        .collect();
    let parts = stalls.iter().map(|(_, s)| Interval::new(s.start_time, s.duration_ns));
    let at = parts.collect::<Cover>().within(handler);
    let ns = at.total();
    if !case.worth(ns, INTERFERENCE) {
        return None;
    }
    let (_, longest) = *stalls.iter().max_by_key(|(ns, s)| (*ns, s.start_time))?;
    let (state, most) = longest.ledger.iter().max_by_key(|(state, ns)| (*ns, *state))?;
    let place = place(&longest.stack).map(|place| format!(" in {}", place.words()));
    let iterations = match stalls.len() {
        1 => String::from("one of its iterations took"),
        n => format!("{n} iterations took long, the longest"),
    };
    let text = format!(
        "The event loop ({}) stood still for {} while this request was on it: {iterations} {}, {} of it \
         {}{}. Whether that was code of this request or of another one is not known",
        request.thread,
        words::duration(ns),
        words::duration(longest.duration_ns),
        words::percent(most, longest.duration_ns),
        state.label(),
        place.unwrap_or_default(),
    );
    let rows = stalls.iter().map(|(ns, stall)| (*ns, stall_row(stall))).collect();
    let draft = case.draft(Kind::LoopLag, &[("handler", ns)]).located(case, &at).rows(rows);
    Some(draft.say(text, long(case)))
}

/// How a loop of Python's gives work to threads: asyncio's way, unless stacks show a hub of green threads.
fn elsewhere(case: &Case<'_>, asyncio: &'static str) -> &'static str {
    const HUBS: [(&str, &str); 2] = [
        ("gevent", " (gevent.get_hub().threadpool.apply, or monkey-patch what blocks)"),
        ("eventlet", " (eventlet.tpool.execute, or monkey-patch what blocks)"),
    ];
    let request = case.request;
    let own = case.samples.iter().filter(|s| s.pid == request.pid).map(|s| &s.stack);
    let stalls = case.evidence.stalls.iter();
    let stalls = stalls.filter(|s| s.host == request.host && s.pid == request.pid);
    let stacks: Vec<_> = own.chain(stalls.map(|s| &s.stack)).collect();
    let runs = |hub: &str| {
        let of_hub = |frame: &Frame| {
            let path = if frame.file.is_empty() { &frame.module } else { &frame.file };
            path.split('/').any(|part| part == hub)
        };
        stacks.iter().any(|stack| stack.frames.iter().any(of_hub))
    };
    let hub = HUBS.iter().find(|(hub, _)| runs(hub));
    hub.map_or_else(|| case.if_python(asyncio), |(_, words)| words)
}

/// What an iteration did for less than this share of it does not explain it.
const MOSTLY: f64 = 0.5;

/// Iterations with how much of the lag each explains.
type Stalls<'a> = Vec<(u64, &'a LoopStall)>;

fn draft(case: &Case<'_>, at: &Cover, stalls: &Stalls<'_>) -> Draft {
    let rows = stalls.iter().map(|(ns, stall)| (*ns, stall_row(stall))).collect();
    let parts =
        [("accept_queue", case.window.accept_queue.len()), ("handoff", case.window.handoff.len())];
    case.draft(Kind::LoopLag, &parts).located(case, at).rows(rows)
}

/// No single one of these explains the lag, so nothing that one of them did is blamed for all of it.
fn many(case: &Case<'_>, at: &Cover, ns: u64, stalls: &Stalls<'_>) -> Finding {
    let longest = stalls.iter().map(|(_, stall)| stall.duration_ns).max().unwrap_or(0);
    let text = format!(
        "The event loop ({}) came to this request {} late: {} took long, the longest {}",
        case.request.thread,
        words::duration(ns),
        words::count(stalls.len(), "iteration"),
        words::duration(longest),
    );
    draft(case, at, stalls).say(text, long(case))
}

pub(super) fn long(case: &Case<'_>) -> String {
    format!(
        "Something ran too long on the loop: move computing and blocking calls to a thread or \
         process{}, or run more processes. Table loop_stall has each iteration, with its stack",
        elsewhere(case, " (run_in_executor)")
    )
}

/// An iteration of the loop that took too long, if rows show one for enough of the time.
fn stalled(case: &Case<'_>, at: &Cover, ns: u64) -> Option<Finding> {
    let request = case.request;
    let of_loop = case.evidence.stalls.iter();
    let of_loop = of_loop.filter(|s| s.host == request.host && s.tid == request.tid);
    let stalls: Stalls<'_> = of_loop
        .map(|stall| (at.within(Interval::new(stall.start_time, stall.duration_ns)).total(), stall))
        .filter(|(ns, _)| *ns > 0)
        .collect();
    let shown = stalls.iter().fold(0u64, |sum, (ns, _)| sum.saturating_add(*ns));
    if !proven(shown, ns) {
        return None;
    }
    let (longest_ns, longest) = *stalls.iter().max_by_key(|(ns, s)| (*ns, s.start_time))?;
    if !proven(longest_ns, ns) {
        return Some(many(case, at, ns, &stalls));
    }
    let mut states: Vec<_> = longest.ledger.iter().collect();
    states.sort_by_key(|(state, ns)| (std::cmp::Reverse(*ns), *state));
    let (state, most) = *states.first()?;
    let place = place(&longest.stack);
    let during = Cover::from(Interval::new(longest.start_time, longest.duration_ns));
    let (tid, name) = match longest.culprit_tid {
        0 => (request.tid, &longest.thread),
        tid => (tid, &longest.culprit_thread),
    };
    let mut culprit = case.thread(tid, name, longest_ns, &during);
    if tid == request.tid {
        culprit.place.clone_from(&place);
        if request.shared_thread != 0 {
            // It serves many: none of them is to blame for the code that runs.
            culprit.request_id.clear();
            culprit.route.clear();
        }
    }
    // What took less explains no more than a part of the lag, and so does whoever did it.
    let mostly = words::fraction(most, longest.duration_ns) >= MOSTLY;
    let held_up = match mostly && tid != request.tid {
        true => format!("; thread {name} ({tid}) held it up{}", doing_words(&culprit)),
        false => String::new(),
    };
    let at_place = place.as_ref().map(|place| format!(" in {}", place.words())).unwrap_or_default();
    let serving = match (tid == request.tid, culprit.route.as_str()) {
        (true, route) if !route.is_empty() => format!(", serving {route}"),
        _ => String::new(),
    };
    let text = format!(
        "The event loop ({}) came to this request {} late: one of its iterations took {}, {} of it \
         {}{at_place}{serving}{held_up}",
        request.thread,
        words::duration(ns),
        words::duration(longest.duration_ns),
        words::percent(most, longest.duration_ns),
        state.label(),
    );
    let own = matches!(state.class(), Class::Network | Class::Storage | Class::Idle);
    let blocking = mostly && (own || state == State::LockWait) && tid == request.tid;
    // Nobody is blamed for a CPU or an interpreter that somebody else had.
    let known = mostly && (tid != request.tid || blocking || state.class() == Class::Cpu);
    let pattern = if blocking { "blocking_call" } else { "" };
    let advice = if blocking {
        format!(
            "That call blocks the whole loop: use its asynchronous counterpart, or move it to a \
             thread{}",
            elsewhere(case, " (asyncio.to_thread, run_in_executor)")
        )
    } else {
        format!(
            "Move computing to a thread or process{}, or run more processes",
            elsewhere(case, " (run_in_executor with a ProcessPoolExecutor)")
        )
    };
    let draft = draft(case, at, &stalls).pattern(pattern);
    let relation = if known { Relation::Caused } else { Relation::Unknown };
    Some(draft.relation(relation).culprit(known.then_some(culprit)).say(text, advice))
}
