//! Event loops: a thread that serves many requests at once.

use crate::case::{Case, request_row};
use crate::finding::{Finding, INTERFERENCE, Kind};
use crate::interval::Cover;
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
        .map(|s| (at.within(crate::interval::Interval::new(s.start_time, s.duration_ns)), s))
        .filter(|(part, _)| part.total() > 0)
        .map(|(part, s)| (part.total(), request_row(s)))
        .collect();
    let parts = [("accept_queue", accept_queue.len()), ("handoff", handoff.len())];
    let text = format!(
        "The event loop ({}) came to this request {} late; {} in flight on it meanwhile",
        case.request.thread,
        words::duration(ns),
        words::count(overlapping.len(), "other request")
    );
    Some(case.draft(Kind::LoopLag, &parts).located(case, &at).rows(overlapping).say(
        text,
        "Something ran too long on the loop: move computing and blocking calls to a thread or \
         process (run_in_executor), or run more processes",
    ))
}
