//! `underspan diff`, run as a user runs it, on requests of a fix that is known.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::process::{Command, Output};
use std::time::{SystemTime, UNIX_EPOCH};

use common::empty_store;
use serde_json::{Value, json};
use tempfile::TempDir;
use underspan_store::embedded::Embedded;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

struct Service {
    embedded: Embedded,
    folder: TempDir,
    /// When it was repaired: a minute of requests before, a minute after.
    fixed: u64,
}

impl Service {
    async fn start() -> Service {
        let (embedded, store, folder) = empty_store().await;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let fixed = (now.as_secs() - 300) * SECOND;
        let mut lines = String::new();
        for i in 0..200 {
            // One request to each route every 0.6 s: 100 of each on either side.
            let after = i >= 100;
            let start = fixed - 60 * SECOND + i * 600 * MS;
            for row in [
                // A lock held for 180 ms went away; each needs i microseconds more than the last.
                request(start, "/export", 20 * MS + i * 1000, if after { 0 } else { 180 * MS }, 0),
                // A queue for threads became shorter by half.
                request(start + MS, "/list", 10 * MS, 0, if after { 15 * MS } else { 30 * MS }),
            ] {
                lines += &format!("{row}\n");
            }
        }
        lines += &format!("{}\n", request(fixed + SECOND, "/new", 5 * MS, 0, 0));
        let statement = "INSERT INTO requests FORMAT JSONEachRow".to_owned();
        let mut insert = store.client().insert_formatted_with(statement);
        insert.send(lines.into()).await.unwrap();
        insert.end().await.unwrap();
        Service { embedded, folder, fixed }
    }

    fn diff(&self, arguments: &[&str]) -> Output {
        let time = |unix_ns: u64| {
            let time = jiff::Timestamp::from_second((unix_ns / SECOND) as i64).unwrap();
            time.to_string()
        };
        let before = format!("{}..{}", time(self.fixed - 60 * SECOND), time(self.fixed));
        let after = format!("{}..{}", time(self.fixed), time(self.fixed + 60 * SECOND));
        Command::new(env!("CARGO_BIN_EXE_underspan"))
            .args(["diff", "--before", &before, "--after", &after])
            .args(arguments)
            .env("UNDERSPAN_DATA", self.folder.path())
            .env_remove("UNDERSPAN_STORE")
            .output()
            .unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.diff(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn request(start: u64, path: &str, running: u64, lock: u64, handoff: u64) -> Value {
    json!({
        "host": "web-1", "pid": 4100, "tid": 4101, "process": "gunicorn", "thread": "worker_1",
        "start_time": format!("{}.{:09}", start / SECOND, start % SECOND),
        "duration_ns": handoff + running + lock, "handoff_ns": handoff,
        "handler_ns": running + lock, "running_ns": running, "lock_wait_ns": lock,
        "request_id": format!("{start:016x}"), "method": "GET", "path": path, "status": 200,
        "end": "sent",
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fix_is_told_by_route_and_by_cause() {
    let service = Service::start().await;
    let all = service.json(&[]);
    assert_eq!((&all["before"]["requests"], &all["after"]["requests"]), (&json!(200), &json!(201)));
    assert_eq!(all["before"]["requests_per_second"], json!(200.0 / 60.0));
    assert_eq!(
        (&all["before"]["is_cut"], &all["before"]["lost_events"]),
        (&json!(false), &json!(0))
    );
    // Of 200 requests half waited for the lock: 90 ms of each, on average.
    let lock = json!({ "cause": "lock_wait", "before_ns": 90 * MS, "after_ns": 0 });
    assert_eq!(all["causes"][0], lock);
    // The 0th to the 99th: 200 ms and i microseconds. The 95th of 100 is number 94.
    let export = &all["routes"][0];
    assert_eq!(export["route"], "GET /export");
    assert_eq!(export["before"]["p95_ns"], 200 * MS + 94_000);
    assert_eq!(export["after"]["p95_ns"], 20 * MS + 194_000);
    assert_eq!(
        export["causes"][0],
        json!({ "cause": "lock_wait", "before_ns": 180 * MS, "after_ns": 0 })
    );
    let list = &all["routes"][1];
    assert_eq!(
        list["causes"][0],
        json!({ "cause": "handoff", "before_ns": 30 * MS, "after_ns": 15 * MS })
    );
    assert_eq!(
        (&all["routes"][2]["route"], &all["routes"][2]["before"]["requests"]),
        (&json!("GET /new"), &json!(0))
    );

    let one = service.json(&["--route", "get /list"]);
    assert_eq!(one["routes"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&one["before"]["max_ns"], &one["after"]["max_ns"]),
        (&json!(40 * MS), &json!(25 * MS))
    );

    let text = String::from_utf8(service.diff(&[]).stdout).unwrap();
    let line = |name: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("lock_wait"), "lock_wait 90.0 ms 0.0 ms gone");
    assert_eq!(line("handoff"), "handoff 15.0 ms 7.5 ms -50.2 %");
    assert!(text.contains("200 requests, 3.3 a second"), "{text}");
    assert!(text.contains("only after: 1 request"), "{text}");

    // What cannot be answered is told.
    for (arguments, status, error) in [
        (&["--route", "/nothing"][..], 1, "no requests in --before"),
        (&["--pid", "1"], 1, "no requests in --before"),
    ] {
        let output = service.diff(arguments);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {told}");
        assert!(told.contains(error), "{arguments:?}: {told}");
    }
    for (before, status, error) in
        [("10m", 2, "give a range as FROM..UNTIL"), ("5m..6m", 2, "a time range is empty")]
    {
        let output = Command::new(env!("CARGO_BIN_EXE_underspan"))
            .args(["diff", "--before", before, "--after", "5m.."])
            .env("UNDERSPAN_DATA", service.folder.path())
            .env_remove("UNDERSPAN_STORE")
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{before}: {told}");
        assert!(told.contains(error), "{before}: {told}");
    }
    service.embedded.shutdown().await;
}
