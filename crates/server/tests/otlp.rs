//! The receivers, over real sockets. The store is a stand-in here, so that a test can decide when it
//! fails and how; `store.rs` uses the real one.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Running, config, request};
use flate2::Compression;
use flate2::write::GzEncoder;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use prost::Message;
use reqwest::{Response, StatusCode};
use tonic::Code;
use tonic_types::StatusExt;
use underspan_server::{Config, Error, Server, SinkError, SpanSink};
use underspan_store::Batch;
use underspan_store::embedded::Holds as _;

/// What the stand-in does with the next batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Mood {
    #[default]
    Takes,
    Down,
    Refuses,
    Hangs,
}

#[derive(Clone, Default)]
struct StandIn(Arc<Mutex<(Mood, u64, u64)>>);

impl StandIn {
    fn becomes(&self, mood: Mood) {
        self.0.lock().unwrap().0 = mood;
    }

    fn spans(&self) -> u64 {
        self.0.lock().unwrap().1
    }

    fn told_of_losses(&self) -> u64 {
        self.0.lock().unwrap().2
    }
}

impl SpanSink for StandIn {
    async fn insert(&self, batch: &Batch) -> Result<(), SinkError> {
        let mood = self.0.lock().unwrap().0;
        let error = |retryable| SinkError { message: format!("{mood:?}"), retryable };
        match mood {
            Mood::Takes => {
                let mut state = self.0.lock().unwrap();
                if batch.table == "lost_events" {
                    // The count is the last column.
                    let count = batch.bytes.last_chunk::<8>().unwrap();
                    state.2 += u64::from_le_bytes(*count);
                } else {
                    state.1 += batch.rows;
                }
                Ok(())
            }
            Mood::Down => Err(error(true)),
            Mood::Refuses => Err(error(false)),
            Mood::Hangs => std::future::pending().await,
        }
    }
}

const PROTOBUF: &str = "application/x-protobuf";
const JSON: &str = "application/json";

async fn post(server: &Running, kind: &str, encoding: Option<&str>, body: Vec<u8>) -> Response {
    let mut post = reqwest::Client::new().post(server.traces_url()).header("content-type", kind);
    if let Some(encoding) = encoding {
        post = post.header("content-encoding", encoding);
    }
    post.body(body).send().await.unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A `google.rpc.Status` in protobuf.
async fn rpc_status(response: Response) -> tonic_types::Status {
    assert_eq!(response.headers()["content-type"], PROTOBUF);
    tonic_types::Status::decode(response.bytes().await.unwrap()).unwrap()
}

#[tokio::test]
async fn what_is_sent_arrives_by_every_way() {
    let store = StandIn::default();
    let server = Running::start(config(), store.clone()).await;
    let body = request(2).encode_to_vec();

    let response = post(&server, PROTOBUF, None, body.clone()).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-type"], PROTOBUF);
    let response = ExportTraceServiceResponse::decode(response.bytes().await.unwrap()).unwrap();
    assert_eq!(response, ExportTraceServiceResponse::default());

    let response = post(&server, PROTOBUF, Some("gzip"), gzip(&body)).await;
    assert_eq!(response.status(), StatusCode::OK);

    let body = serde_json::to_vec(&request(2)).unwrap();
    let response = post(&server, "application/json; charset=utf-8", None, body).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.text().await.unwrap(), "{}");

    let mut client = TraceServiceClient::connect(server.grpc_url()).await.unwrap();
    let response = client.export(request(2)).await.unwrap().into_inner();
    assert_eq!(response, ExportTraceServiceResponse::default());

    server.wait_for("underspan_spans_written_total", 8).await;
    assert_eq!(server.metric("underspan_spans_received_total{transport=\"http\"}").await, 6);
    assert_eq!(server.metric("underspan_spans_received_total{transport=\"grpc\"}").await, 2);
    server.stop().await;
    assert_eq!(store.spans(), 8);
}

#[tokio::test]
async fn stopping_writes_what_is_queued() {
    let store = StandIn::default();
    let server = Running::start(config(), store.clone()).await;
    post(&server, PROTOBUF, None, request(3).encode_to_vec()).await;
    server.stop().await;
    assert_eq!(store.spans(), 3);
}

