//! Samples, clipped to the windows of requests.

use std::collections::BTreeSet;
use std::sync::Arc;

use underspan_flame::{Kind, Sample, Thread, Totals, is_on_cpu};
use underspan_model::Request;

use super::threads::Threads;

/// The time in which a thread served a request: from its first read to the last byte sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) thread: Arc<Thread>,
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) request: Arc<str>,
}

/// The requests' windows, by host, thread and time. Where a thread served several at once, each
/// moment belongs to the request that came first, so that no time is counted twice.
pub(super) fn windows(requests: &[Request], threads: &mut Threads) -> Vec<Window> {
    let mut windows: Vec<_> = requests
        .iter()
        .map(|request| {
            let begin = begin(request);
            Window {
                thread: threads.of_request(request),
                begin,
                end: begin.saturating_add(request.handler_ns),
                request: Arc::from(request.request_id.as_str()),
            }
        })
        .collect();
    windows.sort_by(|a, b| (&a.thread, a.begin, a.end).cmp(&(&b.thread, b.begin, b.end)));
    let mut disjoint: Vec<Window> = Vec::new();
    for mut window in windows {
        if let Some(last) = disjoint.last().filter(|last| last.thread == window.thread) {
            window.begin = window.begin.max(last.end);
        }
        if window.begin < window.end {
            disjoint.push(window);
        }
    }
    disjoint
}

/// Windows in parts of at most `most`, each of one host.
pub(super) fn batches(windows: &[Window], most: usize) -> impl Iterator<Item = &[Window]> {
    windows
        .chunk_by(|a, b| a.thread.host == b.thread.host)
        .flat_map(move |of_host| of_host.chunks(most))
}

/// When a thread began to read the request.
pub(super) fn begin(request: &Request) -> u64 {
    request.start_time.saturating_add(request.accept_queue_ns).saturating_add(request.handoff_ns)
}

/// What the ledgers of the requests sum to. An event loop's ledgers are of the loop and overlap.
pub(super) fn totals(kind: Kind, requests: &[Request], threads: &mut Threads) -> Totals {
    let shared: BTreeSet<_> = requests
        .iter()
        .filter(|request| request.shared_thread != 0)
        .map(|request| threads.of_request(request))
        .collect();
    let mut totals = Totals::new();
    for request in requests {
        let thread = threads.of_request(request);
        if shared.contains(&thread) {
            continue;
        }
        for (state, ns) in request.ledger.iter().filter(|(state, _)| kind.has(*state)) {
            let total = totals.entry((Arc::clone(&thread), state)).or_default();
            *total = total.saturating_add(ns);
        }
    }
    totals
}

/// The parts of the samples that lie in one of the windows. A look at a running thread is a moment;
/// a wait counts by the part of it that overlaps.
pub(super) fn clipped(samples: Vec<Sample>, windows: &[Window]) -> Vec<Sample> {
    let mut clipped = Vec::new();
    for sample in samples {
        let end = sample.start_time.saturating_add(sample.duration_ns);
        for window in windows.iter().filter(|window| window.thread == sample.thread) {
            let part = if is_on_cpu(sample.state) {
                (window.begin..window.end).contains(&sample.start_time).then_some(sample.weight_ns)
            } else {
                let from = sample.start_time.max(window.begin);
                let overlap = end.min(window.end).saturating_sub(from);
                let weight = u128::from(sample.weight_ns) * u128::from(overlap)
                    / u128::from(sample.duration_ns.max(1));
                u64::try_from(weight).ok()
            };
            if let Some(weight_ns) = part.filter(|ns| *ns > 0) {
                let request = Some(Arc::clone(&window.request));
                clipped.push(Sample { weight_ns, request, ..sample.clone() });
            }
        }
    }
    clipped
}
