//! Putting it together.

use serde::Serialize;
use underspan_model::{LostEvents, PathStep, Request, Span, State};

use crate::case::Case;
use crate::finding::{Finding, Part};
use crate::losses::losses;
use crate::relay::{self, Relay};
use crate::spans::{self, SpanView};
use crate::window::Window;
use crate::{Circumstance, Evidence, SocketWait, Standing, rules, socket, standing, words};

/// Where one request's time went. In JSON the request's own fields come first, under the table's
/// names; `docs/explain.md` describes the rest.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The request's row.
    #[serde(flatten)]
    pub request: Request,
    /// What the client waited: from the first byte in the kernel to the last byte of the answer.
    pub client_wait_ns: u64,
    /// The whole of it, part by part: the two queues, then the states of the handler's thread.
    /// Sums to `client_wait_ns`.
    pub parts: Vec<Part>,
    /// What the spans say.
    pub spans: SpanView,
    /// The critical path of a slow handler, in order: who ran or what was waited for at each moment, also
    /// while the request's own thread slept. Empty if the handler was quick.
    #[serde(rename = "critical_path")] // the request has a `path` of its own
    pub path: Vec<PathStep>,
    /// The sockets that its thread waited on, the longest waits first, and what happened on each. Empty on
    /// event loops.
    pub sockets: Vec<SocketWait>,
    /// Where it was passed on to by a proxy, if that is known.
    pub relay: Option<Relay>,
    /// Of a request that has no answer yet: where its thread stands, and then other threads of its process
    /// that have waited for longest. Pools that wait for work are left out.
    pub standing: Vec<Standing>,
    /// Causes, longest first. No two share a nanosecond.
    pub findings: Vec<Finding>,
    /// What went on in the host meanwhile and may have mattered. No time is claimed for it.
    pub meanwhile: Vec<Circumstance>,
    /// Time of which not even the state is known.
    pub unknown: Unknown,
    /// Events that could not be recorded meanwhile, and stacks of its threads that are not whole.
    pub lost: Vec<LostEvents>,
    /// Their number.
    pub lost_events: u64,
    /// What limits this explanation, in words.
    pub notes: Vec<String>,
}

/// Time that nothing is known of. Printed always, also when it is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Unknown {
    /// `other_ns + unaccounted_ns`.
    pub ns: u64,
    /// Share of the request, from 0 to 1.
    pub fraction: f64,
    /// Blocked, cause not known.
    pub other_ns: u64,
    /// Handler time that is in no cell of the ledger.
    pub unaccounted_ns: u64,
    /// Time of findings whose culprit is not known. It is in known states, so not part of `ns`.
    pub without_culprit_ns: u64,
    /// On an event loop the handler: it is not split, so nobody looked whether some of it is unknown. Not
    /// part of `ns`.
    pub not_split_ns: u64,
}

/// Explains a request. `None` if the evidence has no request: then there is nothing but spans.
pub fn explain(evidence: &Evidence) -> Option<Explanation> {
    let request = evidence.request.as_ref()?;
    let window = Window::of(request);
    let whole = window.whole;
    let (mut view, visible) = spans::view(request, whole, &evidence.spans);
    let case = Case::new(request, evidence, window, visible);
    let findings = rules::all(&case);
    let masking = findings.iter().filter(|finding| !finding.kind.is_work());
    view.masked_ns = masking.map(|finding| finding.in_spans_ns).sum::<u64>().min(view.visible_ns);
    let lost = losses(&case, &findings);
    let lost_events = lost.iter().fold(0u64, |sum, row| sum.saturating_add(row.count));
    let unknown = unknown(&case, &findings);
    Some(Explanation {
        client_wait_ns: whole.len(),
        parts: parts(&case),
        notes: notes(&case, &view, &lost),
        spans: view,
        path: path(evidence),
        sockets: if request.shared_thread == 0 { socket::view(&case) } else { Vec::new() },
        meanwhile: rules::meanwhile(&case, &findings),
        relay: relay::relay(&case),
        standing: standing::standing(&case),
        findings,
        unknown,
        lost,
        lost_events,
        request: request.clone(),
    })
}

fn parts(case: &Case<'_>) -> Vec<Part> {
    let window = &case.window;
    let part = |part, ns| Part { part, ns, fraction: words::fraction(ns, window.whole.len()) };
    let mut parts = vec![
        part("accept_queue", window.accept_queue.len()),
        part("handoff", window.handoff.len()),
    ];
    if case.request.shared_thread != 0 {
        parts.push(part("handler", window.handler.len()));
    } else {
        parts.extend(window.ledger.iter().map(|(state, ns)| part(state.name(), ns)));
        parts.push(part("unaccounted", window.unaccounted));
    }
    parts
}

fn path(evidence: &Evidence) -> Vec<PathStep> {
    let mut path = evidence.path.clone();
    path.sort_by_key(|step| step.step);
    path
}

fn unknown(case: &Case<'_>, findings: &[Finding]) -> Unknown {
    let window = &case.window;
    let (other_ns, unaccounted_ns, not_split_ns) = match case.request.shared_thread {
        0 => (window.ledger[State::Other], window.unaccounted, 0),
        _ => (0, 0, window.handler.len()),
    };
    let ns = other_ns + unaccounted_ns;
    let blameless = findings.iter().filter(|f| f.relation == crate::Relation::Unknown);
    Unknown {
        ns,
        fraction: words::fraction(ns, window.whole.len()),
        other_ns,
        unaccounted_ns,
        without_culprit_ns: blameless.map(|f| f.ns).sum(),
        not_split_ns,
    }
}

fn notes(case: &Case<'_>, view: &SpanView, lost: &[LostEvents]) -> Vec<String> {
    let mut notes = case.window.notes.clone();
    let request = case.request;
    if request.shared_thread != 0 {
        notes.push(String::from(
            "its thread served other requests meanwhile (an event loop): the ledger is the loop's, \
             and this request's share of it cannot be known",
        ));
    }
    if request.sent_tid != 0 && request.sent_tid != request.tid {
        notes.push(format!(
            "thread {} ({}) sent the answer; the ledger is that of the thread that read the request",
            request.sent_thread, request.sent_tid
        ));
    }
    let dropped = rules::dropped_before(case);
    if dropped > 0 {
        let dropped = words::count(usize::try_from(dropped).unwrap_or(usize::MAX), "attempt");
        notes.push(format!(
            "{dropped} to connect found the queue of its listener full in the 3 s before it came (counted \
             by the second): if its client's was among them, it has waited 1 or 3 s more, which nobody on \
             this host sees"
        ));
    }
    if request.end == "open" {
        notes.push(String::from("the request is not answered yet: this is as far as it has come"));
    } else if !matches!(request.end.as_str(), "sent" | "") {
        notes.push(format!("the request did not end with an answer: {}", request.end));
    }
    if view.matched == spans::Match::Thread {
        notes.push(String::from(
            "the spans were matched by thread and time only (low confidence): the request carried no \
             traceparent header",
        ));
    }
    if lost.iter().any(|row| !row.is_stack_end()) {
        notes.push(String::from(
            "events were lost meanwhile: rows that would name a culprit may be missing; the ledger \
             itself is exact",
        ));
    }
    if lost.iter().any(LostEvents::is_stack_end) {
        notes.push(String::from(
            "some stacks of its threads are cut short, without their outer frames: where in the code \
             that time went is told less exactly. No time is missing: the ledger is exact",
        ));
    }
    notes
}

/// The request's own span, if one matched.
impl Explanation {
    /// The span of this request at its server.
    pub fn root(&self) -> Option<&Span> {
        self.spans.root.as_ref()
    }
}
