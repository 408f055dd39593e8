//! Event loops that were held up.

use underspan_explain::{Kind, Relation, explain};
use underspan_model::State;

use crate::common::*;
use crate::only;

#[test]
fn an_event_loop_is_not_split() {
    let explanation = explain(&event_loop()).unwrap();
    assert_eq!(explanation.findings[0].kind, Kind::LoopLag);
    let parts: Vec<_> = explanation.parts.iter().map(|p| p.part).collect();
    assert_eq!(parts, ["accept_queue", "handoff", "handler"]);
    // Into the handler nobody looked: that nothing in it is unknown would be a claim.
    assert_eq!((explanation.unknown.ns, explanation.unknown.not_split_ns), (0, 120 * MS));
}

#[test]
fn a_call_that_blocks_the_loop_is_named() {
    let lag = only(&stalled_loop());
    assert_eq!((lag.kind, lag.relation), (Kind::LoopLag, Relation::Caused));
    assert_eq!(lag.pattern, "blocking_call");
    assert!(lag.text.contains("asleep") || lag.text.contains("sleep"), "{}", lag.text);
    assert!(lag.text.contains("in events at views.py:31"), "{}", lag.text);

    let mut evidence = stalled_loop();
    evidence.stalls[0].duration_ns = 200 * MS;
    assert_eq!(only(&evidence).relation, Relation::Unknown, "it does not explain the lag");
}

#[test]
fn a_loop_that_waited_for_a_cpu_blames_nobody() {
    let mut evidence = stalled_loop();
    evidence.stalls[0].ledger = underspan_model::Ledger::default();
    evidence.stalls[0].ledger[State::Runnable] = 480 * MS;
    let lag = only(&evidence);
    assert_eq!((lag.relation, lag.culprit), (Relation::Unknown, None));
    assert_eq!(lag.pattern, "");
}

#[test]
fn a_loop_that_stood_still_during_the_handler_is_told_and_nobody_blamed() {
    let mut evidence = stalled_loop();
    let request = evidence.request.as_mut().unwrap();
    request.handoff_ns = 0;
    request.duration_ns = request.handler_ns;
    evidence.stalls[0].duration_ns = 100 * MS;
    let lag = only(&evidence);
    assert_eq!((lag.kind, lag.relation, &lag.culprit), (Kind::LoopLag, Relation::Unknown, &None));
    assert_eq!((lag.parts[0].part, lag.ns), ("handler", 100 * MS));
    assert!(lag.text.contains("in events at views.py:31"), "{}", lag.text);
    assert!(lag.text.contains("or of another one is not known"), "{}", lag.text);
}
