//! What the spans say, and what they cannot see.

use std::collections::BTreeSet;

use serde::Serialize;
use underspan_model::{Request, Span};

use crate::interval::{Cover, Interval};

/// How the spans were found to belong to the request, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Match {
    /// The root span's parent is the span that the request's `traceparent` header names.
    Traceparent,
    /// Same trace id.
    TraceId,
    /// Stamped with the same process and thread, and overlapping in time. Low confidence.
    Thread,
    /// No span was found.
    None,
}

/// What the spans say of a request. `visible_ns + hidden_ns` is the whole of it, and
/// `before_ns + inside_ns + after_ns = hidden_ns`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpanView {
    /// How they were matched.
    pub matched: Match,
    /// The span of this request at its server, if there is one.
    pub root: Option<Span>,
    /// How many spans lie below it.
    pub children: usize,
    /// Covered by a child span.
    pub visible_ns: u64,
    /// Not covered by a child span.
    pub hidden_ns: u64,
    /// Hidden before the root span began.
    pub before_ns: u64,
    /// Hidden inside the root span.
    pub inside_ns: u64,
    /// Hidden after the root span ended.
    pub after_ns: u64,
    /// Visible, but misleading: inside a child span, the thread was in fact held up (see findings).
    pub masked_ns: u64,
}

/// The view, and the set of instants that child spans cover.
pub(crate) fn view(request: &Request, whole: Interval, spans: &[Span]) -> (SpanView, Cover) {
    let mut spans: Vec<&Span> = spans.iter().collect();
    spans.sort_by_key(|s| {
        (s.start_time, s.duration_ns, &s.trace_id, &s.span_id, &s.parent_span_id, &s.name)
    });
    let Some((root, matched)) = root(request, whole, &spans) else {
        let view = SpanView {
            matched: Match::None,
            root: None,
            children: 0,
            visible_ns: 0,
            hidden_ns: whole.len(),
            before_ns: whole.len(),
            inside_ns: 0,
            after_ns: 0,
            masked_ns: 0,
        };
        return (view, Cover::default());
    };
    let children = below(root, &spans);
    let covered: Cover = children.iter().map(|span| interval(span)).collect();
    let visible = covered.within(whole);
    let hidden = Cover::from(whole).subtract(&visible);
    let span = interval(root);
    let view = SpanView {
        matched,
        root: Some(root.clone()),
        children: children.len(),
        visible_ns: visible.total(),
        hidden_ns: hidden.total(),
        before_ns: hidden.within(Interval::between(0, span.start)).total(),
        inside_ns: hidden.within(span).total(),
        after_ns: hidden.within(Interval::between(span.end, u64::MAX)).total(),
        masked_ns: 0,
    };
    (view, visible)
}

fn interval(span: &Span) -> Interval {
    Interval::new(span.start_time, span.duration_ns)
}

/// The span of the request itself: of those that overlap it the one that fits best.
fn root<'a>(request: &Request, whole: Interval, spans: &[&'a Span]) -> Option<(&'a Span, Match)> {
    let ids: BTreeSet<_> =
        spans.iter().map(|s| (s.trace_id.as_str(), s.span_id.as_str())).collect();
    let same_thread = |s: &Span| {
        s.tid != 0
            && s.tid == request.ns_tid
            && (s.pid == 0 || request.ns_pid == 0 || s.pid == request.ns_pid)
    };
    let candidate = |s: &'a Span| {
        let overlap = interval(s).overlap(whole).len();
        let same_trace = !request.trace_id.is_empty() && s.trace_id == request.trace_id;
        let parent_known = ids.contains(&(s.trace_id.as_str(), s.parent_span_id.as_str()));
        let of_header = same_trace
            && !s.parent_span_id.is_empty()
            && s.parent_span_id == request.parent_span_id;
        let matched = match () {
            _ if overlap == 0 => return None,
            _ if of_header => Match::Traceparent,
            _ if same_trace && (s.kind == "server" || !parent_known) => Match::TraceId,
            // A stamp alone is believed only for spans that lie mostly inside the request.
            _ if same_thread(s) && !parent_known && overlap >= s.duration_ns / 2 => Match::Thread,
            _ => return None,
        };
        Some((s, matched, overlap))
    };
    let rank = |matched: Match| match matched {
        Match::Traceparent => 3,
        Match::TraceId => 2,
        Match::Thread => 1,
        Match::None => 0,
    };
    spans
        .iter()
        .copied()
        .filter_map(candidate)
        .max_by_key(|(s, matched, overlap)| {
            (rank(*matched), same_thread(s), s.kind == "server", *overlap, &s.span_id)
        })
        .map(|(span, matched, _)| (span, matched))
}

/// All descendants. Parent links that form a ring end where they began.
fn below<'a>(root: &Span, spans: &[&'a Span]) -> Vec<&'a Span> {
    let mut known = BTreeSet::from([root.span_id.as_str()]);
    let mut found = Vec::new();
    loop {
        let before = found.len();
        for &span in spans.iter().filter(|span| span.trace_id == root.trace_id) {
            if known.contains(span.parent_span_id.as_str())
                && !known.contains(span.span_id.as_str())
            {
                known.insert(&span.span_id);
                found.push(span);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}
