//! An embedded store with Underspan's tables, and stories put into it.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use underspan_explain::Evidence;
use underspan_model::{Class, Frame, Stack};
use underspan_store::embedded::{Embedded, Options};
use underspan_store::{CORE, MigrateOptions, Store};

use crate::common;

const TABLES: [&str; 21] = [
    "tcp_loss",
    "tcp_connect",
    "tcp_accept",
    "tcp_listener",
    "throttle",
    "netstack",
    "critical_path",
    "stacks",
    "off_cpu",
    "on_cpu",
    "loop_stall",
    "requests",
    "waits",
    "gc_pause",
    "gil_wait",
    "thread_states",
    "lost_events",
    "processes",
    "otel_traces",
    "otel_traces_trace_id_ts",
    "spans_by_thread",
];

pub(crate) struct Seeded {
    embedded: Embedded,
    folder: TempDir,
}

impl Seeded {
    pub(crate) async fn start() -> Seeded {
        let folder = TempDir::new().unwrap();
        let python = std::env::var_os("UNDERSPAN_PYTHON")
            .expect("set UNDERSPAN_PYTHON to a Python that has underspan[store] installed");
        let options = Options {
            folder: folder.path().to_owned(),
            port: 0,
            python: Some(python.into()),
            memory_limit_mib: Some(1024),
        };
        let embedded = Embedded::start(&options, |_| {}).await.unwrap();
        let seeded = Seeded { embedded, folder };
        let mut components = vec![CORE];
        components.extend(underspan_trackers::components());
        seeded.store().migrate(&components, &MigrateOptions::default()).await.unwrap();
        seeded
    }

    pub(crate) fn store(&self) -> Store {
        Store::connect(self.embedded.endpoint().clone())
    }

    /// Stores all rows of a story, moved to the last minute: rows older than their table's TTL would
    /// be dropped at once. Returns the story as it was stored.
    pub(crate) async fn put(&self, story: &Evidence) -> Evidence {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let by = u64::try_from(now).unwrap() - 60_000_000_000 - common::T0;
        let mut moved = story.clone();
        moved.request.iter_mut().chain(&mut moved.siblings).for_each(|r| r.start_time += by);
        moved.spans.iter_mut().for_each(|r| r.start_time += by);
        moved.waits.iter_mut().for_each(|r| r.start_time += by);
        moved.gc_pauses.iter_mut().for_each(|r| r.start_time += by);
        moved.gil_waits.iter_mut().for_each(|r| r.start_time += by);
        moved.thread_states.iter_mut().for_each(|r| r.start_time += by);
        moved.lost.iter_mut().for_each(|r| r.start_time += by);
        moved.samples.iter_mut().for_each(|r| r.start_time += by);
        moved.stalls.iter_mut().for_each(|r| r.start_time += by);
        moved.path.iter_mut().for_each(|r| r.start_time += by);
        moved.losses.iter_mut().for_each(|r| r.start_time += by);
        moved.connects.iter_mut().for_each(|r| r.start_time += by);
        moved.accepts.iter_mut().for_each(|r| r.start_time += by);
        moved.listeners.iter_mut().for_each(|r| r.start_time += by);
        moved.peers.iter_mut().for_each(|r| r.start_time += by);
        moved.upstreams.iter_mut().for_each(|r| r.start_time += by);
        moved.wakers.iter_mut().for_each(|r| r.start_time += by);
        moved.reader_waits.iter_mut().for_each(|r| r.start_time += by);
        moved.counters.iter_mut().for_each(|r| r.start_time += by);
        moved.packets.iter_mut().for_each(|r| r.start_time += by);
        moved.process.iter_mut().for_each(|p| p.started += by);

        let request = moved.request.as_ref().unwrap();
        let requests =
            moved.request.iter().chain(&moved.siblings).chain(&moved.peers).chain(&moved.wakers);
        let requests = requests.chain(&moved.upstreams);
        self.insert("requests", requests).await;
        self.insert("waits", moved.waits.iter().chain(&moved.reader_waits)).await;
        self.insert("tcp_loss", &moved.losses).await;
        self.insert("tcp_connect", &moved.connects).await;
        self.insert("tcp_accept", &moved.accepts).await;
        self.insert("tcp_listener", &moved.listeners).await;
        self.insert("netstack", &moved.packets).await;
        let counters = moved.counters.iter().map(|counter| {
            let mut row = serde_json::to_value(counter).unwrap();
            row["status"] = json!("read");
            row
        });
        self.insert("throttle", counters).await;
        self.insert("gc_pause", &moved.gc_pauses).await;
        self.insert("gil_wait", &moved.gil_waits).await;
        self.insert("thread_states", &moved.thread_states).await;
        self.insert("lost_events", &moved.lost).await;
        self.put_samples(&moved).await;
        let steps = moved.path.iter().map(|step| {
            let mut row = serde_json::to_value(step).unwrap();
            row["host"] = json!(request.host);
            row["request_id"] = json!(request.request_id);
            row
        });
        self.insert("critical_path", steps).await;
        let processes = moved.process.iter().map(|process| {
            let mut row = serde_json::to_value(process).unwrap();
            row["host"] = json!(request.host);
            row["pid"] = json!(request.pid);
            row["start_time"] = json!(process.started);
            row["seen"] = time(request.start_time);
            row
        });
        self.insert("processes", processes).await;
        let spans = moved.spans.iter().map(|span| {
            let mut kind = span.kind.clone();
            kind[..1].make_ascii_uppercase();
            json!({
                "Timestamp": time(span.start_time), "TraceId": span.trace_id, "SpanId": span.span_id,
                "ParentSpanId": span.parent_span_id, "SpanName": span.name, "SpanKind": kind,
                "ServiceName": span.service, "Duration": span.duration_ns,
                "SpanAttributes": {
                    "underspan.pid": span.pid.to_string(), "underspan.tid": span.tid.to_string(),
                },
            })
        });
        self.insert("otel_traces", spans).await;
        moved
    }

