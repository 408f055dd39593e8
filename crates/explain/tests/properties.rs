//! What holds for every explanation, whatever the rows say.

#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use proptest::prelude::*;
use proptest::sample::select;
use underspan_explain::{Evidence, INTERFERENCE, Relation, compare, explain};
use underspan_model::{Ledger, Request, STATES, State};

/// Times of a plausible second, and absurd ones.
fn time() -> impl Strategy<Value = u64> {
    prop_oneof![8 => (0u64..2000).prop_map(|ms| T0 + ms * MS), 1 => Just(0), 1 => Just(u64::MAX)]
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![8 => (0u64..1500).prop_map(|ms| ms * MS), 1 => Just(u64::MAX), 1 => any::<u64>()]
}

prop_compose! {
    fn any_request()(
        start_time in time(),
        phases in [length(), length(), length()],
        duration in prop_oneof![4 => Just(None), 1 => length().prop_map(Some)],
        cells in proptest::array::uniform17(prop_oneof![3 => Just(0), 1 => length()]),
        threads in (0u32..4, 0u32..4, 0u32..4),
        id in 0u64..40,
        shared in 0u8..2,
    ) -> Request {
        let mut request = quiet().request.unwrap();
        request.request_id = format!("{id:016x}");
        request.start_time = start_time;
        let sum = phases.iter().fold(0u64, |sum, ns| sum.saturating_add(*ns));
        request.duration_ns = duration.unwrap_or(sum);
        [request.accept_queue_ns, request.handoff_ns, request.handler_ns] = phases;
        request.ledger = Ledger::new(cells);
        (request.tid, request.accept_tid, request.sent_tid) = threads;
        request.shared_thread = shared;
        request
    }
}

fn ends(local: &str, peer: &str) -> (String, String) {
    (local.to_owned(), peer.to_owned())
}

