//! `underspan flame`, run as a user runs it, on rows of a service with known times.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::path::Path;
use std::process::{Command, Output};
use std::time::{SystemTime, UNIX_EPOCH};

use common::empty_store;
use serde_json::{Value, json};
use tempfile::TempDir;
use underspan_store::Store;
use underspan_store::embedded::Embedded;

const MS: u64 = 1_000_000;

struct Service {
    embedded: Embedded,
    store: Store,
    folder: TempDir,
    /// When its rows begin.
    t0: u64,
}

impl Service {
    async fn start() -> Service {
        let (embedded, store, folder) = empty_store().await;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Service { embedded, store, folder, t0: (now.as_secs() - 60) * 1000 * MS }
    }

    async fn insert(&self, table: &str, rows: &[Value]) {
        let mut lines = String::new();
        for row in rows {
            let mut row = row.clone();
            let start = row["start_time"].as_u64().unwrap();
            let (seconds, ns) = (start / 1_000_000_000, start % 1_000_000_000);
            row["start_time"] = json!(format!("{seconds}.{ns:09}"));
            row["host"] = json!("web-1");
            row["pid"] = json!(4100);
            lines += &format!("{row}\n");
        }
        let statement = format!("INSERT INTO {table} FORMAT JSONEachRow");
        let mut insert = self.store.client().insert_formatted_with(statement);
        insert.send(lines.into()).await.unwrap();
        insert.end().await.unwrap();
    }

    /// Twenty requests: nineteen compute 10 ms each, the last waits 180 ms for a lock besides. A
    /// thread of the pool waits for work all the time.
    async fn fill(&self) {
        let stack = |id: u64, file: &str, functions: &[&str], lines: &[u32], kinds: &[&str]| {
            json!({ "stack_id": id, "start_time": self.t0, "kinds": kinds, "functions": functions,
                    "files": vec![file; functions.len()], "lines": lines,
                    "modules": vec![""; functions.len()], "truncated": "" })
        };
        let (own, pool) = ("/srv/reports.py", "/usr/lib/python3.12/concurrent/futures/thread.py");
        let stacks = [
            stack(1, own, &["export", "dumps"], &[91, 12], &["python", "python"]),
            stack(2, own, &["export", "futex_wait"], &[88, 0], &["python", "kernel"]),
            stack(3, pool, &["_worker", "futex_wait"], &[81, 0], &["python", "kernel"]),
        ];
        self.insert("stacks", &stacks).await;
        let (mut requests, mut ticks) = (Vec::new(), Vec::new());
        for i in 0..20 {
            let start = self.t0 + i * 300 * MS;
            let lock = if i == 19 { 180 * MS } else { 0 };
            requests.push(json!({
                "tid": 4101, "start_time": start, "duration_ns": 10 * MS + i + lock,
                "handler_ns": 10 * MS + i + lock, "request_id": format!("{:016x}", 0xe0 + i),
                "method": "GET", "path": "/export", "process": "gunicorn", "thread": "worker_1",
                "running_ns": 10 * MS + i, "lock_wait_ns": lock, "status": 200, "end": "sent",
            }));
            ticks.push(json!({
                "tid": 4101, "start_time": start + MS, "duration_ns": 10 * MS, "thread": "worker_1",
                "state": "running", "stack_id": 1,
            }));
        }
        self.insert("requests", &requests).await;
        self.insert("on_cpu", &ticks).await;
        let wait = |tid: u32, thread: &str, start: u64, ns: u64, stack: u64, in_request: u8| {
            json!({ "tid": tid, "thread": thread, "start_time": start, "duration_ns": ns,
                    "weight_ns": ns, "state": "lock_wait", "stack_id": stack, "in_request": in_request })
        };
        let waits = [
            wait(4101, "worker_1", self.t0 + 19 * 300 * MS + 2 * MS, 180 * MS, 2, 1),
            wait(4102, "pool_0", self.t0, 6000 * MS, 3, 0),
        ];
        self.insert("off_cpu", &waits).await;
        let states = |tid: u32, thread: &str, cells: Value| {
            let mut row = json!({ "tid": tid, "thread": thread, "process": "gunicorn",
                "start_time": self.t0, "duration_ns": 6000 * MS });
            row.as_object_mut().unwrap().extend(cells.as_object().unwrap().clone());
            row
        };
        let rows = [
            states(
                4101,
                "worker_1",
                json!({ "running_ns": 200 * MS, "lock_wait_ns": 180 * MS, "poll_wait_ns": 5620 * MS }),
            ),
            states(4102, "pool_0", json!({ "lock_wait_ns": 6000 * MS })),
        ];
        self.insert("thread_states", &rows).await;
    }

