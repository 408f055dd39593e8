//! Queues in front of a server, and who let them grow.

use underspan_explain::{Evidence, Kind, Match, Relation, explain};
use underspan_model::State;

use crate::common::*;
use crate::{findings, of, only};

#[test]
fn a_full_pool_explains_the_handoff() {
    let explanation = explain(&queue()).unwrap();
    let [handoff] = explanation.findings.as_slice() else { panic!("{:#?}", explanation.findings) };
    assert_eq!((handoff.kind, handoff.relation), (Kind::Handoff, Relation::Caused));
    assert_eq!(handoff.ns, 3100 * MS);
    assert!(handoff.hidden_ns as f64 >= 0.95 * explanation.spans.hidden_ns as f64);
    let culprit = handoff.culprit.as_ref().unwrap();
    assert_eq!(
        (culprit.thread.as_str(), culprit.route.as_str()),
        ("all 4 worker threads", "GET /orders")
    );
    assert!(handoff.advice.contains("--threads"), "{}", handoff.advice);
    assert_eq!(explanation.spans.matched, Match::Traceparent);
    assert_eq!(explanation.spans.visible_ns, 197 * MS);
}

#[test]
fn one_idle_thread_and_the_pool_is_not_blamed() {
    let mut evidence = queue();
    let idle =
        Shape { id: 9, worker: 5, at_ms: 0, accept_queue: 0, handoff: 0, handler: 3, cells: &[] };
    evidence.siblings.push(request("/health", &idle));
    let handoff = only(&evidence);
    assert_eq!(handoff.relation, Relation::Unknown);
    assert!(handoff.culprit.is_none());
}

#[test]
fn a_pool_that_computes_needs_processes() {
    let mut evidence = queue();
    for sibling in &mut evidence.siblings {
        sibling.ledger[State::GilWait] = sibling.ledger[State::NetRead];
        sibling.ledger[State::NetRead] = 0;
    }
    let findings = findings(&evidence);
    assert!(findings[0].advice.contains("--workers"), "{}", findings[0].advice);
}

#[test]
fn an_acceptor_that_serves_is_blamed_for_the_accept_queue() {
    let mut slow = request(
        "/x",
        &Shape {
            id: 1,
            worker: 0,
            at_ms: 100,
            accept_queue: 400,
            handoff: 0,
            handler: 5,
            cells: &[],
        },
    );
    slow.accept_tid = slow.tid;
    let shape =
        Shape { id: 2, worker: 0, at_ms: 0, accept_queue: 0, handoff: 0, handler: 499, cells: &[] };
    let evidence = Evidence { siblings: vec![request("/slow", &shape)], ..of(slow) };
    let queue = only(&evidence);
    assert_eq!((queue.kind, queue.relation), (Kind::AcceptQueue, Relation::Caused));
    assert_eq!(queue.culprit.unwrap().route, "GET /slow");
    assert!(queue.advice.contains("--workers"));
}

#[test]
fn a_pool_that_is_stuck_on_one_peer_needs_no_more_threads() {
    let handoff = only(&stuck_pool());
    assert_eq!((handoff.kind, handoff.pattern), (Kind::Handoff, "pool_exhausted"));
    assert_eq!(handoff.culprit.unwrap().peer, "10.0.0.5:6379");
    assert!(handoff.text.contains("all 4 worker threads waited for 10.0.0.5:6379"));
    assert!(!handoff.advice.contains("--threads"), "{}", handoff.advice);

    let mut evidence = stuck_pool();
    evidence.waits.pop();
    assert_eq!(only(&evidence).pattern, "", "one thread was not");
}