#[tokio::test]
async fn spans_wait_while_nobody_reads_without_asking_for_them() {
    let store = StandIn::default();
    let server = Server::bind(&config(), store.clone()).await.unwrap();
    let mut flusher = server.flusher();
    let server = Running::serve(server);
    let send = async || {
        let answer = post(&server, PROTOBUF, None, request(3).encode_to_vec()).await;
        assert_eq!(answer.status(), StatusCode::OK);
    };
    flusher.will_be_asked(true);
    send().await;
    // Twice as long as without.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(store.spans(), 0);
    for _ in 0..2 {
        // The second time there is nothing to write.
        tokio::time::timeout(Duration::from_secs(5), flusher.flush()).await.unwrap();
        assert_eq!(store.spans(), 3);
    }
    send().await;
    flusher.will_be_asked(false);
    server.wait_for("underspan_spans_written_total", 6).await;
    assert_eq!(store.spans(), 6);
    server.stop().await;
}

#[tokio::test]
async fn malformed_requests_are_told_what_is_wrong() {
    let server = Running::start(config(), StandIn::default()).await;
    let body = request(3).encode_to_vec();

    let truncated = body[..body.len() - 1].to_vec();
    let gzipped = gzip(&body);
    let half_gzip = gzipped[..gzipped.len() / 2].to_vec();
    for (encoding, body) in [
        (None, truncated),
        (None, b"\xff\xff".to_vec()),
        (Some("gzip"), half_gzip),
        (Some("gzip"), body.clone()),
    ] {
        let response = post(&server, PROTOBUF, encoding, body).await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        let status = rpc_status(response).await;
        assert_eq!(status.code, Code::InvalidArgument as i32);
        assert!(status.message.starts_with("malformed or truncated OTLP: "), "{}", status.message);
    }

    for body in [r#"{"resourceSpans": [{"#, "[]", r#"{"resourceSpans": 1}"#, "\u{0}"] {
        let response = post(&server, JSON, None, body.into()).await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{body}");
        assert_eq!(response.headers()["content-type"], JSON);
        let status: serde_json::Value = response.json().await.unwrap();
        assert_eq!(status["code"], 3);
        assert!(status["message"].as_str().unwrap().starts_with("malformed"), "{status}");
    }

    let deep = format!(r#"{{"resourceSpans": {}"#, "[".repeat(100_000));
    assert_eq!(post(&server, JSON, None, deep.into()).await.status(), StatusCode::BAD_REQUEST);
    assert_eq!(server.metric("underspan_otlp_malformed_requests_total").await, 9);
    assert_eq!(post(&server, "text/plain", None, body.clone()).await.status(), 415);
    assert_eq!(post(&server, PROTOBUF, Some("br"), body).await.status(), 415);
    server.stop().await;
}

/// Sends any message to the trace service's method.
async fn call(server: &Running, message: impl Message + 'static) -> tonic::Status {
    let endpoint = tonic::transport::Endpoint::new(server.grpc_url()).unwrap();
    let mut client = tonic::client::Grpc::new(endpoint.connect().await.unwrap());
    client.ready().await.unwrap();
    let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export".parse().unwrap();
    let codec = tonic_prost::ProstCodec::<_, ExportTraceServiceResponse>::default();
    client.unary(tonic::Request::new(message), path, codec).await.unwrap_err()
}

#[tokio::test]
async fn malformed_and_large_messages_over_grpc_are_refused() {
    let server = Running::start(config(), StandIn::default()).await;
    // A text where the list of resources belongs.
    let text = tonic_types::pb::DebugInfo { stack_entries: vec!["x".into()], detail: "".into() };
    let status = call(&server, text).await;
    assert_eq!(status.code(), Code::Internal);
    assert!(status.message().contains("resource_spans"), "{status}");

    let mut large = request(1);
    large.resource_spans[0].schema_url = "x".repeat(17 << 20);
    let status = call(&server, large).await;
    assert_eq!(status.code(), Code::OutOfRange);
    server.stop().await;
}

#[tokio::test]
async fn large_requests_are_refused_before_they_fill_the_memory() {
    let server = Running::start(config(), StandIn::default()).await;
    let zeros = vec![0; 17 << 20];
    for (encoding, body) in [(Some("gzip"), gzip(&zeros)), (None, zeros)] {
        let response = post(&server, PROTOBUF, encoding, body).await;
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert!(rpc_status(response).await.message.contains("16 MiB"));
    }
    server.stop().await;
}

#[tokio::test]
async fn rejected_spans_are_named_in_the_answer() {
    let server = Running::start(config(), StandIn::default()).await;
    let mut request = request(3);
    request.resource_spans[0].scope_spans[0].spans[1].trace_id.pop();

    let response = post(&server, PROTOBUF, None, request.encode_to_vec()).await;
    assert_eq!(response.status(), StatusCode::OK);
    let response = ExportTraceServiceResponse::decode(response.bytes().await.unwrap()).unwrap();
    assert_eq!(response.partial_success.unwrap().rejected_spans, 1);

    let body = serde_json::to_vec(&request).unwrap();
    let response: serde_json::Value = post(&server, JSON, None, body).await.json().await.unwrap();
    assert_eq!(response["partialSuccess"]["rejectedSpans"], "1");
    assert!(response["partialSuccess"]["errorMessage"].as_str().unwrap().contains("16 bytes"));

    let mut client = TraceServiceClient::connect(server.grpc_url()).await.unwrap();
    let response = client.export(request).await.unwrap().into_inner();
    assert_eq!(response.partial_success.unwrap().rejected_spans, 1);
    server.wait_for("underspan_spans_written_total", 6).await;
    assert_eq!(server.metric("underspan_spans_rejected_total{reason=\"bad_id\"}").await, 3);
    server.stop().await;
}

#[tokio::test]
async fn while_the_store_is_down_senders_keep_their_spans() {
    let store = StandIn::default();
    store.becomes(Mood::Down);
    let server = Running::start(config(), store.clone()).await;
    let body = request(2).encode_to_vec();

    // The first ones are taken: nothing is known of the store yet. They are kept until it is up.
    assert_eq!(post(&server, PROTOBUF, None, body.clone()).await.status(), StatusCode::OK);
    server.wait_for("underspan_store_up", 0).await;

    let response = post(&server, PROTOBUF, None, body.clone()).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let seconds: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=10).contains(&seconds));
    let status = rpc_status(response).await;
    assert_eq!(status.code, Code::Unavailable as i32);
    assert!(status.message.contains("Down"), "{}", status.message);

    let mut client = TraceServiceClient::connect(server.grpc_url()).await.unwrap();
    let status = client.export(request(1)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let retry = status.get_details_retry_info().unwrap().retry_delay.unwrap();
    assert!(retry >= Duration::from_secs(1));

    let health = format!("http://{}/health", server.addresses.api);
    assert_eq!(reqwest::get(&health).await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);

    store.becomes(Mood::Takes);
    server.wait_for("underspan_store_up", 1).await;
    assert_eq!(post(&server, PROTOBUF, None, body).await.status(), StatusCode::OK);
    server.wait_for("underspan_spans_written_total", 4).await;
    assert_eq!(server.metric("underspan_spans_refused_total{reason=\"store_down\"}").await, 3);
    assert_eq!(reqwest::get(&health).await.unwrap().status(), StatusCode::OK);
    server.stop().await;
    assert_eq!(store.spans(), 4);
}