    fn flame(&self, arguments: &[&str]) -> Output {
        underspan(self.folder.path(), arguments)
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.flame(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn underspan(data: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_underspan"))
        .arg("flame")
        .args(arguments)
        .env("UNDERSPAN_DATA", data)
        .env_remove("UNDERSPAN_STORE")
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn pictures_of_a_service() {
    let service = Service::start().await;

    // Nothing was watched yet: it says so.
    let empty = service.flame(&[]);
    assert_eq!(empty.status.code(), Some(1));
    let error = stderr(&empty);
    assert!(error.contains("no samples of kind wall from"), "{error}");
    assert!(
        error.contains("on_cpu has no rows, off_cpu has no rows, thread_states has no rows"),
        "{error}"
    );

    service.fill().await;
    let wall = service.json(&["--idle"]);
    assert_eq!(wall["total_ns"], 12_000 * MS);
    assert_eq!(wall["states"]["running_ns"], 200 * MS);
    // No sample was taken of what the worker waited for between requests.
    assert_eq!(wall["not_sampled_ns"], 5620 * MS);
    assert_eq!(wall["samples"], 22);
    let top = &wall["top"][0];
    assert_eq!(
        (&top["function"], &top["line"], &top["ns"]),
        (&json!("dumps"), &json!(12), &json!(200 * MS))
    );

    // A pool's own queue is idle; the lock of a request is not.
    let lock = service.json(&["--kind", "lock"]);
    assert_eq!(lock["idle_ns"], 6000 * MS);
    assert_eq!(lock["top"][0]["function"], "export");
    assert_eq!(lock["top"][0]["line"], 88);

    let slowest = format!("{:016x}", 0xe0 + 19);
    let one = service.json(&["--request", &slowest]);
    assert_eq!(one["requests"], 1);
    assert_eq!(one["total_ns"], 190 * MS + 19);
    let route = service.json(&["--route", "get /export", "--kind", "cpu"]);
    assert_eq!(route["requests"], 20);
    assert_eq!(route["total_ns"], 200 * MS + (0..20).sum::<u64>());

    let file = service.folder.path().join("slow.folded");
    let slow =
        service.json(&["--slow", "p95", "--vs", "fast", "p50", "-o", file.to_str().unwrap()]);
    assert_eq!((&slow["per"], &slow["before"]["requests"]), (&json!("request"), &json!(9)));
    assert_eq!(
        (&slow["after"]["requests"], &slow["output"]["format"]),
        (&json!(1), &json!("folded"))
    );
    let folded = std::fs::read_to_string(&file).unwrap();
    assert!(
        folded.contains(
            "gunicorn;export (reports.py);dumps (reports.py);[running] 10000004 10000019\n"
        ),
        "{folded}"
    );
    assert!(folded.contains(";futex_wait_[k];[lock_wait] 0 180000000\n"), "{folded}");

    // Nothing is coloured by counters that nobody read.
    let counted = service.folder.path().join("counted.svg");
    for (by, said) in [("branch-misses", true), ("state", false)] {
        let options = ["--colour-by", by, "-o", counted.to_str().unwrap()];
        let output = service.flame(&options);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let picture = std::fs::read_to_string(&counted).unwrap();
        assert_eq!(picture.contains("no hardware counters were read"), said, "{by}");
        assert_eq!(picture.contains("not counted: waits, or no PMU"), said, "{by}");
    }

    // Every format is written, by its ending or by name, to a file or to standard output.
    for (name, start) in [
        ("out.svg", &b"<?xml"[..]),
        ("out.pb.gz", b"\x1f\x8b"),
        ("out.speedscope.json", b"{\"$schema\""),
        ("out.firefox.json", b"{\"meta\""),
        ("out.pftrace", b"\n"),
    ] {
        let file = service.folder.path().join(name);
        let output = service.flame(&["-o", file.to_str().unwrap()]);
        assert!(output.status.success(), "{}", stderr(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            text.contains("200.0 ms  dumps (reports.py:12)") && text.contains("wrote "),
            "{text}"
        );
        assert!(std::fs::read(&file).unwrap().starts_with(start), "{name}");
    }
    let folded = service.flame(&["--format", "folded", "--kind", "cpu", "--lines"]);
    assert_eq!(
        folded.stdout,
        b"gunicorn;export (reports.py:91);dumps (reports.py:12);[running] 200000000\n"
    );
    assert!(stderr(&folded).contains("Time on a CPU"));

    // What cannot be answered is told.
    let half = format!("@{}", service.t0);
    for (arguments, status, error) in [
        (&["--request", "00000000000000ff"][..], 3, "unknown request 00000000000000ff"),
        (&["--trace", "ff"], 3, "unknown trace ff"),
        (&["--route", "/nothing"], 1, "no requests in the range that fit"),
        (&["--since", "10m", "--until", "20m"], 2, "the time range is empty"),
        (&["--since", &half], 2, "invalid value"),
        (&["--slow", "p99.9"], 1, "too few to tell slow"),
        (&["--slow", "p95", "-o", "x.pftrace"], 2, "perfetto cannot hold a difference"),
        (&["-o", "picture.png"], 2, "the ending says no format"),
        (&["--kind", "gil"], 1, "no samples of kind gil"),
        (&["-o", "/nonexistent/x.svg"], 1, "cannot write /nonexistent/x.svg"),
    ] {
        let output = service.flame(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(error), "{arguments:?}: {}", stderr(&output));
    }
    service.embedded.shutdown().await;
}
