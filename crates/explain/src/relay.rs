//! Who answered in the end: a proxy's request, and the one that it made of it.
//!
//! A proxy waits for its upstream on an event loop, where nobody can tell whose wait is whose, and often over a Unix
//! socket, which has no address. What it passes on comes back within its own request, with the same route.

use serde::Serialize;
use underspan_model::Request;

use crate::case::{Case, route};
use crate::window::Window;

/// An answer that is passed on as it comes ends here so soon after it ended there, in nanoseconds.
pub const PASSED_ON_NS: u64 = 5_000_000;

/// The request of another process to which this one was passed on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Relay {
    /// Its id.
    pub request_id: String,
    /// The process.
    pub pid: u32,
    /// Its name.
    pub process: String,
    /// What was asked for there.
    pub route: String,
    /// The status of the answer.
    pub status: u16,
    /// How long after this request's first byte its own came, in nanoseconds.
    pub after_ns: u64,
    /// How long it took from its first byte to its last, in nanoseconds.
    pub duration_ns: u64,
    /// How that is known: `trace` (the same trace and parent span), or `route_and_time`.
    pub known_by: &'static str,
}

/// `None` as well if it could be several.
pub(crate) fn relay(case: &Case<'_>) -> Option<Relay> {
    let own = case.request;
    let within = Window::of(own).whole;
    let elsewhere = case.evidence.upstreams.iter().filter(|r| {
        let whole = Window::of(r).whole;
        r.host == own.host && r.pid != own.pid && whole.overlap(within) == whole
    });
    // A proxy that makes no spans passes its caller's on. Who does makes one for each that it calls.
    let parent = (&own.trace_id, &own.parent_span_id);
    let (traced, others): (Vec<_>, Vec<_>) = elsewhere
        .partition(|r| !own.trace_id.is_empty() && (&r.trace_id, &r.parent_span_id) == parent);
    // Of a chain the longest is the first.
    if let Some(first) = traced.into_iter().max_by_key(|r| (r.duration_ns, &r.request_id)) {
        return Some(told(own, first, "trace"));
    }
    let ended = |r: &&Request| {
        let same = (&r.method, &r.path, r.status) == (&own.method, &own.path, own.status);
        let whole = Window::of(r).whole;
        same && !own.path.is_empty() && within.end - whole.end <= PASSED_ON_NS
    };
    let mut ended: Vec<_> = others.into_iter().filter(ended).collect();
    ended.sort_by_key(|r| (r.pid, r.start_time, &r.request_id));
    // Each of a chain of proxies passes it on: one that lies within another is that one's.
    let first = *ended.iter().max_by_key(|r| (r.duration_ns, &r.request_id))?;
    let all_within = |other: &&&Request| {
        let (whole, inner) = (Window::of(first).whole, Window::of(other).whole);
        other.pid != first.pid && inner.overlap(whole) == inner
    };
    let chained = ended.iter().filter(all_within).count() + 1 == ended.len();
    chained.then(|| told(own, first, "route_and_time"))
}

fn told(own: &Request, upstream: &Request, known_by: &'static str) -> Relay {
    Relay {
        request_id: upstream.request_id.clone(),
        pid: upstream.pid,
        process: upstream.process.clone(),
        route: route(upstream),
        status: upstream.status,
        after_ns: upstream.start_time.saturating_sub(own.start_time),
        duration_ns: upstream.duration_ns,
        known_by,
    }
}
