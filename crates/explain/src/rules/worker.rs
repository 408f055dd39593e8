//! Servers one thread of which reads all requests and hands them to workers that answer (waitress, puma's
//! reactor, gRPC's): a request that was read may wait for a worker all the same.

use std::collections::BTreeMap;

use underspan_model::{Request, State};

use crate::case::{Case, blocked, proven, request_row, route};
use crate::finding::{Culprit, Finding, INTERFERENCE, Kind, Relation};
use crate::interval::{Cover, Interval};
use crate::rules::pool::SWITCH_NS;
use crate::window::Window;
use crate::words;

/// Who reads a request and answers it itself, and takes longer for it, hands on nothing.
const OWN_NS: u64 = 10_000_000;

/// The worker that answered this request answered another one before, when this one had been read: so long it
/// cannot have been at it.
pub(super) fn find(case: &Case<'_>) -> Option<Finding> {
    let (request, handler) = (case.request, case.window.handler);
    let answered = request.end == "sent" && request.sent_tid != 0;
    if !answered || request.sent_tid == request.tid || !hands_on(case) {
        return None;
    }
    let before = case.siblings.iter().filter(|s| s.sent_tid == request.sent_tid && s.end == "sent");
    let before = before.filter(|s| end(s) > handler.start && end(s) <= handler.end);
    let last = before.max_by_key(|s| (end(s), &s.request_id))?;
    let phase = Interval::between(handler.start, end(last));
    let (at, ns) = (Cover::from(phase), phase.len());
    if !case.worth(ns, INTERFERENCE) || polls(case, phase) {
        return None;
    }
    let busy = busy(case);
    let is_busy = |cover: &Cover| proven(cover.bridged(SWITCH_NS).intersect(&at).total(), ns);
    let all = busy.values().all(is_busy);
    let (workers, worker) = (busy.len(), &request.sent_thread);
    let tid = request.sent_tid;
    let what = match route(last) {
        route if route.is_empty() => format!("request {}", last.request_id),
        route => format!("{route} (request {})", last.request_id),
    };
    let waited = words::duration(ns);
    let text = match (all, workers) {
        (true, 1) => format!(
            "No worker was free for {waited} after it was read: thread {worker} ({tid}), the only one that \
             is known, answered others until then, the last of them {what}"
        ),
        (true, _) => format!(
            "No worker was free for {waited} after it was read: all {workers} threads that answer requests \
             were busy, and {worker} ({tid}), which answered it in the end, answered {what} until then"
        ),
        (false, _) => format!(
            "Waited at least {waited} for a worker after it was read: thread {worker} ({tid}), which \
             answered it in the end, answered {what} until then"
        ),
    };
    let named = !all || workers == 1;
    let culprit = Culprit {
        host: request.host.clone(),
        pid: request.pid,
        tid: if named { tid } else { 0 },
        thread: if named { worker.clone() } else { format!("all {workers} worker threads") },
        request_id: last.request_id.clone(),
        route: route(last),
        ..Culprit::new(ns)
    };
    let whole = |s: &Request| Interval::new(s.start_time, s.duration_ns);
    let meanwhile = case.siblings.iter().filter(|s| s.sent_tid != 0 && s.sent_tid != request.tid);
    let rows = meanwhile.map(|s| (at.within(whole(s)).total(), request_row(s)));
    let rows = rows.filter(|(ns, _)| *ns > 0).collect();
    let advice = format!(
        "More worker threads{}, or make shorter what they do: `underspan explain {}`",
        case.server().threads("N"),
        last.request_id
    );
    let draft = case.draft(Kind::Handoff, &[("handler", ns)]).located(case, &at).rows(rows);
    // One idle worker, and the pool is not to blame.
    let relation = if all { Relation::Caused } else { Relation::Coincided };
    Some(draft.relation(relation).culprit(Some(culprit)).say(text, advice))
}

fn end(request: &Request) -> u64 {
    request.start_time.saturating_add(request.duration_ns)
}

/// Whether the thread that read it reads for others, and the one that answered it is no such thread: where tasks
/// go from thread to thread, any of them reads and answers, and may answer several in turns.
fn hands_on(case: &Case<'_>) -> bool {
    let request = case.request;
    let reader_answers = |s: &&Request| s.tid == request.tid && s.sent_tid == request.tid;
    let mut own = case.siblings.iter().copied().filter(reader_answers);
    let worker_reads = |s: &&Request| s.tid == request.sent_tid && s.shared_thread != 0;
    let of_tasks = case.samples.iter().filter(|s| s.pid == request.pid);
    let mut frames = of_tasks.flat_map(|s| &s.stack.frames);
    !own.any(|s| Window::of(s).handler.len() >= OWN_NS)
        && !case.siblings.iter().copied().any(|s| worker_reads(&s))
        && !frames.any(|frame| TASKS.iter().any(|name| frame.function.starts_with(name)))
}

/// Runtimes whose tasks go from thread to thread.
const TASKS: [&str; 3] = ["tokio::", "async_std::", "java.util.concurrent.ForkJoinPool"];

/// Whether the worker polled meanwhile: then it may have been at several at once.
fn polls(case: &Case<'_>, during: Interval) -> bool {
    case.waits.iter().any(|w| {
        let polled = w.tid == case.request.sent_tid && w.state == State::PollWait;
        polled && blocked(w).overlap(during).len() > 0
    })
}

/// When each thread that answers was at a request: from when it was read, or the one before was answered.
fn busy(case: &Case<'_>) -> BTreeMap<u32, Cover> {
    let mut answered: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    let reader = case.request.tid;
    for s in case.siblings.iter().filter(|s| s.sent_tid != 0 && s.sent_tid != reader) {
        let read = Window::of(s).handler.start;
        answered.entry(s.sent_tid).or_default().push((end(s), read));
    }
    let busy = |mut ends: Vec<(u64, u64)>| -> Cover {
        ends.sort_unstable();
        let mut before = 0;
        let one = ends.into_iter().map(|(end, read)| {
            let from = read.max(before);
            before = end;
            Interval::between(from, end)
        });
        one.collect()
    };
    answered.into_iter().map(|(tid, ends)| (tid, busy(ends))).collect()
}
