//! Spans from the real SDK into the real embedded store, and back.
//!
//! Needs a Python with the store's engine and OpenTelemetry's exporters (`tools/setup.sh python`
//! makes one), named by `UNDERSPAN_PYTHON` or in `.cache/venv`.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use common::{Running, config, free};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;
use underspan_server::{Config, Server};
use underspan_store::embedded::{Embedded, Options};
use underspan_store::{Batch, CORE, MigrateOptions, Store};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn python() -> PathBuf {
    let named = std::env::var_os("UNDERSPAN_PYTHON").map(PathBuf::from);
    named.unwrap_or_else(|| root().join(".cache/venv/bin/python"))
}

struct Stage {
    embedded: Embedded,
    store: Store,
    options: Options,
    folder: TempDir,
}

impl Stage {
    async fn set() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            folder: folder.path().join("store"),
            port: 0,
            python: Some(python()),
            ..Options::default()
        };
        let embedded = Embedded::start(&options, |_| {}).await.unwrap();
        let store = Store::connect(embedded.endpoint().clone());
        let mut components = vec![CORE];
        components.extend(underspan_trackers::components());
        store.migrate(&components, &MigrateOptions::default()).await.unwrap();
        Stage { embedded, store, options, folder }
    }

    async fn serve(&self) -> Running {
        Running::start(config(), self.store.clone()).await
    }

    async fn rows(&self, sql: &str) -> Vec<Value> {
        let bytes = self.store.query_raw(sql, "JSONEachRow").await.unwrap();
        let text = std::str::from_utf8(&bytes).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Exports two spans and returns their trace's id and the parent's.
async fn export(protocol: &str, endpoint: &str) -> (String, String) {
    let script = root().join("crates/server/tests/export.py");
    let output = Command::new(python())
        .arg(script)
        .args([protocol, endpoint])
        .env("PYTHONPATH", root().join("python"))
        .output()
        .await
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    let (trace, span) = stdout.trim().split_once(' ').unwrap();
    (trace.to_owned(), span.to_owned())
}

/// What export.py sends, as the Collector would store it.
async fn check_exported(stage: &Stage, (trace, parent): (String, String)) {
    let sql = format!(
        "SELECT * EXCEPT (Timestamp, Duration, SpanId, `Events.Timestamp`), \
         toUnixTimestamp64Nano(Timestamp) <= toUnixTimestamp64Nano(`Events.Timestamp`[1]) AS order, \
         Duration > 0 AND Duration < 1e10 AS plausible \
         FROM otel_traces WHERE TraceId = '{trace}' ORDER BY Timestamp"
    );
    let rows = stage.rows(&sql).await;
    assert_eq!(rows.len(), 2, "{rows:#?}");
    let (first, child) = (&rows[0], &rows[1]);
    assert_eq!(first["SpanName"], "parent");
    assert_eq!(first["SpanKind"], "Server");
    assert_eq!(first["ParentSpanId"], "");
    assert_eq!(first["StatusCode"], "Unset");
    assert_eq!(first["Events.Name"], json!([]));

    assert_eq!(child["ParentSpanId"], parent);
    assert_eq!(child["SpanKind"], "Client");
    assert_eq!(child["ServiceName"], "shop");
    assert_eq!(child["ResourceAttributes"]["n"], "7");
    assert_eq!(child["ResourceAttributes"]["list"], r#"["a","b"]"#);
    assert_eq!(
        (&child["ScopeName"], &child["ScopeVersion"]),
        (&json!("io.example"), &json!("1.2.3"))
    );
    assert_eq!(child["SpanAttributes"]["ok"], "true");
    assert_eq!(child["SpanAttributes"]["ratio"], "0.5");
    assert_eq!(child["SpanAttributes"]["bytes"], "12");
    assert_eq!(child["SpanAttributes"]["names"], r#"["x","y"]"#);
    assert_eq!((&child["StatusCode"], &child["StatusMessage"]), (&json!("Error"), &json!("boom")));
    assert_eq!(child["Events.Name"], json!(["cache miss"]));
    assert_eq!(child["Events.Attributes"], json!([{"key": "k"}]));
    assert_eq!(child["Links.TraceId"], json!([trace]));
    assert_eq!(child["Links.SpanId"], json!([parent]));
    assert_eq!(child["Links.Attributes"], json!([{"why": "test"}]));
    assert_eq!((&child["order"], &child["plausible"]), (&json!(1), &json!(1)));

    // The stamp reaches the table that joins spans with threads: a main thread's id is its pid.
    let sql = format!("SELECT pid, tid FROM spans_by_thread WHERE trace_id = '{trace}'");
    let stamps = stage.rows(&sql).await;
    assert_eq!(stamps.len(), 2);
    assert!(stamps[0]["pid"].as_u64().unwrap() > 0);
    assert_eq!(stamps[0]["pid"], stamps[0]["tid"]);
}

/// One span in JSON, as another language would write it.
fn json_span() -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    json!({"resourceSpans": [{
        "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "by hand"}}]},
        "scopeSpans": [{"scope": {"name": "curl"}, "spans": [{
            "traceId": "5B8EFFF798038103D269B633813FC60C", "spanId": "EEE19B7EC3C1B174",
            "name": "json", "kind": 3,
            "startTimeUnixNano": now.to_string(), "endTimeUnixNano": (now + 1500).to_string(),
            "attributes": [{"key": "n", "value": {"intValue": "42"}}],
            "status": {"code": 1},
        }]}],
    }]})
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_arrive_in_the_store_as_the_collector_would_write_them() {
    let stage = Stage::set().await;
    let server = stage.serve().await;
    let by_grpc = export("grpc", &server.grpc_url()).await;
    let by_http = export("http", &server.traces_url()).await;
    let post = reqwest::Client::new().post(server.traces_url()).json(&json_span());
    assert_eq!(post.send().await.unwrap().text().await.unwrap(), "{}");
    server.wait_for("underspan_spans_written_total", 5).await;

    check_exported(&stage, by_grpc).await;
    check_exported(&stage, by_http).await;
    let rows = stage
        .rows(
            "SELECT TraceId, SpanId, SpanKind, ServiceName, SpanAttributes, toInt64(Duration) AS d, \
             StatusCode FROM otel_traces WHERE SpanName = 'json'",
        )
        .await;
    let expected = json!({
        "TraceId": "5b8efff798038103d269b633813fc60c", "SpanId": "eee19b7ec3c1b174",
        "SpanKind": "Client", "ServiceName": "by hand", "SpanAttributes": {"n": "42"},
        "StatusCode": "Ok",
    });
    let Value::Object(mut row) = rows[0].clone() else { panic!("{rows:?}") };
    assert!(matches!(row.remove("d"), Some(d) if d == 1500 || d == "1500"));
    assert_eq!(Value::Object(row), expected);
    server.stop().await;
    stage.embedded.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_outlast_a_store_that_is_away() {
    let stage = Stage::set().await;
    let port = stage.store.endpoint().url.rsplit(':').next().unwrap().parse().unwrap();
    let server = stage.serve().await;
    stage.embedded.shutdown().await;

    // Taken into memory, since nothing is known of the store yet, and kept.
    let trace = export("http", &server.traces_url()).await;
    server.wait_for("underspan_store_up", 0).await;
    let post = reqwest::Client::new().post(server.traces_url()).json(&json_span());
    let answer = post.send().await.unwrap();
    assert_eq!(answer.status(), 503);
    assert!(answer.headers().contains_key("retry-after"));
    // The SDK is told to come back, and does, until the store is there again.
    let endpoint = server.grpc_url();
    let late = tokio::spawn(async move { export("grpc", &endpoint).await });
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;

    let options = Options { port, ..stage.options.clone() };
    let embedded = Embedded::start(&options, |_| {}).await.unwrap();
    let late = late.await.unwrap();
    server.wait_for("underspan_spans_written_total", 4).await;
    let stage = Stage { embedded, ..stage };
    check_exported(&stage, trace).await;
    check_exported(&stage, late).await;
    server.stop().await;
    stage.embedded.shutdown().await;
    drop(stage.folder);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_store_refuses_is_told_beside_what_it_has() {
    let stage = Stage::set().await;
    let constraint = "ALTER TABLE otel_traces ADD CONSTRAINT named CHECK SpanName != 'json'";
    stage.store.query_raw(constraint, "Null").await.unwrap();
    let server = stage.serve().await;
    let post = reqwest::Client::new().post(server.traces_url()).json(&json_span());
    assert_eq!(post.send().await.unwrap().status(), 200);
    server.wait_for("underspan_spans_dropped_total{reason=\"store_refused\"}", 1).await;
    // The SDK is held back for a while, then gets through.
    export("grpc", &server.grpc_url()).await;
    server.wait_for("underspan_spans_written_total", 2).await;
    server.stop().await;
    let lost = stage.rows("SELECT tracker, reason, toInt32(count) AS n FROM lost_events").await;
    assert_eq!(lost, [json!({"tracker": "server", "reason": "spans_store_refused", "n": 1})]);
    stage.embedded.shutdown().await;
}

/// A request that waited two seconds in handoff and slept one, from the given moment on.
fn slow_request(start: u64) -> Batch {
    let columns = [
        "host",
        "pid",
        "tid",
        "thread",
        "start_time",
        "duration_ns",
        "handoff_ns",
        "handler_ns",
        "sleep_ns",
        "request_id",
        "trace_id",
        "method",
        "path",
        "status",
        "end",
    ];
    let mut batch = Batch::new("requests", &columns);
    batch
        .row()
        .str("h")
        .u32(10)
        .u32(11)
        .str("worker")
        .time(start)
        .u64(3_000_000_000)
        .u64(2_000_000_000)
        .u64(1_000_000_000)
        .u64(1_000_000_000)
        .str("00000000000000ab")
        .str("5b8efff798038103d269b633813fc60c")
        .str("GET")
        .str("/slow")
        .u16(200)
        .str("sent");
    batch
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_lists_and_explains_requests_and_says_what_is_wrong() {
    let stage = Stage::set().await;
    let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    stage.store.insert(&slow_request(start)).await.unwrap();
    let config = Config { api: free(), otlp_grpc: None, otlp_http: None, ..Config::default() };
    let server = Server::bind(&config, stage.store.clone()).await.unwrap();
    let server = server.with_api(stage.store.clone());
    let url = format!("http://{}/api/requests", server.addresses().api);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve(async {
        let _ = stopped.await;
    }));
    let get = async |path: &str| {
        let answer = reqwest::get(format!("{url}{path}")).await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };

    let (status, requests) = get(&format!("?since={start}&pid=10&path=slow")).await;
    assert_eq!(status, 200, "{requests}");
    assert_eq!(requests.as_array().unwrap().len(), 1);
    assert_eq!(requests[0]["start_time"], start);
    assert_eq!(requests[0]["handoff_ns"], 2_000_000_000_u64);
    assert_eq!(get("?min_duration_ns=3000000001").await, (200, json!([])));
    for id in ["00000000000000ab", "5b8efff798038103d269b633813fc60c"] {
        let (status, explanation) = get(&format!("/{id}/explain")).await;
        assert_eq!(status, 200, "{explanation}");
        assert_eq!(explanation["path"], "/slow");
        assert_eq!(explanation["client_wait_ns"], 3_000_000_000_u64);
    }

    for (path, status, part) in [
        ("?limit=many", 400, "limit"),
        ("?colour=red", 400, "colour"),
        ("/0123456789abcdef/explain", 404, "0123456789abcdef"),
    ] {
        let (got, body) = get(path).await;
        assert_eq!(got, status, "{path}: {body}");
        assert!(body["error"].as_str().unwrap().contains(part), "{body}");
    }
    stage.embedded.shutdown().await;
    assert_eq!(get("").await.0, 503);
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
}
