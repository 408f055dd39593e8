//! Queries against a real embedded store. The Python to run it with is named by the environment
//! variable `UNDERSPAN_PYTHON`.

// Helpers outside of test functions fail a test in the same way.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../explain/tests/common/mod.rs"]
mod common;
mod flame;
mod seeded;

use seeded::Seeded;
use underspan_evidence::{Error, Filter, evidence_for, recent_requests, request_by_id};
use underspan_evidence::{requests_of_trace, spans_of_trace};
use underspan_explain::{Kind, Match, Relation, explain};
use underspan_model::{LostEvents, Request, TcpLoss, ThreadStates};
use underspan_store::Store;

/// What the store gives back must be explained as the rows themselves are.
#[tokio::test]
async fn a_request_survives_the_way_through_the_store() {
    let seeded = Seeded::start().await;
    for story in [
        common::queue(),
        common::collection(),
        common::unknown(),
        common::held_lock(),
        common::stuck_pool(),
        common::stalled_loop(),
        common::pipelined(),
        common::handed_on((1, 100, 605, 0), &[(2, 0, 300, 0), (3, 20, 600, 0)]),
        common::row_lock(),
    ] {
        let put = seeded.put(&story).await;
        let request = put.request.clone().unwrap();
        let found = request_by_id(&seeded.store(), &request.request_id).await.unwrap().unwrap();
        assert_eq!(found, request);

        let got = evidence_for(&seeded.store(), found).await.unwrap();
        assert_eq!(got.siblings.len(), put.siblings.len());
        assert_eq!(got.spans.len(), put.spans.len());
        assert_eq!(got.stalls, put.stalls);
        assert_eq!(got.path, put.path);
        let (expected, explained) = (explain(&put).unwrap(), explain(&got).unwrap());
        assert_eq!(explained.findings, expected.findings);
        assert_eq!(explained.spans, expected.spans);
        assert_eq!(explained.parts, expected.parts);
        assert_eq!(explained.lost_events, expected.lost_events);
        seeded.clear().await;
    }
    seeded.stop().await;
}

#[tokio::test]
async fn what_happened_on_sockets_survives_the_way_through_the_store() {
    use common::network;

    let seeded = Seeded::start().await;
    for story in [
        network::lost_segments(),
        network::full_queue(),
        network::closed_window(),
        network::connection_per_query(),
        network::followed(),
        network::own_queue_full(),
        network::busy_host(),
        network::dropped_before(),
    ] {
        let put = seeded.put(&story).await;
        let got = evidence_for(&seeded.store(), put.request.clone().unwrap()).await.unwrap();
        let in_order = |losses: &[TcpLoss]| {
            let mut losses = losses.to_vec();
            losses.sort_by_key(|loss| loss.start_time);
            losses
        };
        assert_eq!(in_order(&got.losses), in_order(&put.losses));
        assert_eq!(got.accepts, put.accepts);
        assert_eq!(got.peers, put.peers);
        assert_eq!(got.reader_waits, put.reader_waits);
        assert_eq!(got.counters, put.counters);
        let (expected, explained) = (explain(&put).unwrap(), explain(&got).unwrap());
        assert_eq!(explained.findings, expected.findings);
        assert_eq!(explained.sockets, expected.sockets);
        assert_eq!(explained.meanwhile, expected.meanwhile);
        assert_eq!(explained.notes, expected.notes);
        seeded.clear().await;
    }
    seeded.stop().await;
}

#[tokio::test]
async fn what_another_process_made_of_a_request_is_found() {
    let seeded = Seeded::start().await;
    let mut story = common::quiet();
    let own = story.request.clone().unwrap();
    let within = Request { pid: own.pid + 1, start_time: own.start_time + 1, ..own.clone() };
    let within = Request { request_id: format!("{:016x}", 0xa), ..within };
    let elsewhere = Request { path: String::from("/other"), ..within.clone() };
    story.upstreams = vec![within, Request { request_id: format!("{:016x}", 0xb), ..elsewhere }];
    let put = seeded.put(&story).await;
    let got = evidence_for(&seeded.store(), put.request.clone().unwrap()).await.unwrap();
    assert_eq!(got.upstreams, put.upstreams[..1]);
    seeded.stop().await;
}