prop_compose! {
    fn any_evidence()(
        request in any_request(),
        siblings in proptest::collection::vec(any_request(), 0..8),
        waits in proptest::collection::vec(
            (time(), length(), 0u32..4, 0u32..4, 0u32..4, 0usize..STATES, select(vec!["", "a:1"])), 0..12),
        pauses in proptest::collection::vec((time(), length(), 0u32..4), 0..6),
        gil in proptest::collection::vec((time(), length(), 0u32..4, 0u32..4, length()), 0..6),
        spans in proptest::collection::vec((time(), length(), 0u64..6, 0u64..6), 0..8),
        losses in proptest::collection::vec(
            (time(), length(), any::<bool>(), select(vec!["rto", "syn_retry", "zero_window_peer",
                "zero_window_local", "fast_retransmit", "drop", "?"])), 0..6),
        connects in proptest::collection::vec((time(), length(), 0u32..4, length()), 0..6),
        served in proptest::collection::vec(any_request(), 0..4),
    ) -> Evidence {
        let mut evidence = Evidence { siblings, ..Evidence::default() };
        for (start, length, tid, holder, waker, state, peer) in waits {
            let mut row = wait(&request, State::ALL[state], 0, 0);
            (row.start_time, row.duration_ns, row.tid) = (start, length, tid);
            (row.holder_tid, row.waker_tid, row.futex_addr) = (holder, waker, u64::from(waker));
            row.peer = peer.to_owned();
            row.runnable_ns = length / 7;
            row.local = if waker == 0 { String::new() } else { String::from("b:2") };
            evidence.waits.push(row);
        }
        for (start, length, tid) in pauses {
            let mut row = pause(&request, tid, "t", 0, 0);
            (row.start_time, row.duration_ns) = (start, length);
            evidence.gc_pauses.push(row);
        }
        for (start, length, tid, holder, gc) in gil {
            let mut row = gil_wait(&request, 0, 0, (holder, "h"), 0);
            (row.start_time, row.duration_ns, row.tid) = (start, length, tid);
            (row.holder_ns, row.gc_ns) = (length, gc);
            evidence.gil_waits.push(row);
        }
        for (start, length, id, parent) in spans {
            let mut row = span(&request, id, parent, "s", 0, 0);
            (row.start_time, row.duration_ns) = (start, length);
            row.tid = request.ns_tid;
            evidence.spans.push(row);
        }
        for (start, length, here, kind) in losses {
            let mut row = network::loss(kind, 0, 0);
            (row.start_time, row.duration_ns, row.tid) = (start, length, 1);
            (row.local, row.peer) = if here { ends("b:2", "a:1") } else { ends("a:1", "b:2") };
            evidence.losses.push(row);
        }
        for (start, length, tid, again) in connects {
            let mut row = network::connection_per_query().connects.remove(1);
            (row.start_time, row.duration_ns, row.tid, row.reconnect_ns) = (start, length, tid, again);
            evidence.connects.push(row);
        }
        for mut other in served {
            (other.local, other.peer) = (String::from("a:1"), String::from("b:2"));
            evidence.peers.push(other);
        }
        evidence.request = Some(request);
        evidence
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_parts_sum_to_the_whole(evidence in any_evidence()) {
        let explanation = explain(&evidence).unwrap();
        let whole = explanation.client_wait_ns;
        let sum: u64 = explanation.parts.iter().map(|part| part.ns).sum();
        prop_assert_eq!(sum, whole);
        let spans = &explanation.spans;
        prop_assert_eq!(spans.visible_ns + spans.hidden_ns, whole);
        prop_assert_eq!(spans.before_ns + spans.inside_ns + spans.after_ns, spans.hidden_ns);
        prop_assert!(spans.masked_ns <= spans.visible_ns);
        let unknown = &explanation.unknown;
        prop_assert!(unknown.ns + unknown.not_split_ns <= whole);
        for socket in &explanation.sockets {
            prop_assert_eq!(socket.parts.iter().map(|part| part.ns).sum::<u64>(), socket.ns);
        }
        let waited: u64 = explanation.sockets.iter().map(|socket| socket.ns).sum();
        prop_assert!(waited <= whole);
    }

    #[test]
    fn findings_share_no_time(evidence in any_evidence()) {
        let explanation = explain(&evidence).unwrap();
        let blamed: u64 = explanation.findings.iter().map(|finding| finding.ns).sum();
        prop_assert!(blamed <= explanation.client_wait_ns);
        let hidden: u64 = explanation.findings.iter().map(|finding| finding.hidden_ns).sum();
        prop_assert!(hidden <= blamed);
        for finding in &explanation.findings {
            prop_assert!((0.0..=1.0).contains(&finding.fraction));
            prop_assert!(finding.hidden_ns + finding.in_spans_ns <= finding.ns);
            let parts: u64 = finding.parts.iter().map(|part| part.ns).sum();
            prop_assert_eq!(parts, finding.ns);
            prop_assert!(finding.kind.threshold().reached(finding.ns, explanation.client_wait_ns));
            prop_assert!(!finding.text.is_empty() && !finding.advice.is_empty());
        }
    }

    #[test]
    fn a_cause_is_shown_for_four_fifths_of_its_time(evidence in any_evidence()) {
        for finding in explain(&evidence).unwrap().findings {
            if let (Relation::Caused, Some(culprit)) = (finding.relation, &finding.culprit) {
                prop_assert!(culprit.ns as f64 >= 0.8 * finding.ns as f64, "{:?}", finding);
                prop_assert!(culprit.ns <= finding.ns);
            }
        }
    }

    #[test]
    fn the_order_of_rows_does_not_matter(evidence in any_evidence()) {
        let mut reversed = evidence.clone();
        reversed.waits.reverse();
        reversed.gc_pauses.reverse();
        reversed.gil_waits.reverse();
        reversed.spans.reverse();
        reversed.losses.reverse();
        reversed.connects.reverse();
        // Two rows with one id contradict each other; a store does not hold such.
        let mut ids = std::collections::BTreeSet::new();
        let mut evidence = evidence;
        evidence.siblings.retain(|sibling| ids.insert(sibling.request_id.clone()));
        reversed.siblings = evidence.siblings.iter().rev().cloned().collect();
        let json = |e| serde_json::to_string(&explain(e)).unwrap();
        prop_assert_eq!(json(&evidence), json(&reversed));
    }

    #[test]
    fn a_quiet_request_is_never_accused(
        mut evidence in any_evidence(),
        cells in proptest::array::uniform17(0..INTERFERENCE.ns),
        queues in (0..INTERFERENCE.ns / 2, 0..INTERFERENCE.ns / 2),
    ) {
        let request = evidence.request.as_mut().unwrap();
        request.ledger = Ledger::new(cells);
        request.ledger[State::GcWait] = 0;
        request.handler_ns = request.ledger.total();
        (request.accept_queue_ns, request.handoff_ns) = queues;
        request.duration_ns = request.handler_ns + queues.0 + queues.1;
        request.start_time = T0;
        prop_assert_eq!(explain(&evidence).unwrap().findings, vec![]);
    }

    #[test]
    fn comparing_never_panics(before in proptest::collection::vec(any_request(), 0..9),
                              after in proptest::collection::vec(any_request(), 0..9)) {
        let comparison = compare(&before, &after);
        prop_assert_eq!(comparison.before.requests, before.len());
        prop_assert!(comparison.after.p95_ns <= comparison.after.max_ns);
        prop_assert_eq!(compare(&before, &before).before, compare(&before, &before).after);
    }
}

#[test]
fn without_a_request_there_is_nothing_to_explain() {
    assert!(explain(&Evidence::default()).is_none());
}