    /// Samples and stalls, each with a stack of its own.
    async fn put_samples(&self, story: &Evidence) {
        let mut stacks = Vec::new();
        let mut id = |host: &str, stack: &Stack, start: u64| {
            let of = |each: fn(&Frame) -> Value| stack.frames.iter().map(each).collect::<Vec<_>>();
            stacks.push(json!({
                "host": host, "stack_id": stacks.len() + 1, "start_time": start,
                "kinds": of(|f| json!(f.kind)), "functions": of(|f| json!(f.function)),
                "files": of(|f| json!(f.file)), "lines": of(|f| json!(f.line)),
                "modules": of(|f| json!(f.module)), "truncated": stack.truncated,
            }));
            stacks.len()
        };
        let (mut off_cpu, mut on_cpu, mut stalls) = (Vec::new(), Vec::new(), Vec::new());
        for sample in &story.samples {
            let mut row = serde_json::to_value(sample).unwrap();
            row["stack_id"] = json!(id(&sample.host, &sample.stack, sample.start_time));
            let on = sample.state.class() == Class::Cpu;
            if on {
                // Its row is of the moment at which it was taken.
                row["start_time"] = json!(sample.start_time + sample.duration_ns);
            } else {
                row["waker_stack_id"] =
                    json!(id(&sample.host, &sample.waker_stack, sample.start_time));
            }
            let fields = row.as_object_mut().unwrap();
            fields.retain(|name, _| name != "stack" && name != "waker_stack");
            if on {
                let not =
                    ["weight_ns", "waker_pid", "waker_tid", "waker_thread", "lock_addr", "peer"];
                fields.retain(|name, _| !not.contains(&name.as_str()));
                on_cpu.push(row);
            } else {
                off_cpu.push(row);
            }
        }
        for stall in &story.stalls {
            let mut row = serde_json::to_value(stall).unwrap();
            row["stack_id"] = json!(id(&stall.host, &stall.stack, stall.start_time));
            row.as_object_mut().unwrap().retain(|name, _| name != "stack");
            stalls.push(row);
        }
        self.insert("stacks", stacks).await;
        self.insert("off_cpu", off_cpu).await;
        self.insert("on_cpu", on_cpu).await;
        self.insert("loop_stall", stalls).await;
    }

    pub(crate) async fn insert<T: Serialize>(
        &self,
        table: &str,
        rows: impl IntoIterator<Item = T>,
    ) {
        let mut lines = String::new();
        for row in rows {
            let mut row = serde_json::to_value(row).unwrap();
            if let Some(start) = row.get("start_time").and_then(Value::as_u64) {
                row["start_time"] = time(start);
            }
            lines += &format!("{row}\n");
        }
        if lines.is_empty() {
            return;
        }
        let statement = format!("INSERT INTO {table} FORMAT JSONEachRow");
        let store = self.store();
        let mut insert = store.client().insert_formatted_with(statement);
        insert.send(lines.into()).await.unwrap();
        insert.end().await.unwrap();
    }

    pub(crate) async fn clear(&self) {
        for table in TABLES {
            self.store().query_raw(&format!("TRUNCATE TABLE {table}"), "TSV").await.unwrap();
        }
    }

    /// The host writes into the folder until its end, so the folder goes last.
    pub(crate) async fn stop(self) {
        self.embedded.shutdown().await;
        drop(self.folder);
    }
}

/// As `DateTime64(9)` reads it.
fn time(unix_ns: u64) -> Value {
    json!(format!("{}.{:09}", unix_ns / 1_000_000_000, unix_ns % 1_000_000_000))
}