#[tokio::test]
async fn every_column_of_every_row_comes_back() {
    let seeded = Seeded::start().await;
    let mut story = common::collection();
    let request = story.request.clone().unwrap();
    let lost = LostEvents {
        host: request.host.clone(),
        start_time: request.start_time,
        duration_ns: 1_000_000_000,
        tracker: String::from("gc"),
        reason: String::from("ring_full"),
        count: 3,
    };
    story.lost = vec![lost];
    story.thread_states = vec![ThreadStates {
        host: request.host.clone(),
        pid: request.pid,
        tid: 4131,
        ns_pid: 7,
        ns_tid: 3,
        thread: String::from("report-job_0"),
        process: request.process.clone(),
        start_time: request.start_time,
        duration_ns: 1_000_000_000,
        ledger: request.ledger,
    }];
    let put = seeded.put(&story).await;
    let got = evidence_for(&seeded.store(), put.request.clone().unwrap()).await.unwrap();
    assert_eq!(got.waits, put.waits);
    assert_eq!(got.gc_pauses, put.gc_pauses);
    assert_eq!(got.gil_waits, put.gil_waits);
    assert_eq!(got.thread_states, put.thread_states);
    assert_eq!(got.lost, put.lost);
    assert_eq!(got.process, put.process);
    seeded.stop().await;
}

#[tokio::test]
async fn a_trace_leads_to_its_requests() {
    let seeded = Seeded::start().await;
    let put = seeded.put(&common::queue()).await;
    let request = put.request.unwrap();
    let found = requests_of_trace(&seeded.store(), &request.trace_id).await.unwrap();
    assert_eq!(found, [request]);
    assert!(requests_of_trace(&seeded.store(), &"0".repeat(32)).await.unwrap().is_empty());
    seeded.stop().await;
}

/// The request carried no header, but the span processor stamped the thread.
#[tokio::test]
async fn a_trace_leads_to_its_requests_by_thread() {
    let seeded = Seeded::start().await;
    let mut story = common::collection();
    let trace_id = story.spans[0].trace_id.clone();
    story.request.as_mut().unwrap().trace_id.clear();
    let request = seeded.put(&story).await.request.unwrap();
    let found = requests_of_trace(&seeded.store(), &trace_id).await.unwrap();
    assert_eq!(found, std::slice::from_ref(&request));
    let evidence = evidence_for(&seeded.store(), request).await.unwrap();
    let explanation = explain(&evidence).unwrap();
    assert_eq!(explanation.spans.matched, Match::Thread);
    assert_eq!(explanation.findings[0].kind, Kind::GcWait);
    assert_eq!(explanation.findings[0].relation, Relation::Caused);
    seeded.stop().await;
}

#[tokio::test]
async fn a_trace_has_all_its_spans_and_no_others() {
    let seeded = Seeded::start().await;
    let put = seeded.put(&common::queue()).await;
    seeded.put(&common::collection()).await;
    let mut spans = spans_of_trace(&seeded.store(), &put.spans[0].trace_id).await.unwrap();
    spans.sort_by(|a, b| b.span_id.cmp(&a.span_id));
    assert_eq!(spans, put.spans);
    seeded.stop().await;
}

#[tokio::test]
async fn recent_requests_are_filtered_and_slowest_first() {
    let seeded = Seeded::start().await;
    let slow = seeded.put(&common::queue()).await.request.unwrap();
    let last = seeded.put(&common::quiet()).await.request.unwrap();
    let ask = async |filter: Filter| recent_requests(&seeded.store(), &filter).await.unwrap();

    let rows = ask(Filter::default()).await;
    assert_eq!(rows.len(), 50);
    assert_eq!(rows[0], slow);
    assert!(rows.is_sorted_by(|a, b| a.duration_ns >= b.duration_ns));

    let health = ask(Filter { path: Some(String::from("heal")), ..Filter::default() }).await;
    assert_eq!(health.len(), 1);
    // Text for a query is data, not SQL.
    let quoted =
        ask(Filter { path: Some(String::from("' OR 1=1 --\\")), ..Filter::default() }).await;
    assert!(quoted.is_empty());
    assert!(ask(Filter { pid: Some(1), ..Filter::default() }).await.is_empty());
    assert_eq!(
        ask(Filter { since: last.start_time, ..Filter::default() }).await,
        std::slice::from_ref(&last)
    );
    assert_eq!(ask(Filter { until: last.start_time, ..Filter::default() }).await, rows);
    let slowest = Filter { min_duration_ns: slow.duration_ns, ..Filter::default() };
    assert_eq!(ask(slowest).await.len(), 1);
    assert_eq!(ask(Filter { limit: 3, ..Filter::default() }).await.len(), 3);
    seeded.stop().await;
}

#[tokio::test]
async fn what_the_store_refuses_is_told() {
    let seeded = Seeded::start().await;
    let mut endpoint = seeded.store().endpoint().clone();
    endpoint.database = String::from("elsewhere");
    let error = request_by_id(&Store::connect(endpoint), "0").await.unwrap_err();
    let Error::Store(underspan_store::Error::Schema { .. }) = &error else { panic!("{error}") };
    seeded.stop().await;
}