#[tokio::test]
async fn a_store_that_comes_back_while_the_server_ends_gets_what_was_queued() {
    let store = StandIn::default();
    store.becomes(Mood::Down);
    let server = Running::start(config(), store.clone()).await;
    post(&server, PROTOBUF, None, request(2).encode_to_vec()).await;
    server.wait_for("underspan_store_up", 0).await;
    let comes_back = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        store.becomes(Mood::Takes);
    };
    tokio::join!(server.stop(), comes_back);
    assert_eq!(store.spans(), 2);
}

/// How long a server takes to end with two spans that the store does not take.
async fn time_to_end(mood: Mood, hurry: Option<Duration>) -> Duration {
    let store = StandIn::default();
    store.becomes(mood);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let mut server = Server::bind(&config(), store.clone()).await.unwrap();
    if let Some(after) = hurry {
        server = server.with_hurry(async move { tokio::time::sleep(after).await });
    }
    let addresses = server.addresses();
    let serving = tokio::spawn(server.serve(async {
        let _ = stopped.await;
    }));
    let server = Running { addresses, stop, server: serving };
    assert_eq!(post(&server, PROTOBUF, None, request(2).encode_to_vec()).await.status(), 200);
    // The batch is on its way to the store.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let start = std::time::Instant::now();
    server.stop().await;
    assert_eq!(store.spans(), 0);
    start.elapsed()
}

