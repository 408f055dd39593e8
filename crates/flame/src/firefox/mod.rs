//! The processed profile format of profiler.firefox.com: samples, waits and requests by thread.
//!
//! The format has a version; the viewer brings older ones up to date. This is the one that stable
//! exporters write, from before tables were shared between threads.

mod table;

use serde::Serialize;
use serde_json::json;

use crate::kind::is_on_cpu;
use crate::sample::{Sample, Thread};
use crate::timeline::Timeline;
use crate::tree::Grouping;
use table::{Category, Frames, Funcs, Markers, Samples, Stacks, Strings};

const VERSION: u32 = 55;

/// The file's text.
///
/// # Errors
///
/// Those of the JSON writer.
pub fn firefox(timeline: &Timeline) -> Result<Vec<u8>, serde_json::Error> {
    let begin = timeline.begin();
    let end = ms(timeline.end().saturating_sub(begin));
    let threads = timeline.threads();
    let mut mains: Vec<u32> = Vec::new();
    let threads = threads.iter().map(|thread| {
        let is_main = !mains.contains(&thread.pid)
            && (thread.tid == thread.pid || !threads.iter().any(|t| t.tid == thread.pid));
        if is_main {
            mains.push(thread.pid);
        }
        one_thread(timeline, thread, is_main, begin, end)
    });
    let threads: Vec<_> = threads.collect();
    serde_json::to_vec(&Profile { meta: meta(timeline, begin), libs: [], threads })
}

#[derive(Serialize)]
struct Profile {
    meta: serde_json::Value,
    libs: [(); 0],
    threads: Vec<ThreadTables>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ThreadTables {
    name: String,
    is_main_thread: bool,
    process_type: &'static str,
    process_name: String,
    process_startup_time: f64,
    process_shutdown_time: Option<f64>,
    register_time: f64,
    unregister_time: Option<f64>,
    paused_ranges: [(); 0],
    pid: String,
    tid: u32,
    show_markers_in_timeline: bool,
    string_array: Strings,
    func_table: Funcs,
    frame_table: Frames,
    stack_table: Stacks,
    samples: Samples,
    markers: Markers,
    native_symbols: serde_json::Value,
    resource_table: serde_json::Value,
}

fn one_thread(
    timeline: &Timeline,
    thread: &Thread,
    is_main: bool,
    begin: u64,
    end: f64,
) -> ThreadTables {
    let mut tables = ThreadTables {
        name: if is_main { thread.process.clone() } else { thread.name.clone() },
        is_main_thread: is_main,
        process_type: "default",
        process_name: thread.process.clone(),
        process_startup_time: 0.0,
        process_shutdown_time: Some(end),
        register_time: 0.0,
        unregister_time: Some(end),
        paused_ranges: [],
        pid: thread.pid.to_string(),
        tid: thread.tid,
        show_markers_in_timeline: true,
        string_array: Strings::default(),
        func_table: Funcs::default(),
        frame_table: Frames::default(),
        stack_table: Stacks::default(),
        samples: Samples { weight_type: "tracing-ms", ..Samples::default() },
        markers: Markers::default(),
        native_symbols: json!({
            "length": 0, "address": [], "functionSize": [], "libIndex": [], "name": [],
        }),
        resource_table: json!({ "length": 0, "lib": [], "name": [], "host": [], "type": [] }),
    };
    let mut samples: Vec<_> =
        timeline.samples.iter().filter(|sample| *sample.thread == *thread).collect();
    samples.sort_by_key(|sample| sample.start_time);
    for sample in samples {
        tables.push_sample(sample, begin);
    }
    tables.push_markers(timeline, thread, begin);
    tables
}

impl ThreadTables {
    fn push_sample(&mut self, sample: &Sample, begin: u64) {
        let path = Grouping { states: true, ..Grouping::default() }.path(sample);
        let stack = self.stack_table.index(
            path,
            &mut self.frame_table,
            &mut self.func_table,
            &mut self.string_array,
        );
        self.samples.length += 1;
        self.samples.stack.push(stack);
        self.samples.time.push(ms(sample.start_time.saturating_sub(begin)));
        self.samples.weight.push(ms(sample.weight_ns));
        let on_cpu = if is_on_cpu(sample.state) { sample.weight_ns / 1000 } else { 0 };
        self.samples.thread_cpu_delta.push(on_cpu);
    }

    fn push_markers(&mut self, timeline: &Timeline, thread: &Thread, begin: u64) {
        let span = |start: u64, duration: u64| {
            let from = start.saturating_sub(begin);
            (ms(from), ms(from.saturating_add(duration)))
        };
        for request in timeline.requests.iter().filter(|request| *request.thread == *thread) {
            let (from, until) = span(request.start_time, request.duration_ns);
            let data = json!({
                "type": "Request", "route": request.name, "status": request.status,
                "request_id": request.request_id, "trace_id": request.trace_id,
            });
            let name = self.string_array.index("Request");
            self.markers.push(name, 0, from, until, data);
        }
        for wait in timeline.waits.iter().filter(|wait| *wait.thread == *thread) {
            let (from, until) = span(wait.start_time, wait.duration_ns);
            let (category, _) = table::state_category(wait.state);
            let name = self.string_array.index(wait.state.name());
            self.markers.push(name, category, from, until, table::wait_data(wait));
        }
    }
}

fn meta(timeline: &Timeline, begin: u64) -> serde_json::Value {
    let categories: Vec<Category> = table::categories();
    let field = |key: &str, label: &str, format: &str| json!({ "key": key, "label": label, "format": format, "searchable": true });
    json!({
        "version": 24,
        "preprocessedProfileVersion": VERSION,
        "product": timeline.title,
        "startTime": begin as f64 / 1e6,
        "interval": 10.0,
        "processType": 0,
        "debug": false,
        "stackwalk": 1,
        "symbolicated": true,
        "usesOnlyOneStackType": true,
        "sourceCodeIsNotOnSearchfox": true,
        "pausedRanges": [],
        "extensions": { "length": 0, "baseURL": [], "id": [], "name": [] },
        "sampleUnits": { "time": "ms", "eventDelay": "ms", "threadCPUDelta": "µs" },
        "categories": categories,
        "markerSchema": [
            {
                "name": "Request",
                "display": ["marker-chart", "marker-table", "timeline-overview"],
                "chartLabel": "{marker.data.route}",
                "tooltipLabel": "{marker.data.route}",
                "tableLabel": "{marker.data.route}",
                "fields": [
                    field("route", "Route", "string"),
                    field("status", "Status", "integer"),
                    field("request_id", "Request", "string"),
                    field("trace_id", "Trace", "string"),
                ],
            },
            {
                "name": "Wait",
                "display": ["marker-chart", "marker-table"],
                "chartLabel": "{marker.name}",
                "tooltipLabel": "{marker.data.state}",
                "tableLabel": "{marker.data.state}",
                "fields": [
                    field("state", "State", "string"),
                    field("waker", "Ended by", "string"),
                    field("holder", "Held by", "string"),
                    field("peer", "Peer", "string"),
                ],
            },
        ],
    })
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}