#[tokio::test]
async fn a_store_that_takes_nothing_does_not_keep_the_server_from_ending() {
    let within = |from, to| Duration::from_secs(from)..Duration::from_secs(to);
    let times = tokio::join!(
        time_to_end(Mood::Hangs, None),
        // It is known to be away, so less is to be hoped for.
        time_to_end(Mood::Down, None),
        // Hurry begins once the server is told to stop.
        time_to_end(Mood::Hangs, Some(Duration::from_secs(1))),
        time_to_end(Mood::Down, Some(Duration::ZERO)),
    );
    assert!(within(9, 13).contains(&times.0), "{times:?}");
    assert!(within(4, 8).contains(&times.1), "{times:?}");
    assert!(within(1, 4).contains(&times.2), "{times:?}");
    assert!(times.3 < Duration::from_secs(3), "{times:?}");
}

#[tokio::test]
async fn rows_the_store_refuses_for_good_are_counted_and_senders_held_back() {
    let store = StandIn::default();
    store.becomes(Mood::Refuses);
    let server = Running::start(config(), store.clone()).await;
    let body = request(2).encode_to_vec();
    assert_eq!(post(&server, PROTOBUF, None, body.clone()).await.status(), StatusCode::OK);
    server.wait_for("underspan_spans_dropped_total{reason=\"store_refused\"}", 2).await;
    assert_eq!(post(&server, PROTOBUF, None, body.clone()).await.status(), 503);
    store.becomes(Mood::Takes);
    server.wait_for("underspan_store_up", 1).await;
    assert_eq!(post(&server, PROTOBUF, None, body).await.status(), StatusCode::OK);
    server.stop().await;
    assert_eq!((store.spans(), store.told_of_losses()), (2, 2));
}

#[tokio::test]
async fn a_full_queue_asks_senders_to_come_back() {
    let store = StandIn::default();
    store.becomes(Mood::Hangs);
    let server = Running::start(Config { max_queued_spans: 10, ..config() }, store).await;
    let body = request(6).encode_to_vec();
    assert_eq!(post(&server, PROTOBUF, None, body.clone()).await.status(), StatusCode::OK);
    let response = post(&server, PROTOBUF, None, body).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(rpc_status(response).await.code, Code::ResourceExhausted as i32);

    let mut client = TraceServiceClient::connect(server.grpc_url()).await.unwrap();
    let status = client.export(request(6)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.get_details_retry_info().is_some());
    assert_eq!(server.metric("underspan_spans_queued").await, 6);
    assert_eq!(server.metric("underspan_spans_refused_total{reason=\"queue_full\"}").await, 12);
    // A store that hangs does not keep the server from ending.
    server.stop().await;
}

#[tokio::test]
async fn a_port_in_use_is_named_with_the_way_out() {
    let server = Running::start(config(), StandIn::default()).await;
    let taken = server.addresses.otlp_grpc;
    let second = Config { otlp_grpc: taken, ..config() };
    let error = Server::bind(&second, StandIn::default()).await.err().unwrap();
    assert!(matches!(error, Error::PortInUse { .. }));
    let message = error.to_string();
    assert!(message.contains(&taken.unwrap().port().to_string()), "{message}");
    assert!(message.contains("--otlp-grpc"), "{message}");
    server.stop().await;
}
