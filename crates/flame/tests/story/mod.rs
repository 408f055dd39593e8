//! A service whose workers wait for one lock while a report is made, its loop sleeps, and one
//! thread's stack cannot be walked to its end.

// Each user takes what it needs.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::sync::Arc;

use underspan_flame::{Counters, Place, RequestSpan, Sample, Thread, Timeline, WaitSpan};
use underspan_model::{Frame, FrameKind, Stack, State};

/// A time in 2026, in nanoseconds since the Unix epoch.
pub const T0: u64 = 1_770_000_000_000_000_000;
const MS: u64 = 1_000_000;

pub fn thread(tid: u32, name: &str) -> Arc<Thread> {
    Arc::new(Thread {
        host: String::from("web-1"),
        pid: 4100,
        tid,
        process: String::from("gunicorn"),
        name: name.to_owned(),
    })
}

/// `python export reports.py:88`, `kernel futex_wait`, the outermost first.
pub fn stack(frames: &[&str]) -> Arc<Stack> {
    let frame = |text: &&str| {
        let mut words = text.split(' ');
        let kind = words.next().and_then(FrameKind::from_name).unwrap();
        let function = words.next().unwrap().to_owned();
        let (file, line) = words.next().unwrap_or(":0").rsplit_once(':').unwrap();
        let file = if file.is_empty() { String::new() } else { format!("/srv/shop/{file}") };
        let module = match kind {
            FrameKind::Kernel => "[kernel]",
            FrameKind::Native => "libpython3.11.so.1.0",
            FrameKind::Python => "",
        };
        Frame { kind, function, file, line: line.parse().unwrap(), module: module.to_owned() }
    };
    Arc::new(Stack { frames: frames.iter().map(frame).collect(), truncated: String::new() })
}

pub fn sample(
    thread: &Arc<Thread>,
    at_ms: u64,
    weight_ms: u64,
    state: State,
    stack: &Arc<Stack>,
) -> Sample {
    Sample {
        thread: Arc::clone(thread),
        start_time: T0 + at_ms * MS,
        duration_ns: weight_ms * MS,
        weight_ns: weight_ms * MS,
        unsure_ns: 0,
        count: 1,
        state,
        wait: None,
        place: Place::Stack(Arc::clone(stack)),
        idle: false,
        request: None,
        counters: None,
    }
}

pub fn samples() -> Vec<Sample> {
    let (main, worker, pool) =
        (thread(4100, "MainThread"), thread(4107, "worker_3"), thread(4110, "pool;<1>"));
    let handler = |line: u32, inner: &[&str]| {
        let export = format!("python export reports.py:{line}");
        let mut frames =
            vec!["native _PyEval_EvalFrameDefault", "python dispatch views.py:14", &export];
        frames.extend(inner);
        stack(&frames)
    };
    let lock = handler(
        88,
        &[
            "native lock_PyThread_acquire_lock",
            "native pthread_cond_timedwait",
            "kernel futex_wait",
        ],
    );
    let dumps = handler(
        91,
        &["python JSONEncoder.encode json/encoder.py:200", "native encoder_listencode_dict"],
    );
    let read = handler(84, &["python Cursor.execute db.py:5", "native recv", "kernel tcp_recvmsg"]);
    let idle = stack(&["python serve loop.py:9", "native epoll_wait", "kernel do_epoll_wait"]);
    let mut cut = (*stack(&["native inflate_fast"])).clone();
    cut.truncated = String::from("no_table");
    let counters = |instructions| {
        Some(Counters {
            cycles: 10_000_000,
            instructions,
            cache_misses: 20_000,
            branch_misses: 900,
        })
    };
    let request = |sample: Sample| Sample { request: Some("00f1a2b3c4d5e6f7".into()), ..sample };
    vec![
        Sample { idle: true, ..sample(&main, 0, 400, State::PollWait, &idle) },
        request(sample(&worker, 5, 180, State::LockWait, &lock)),
        request(sample(&worker, 190, 12, State::Runnable, &lock)),
        request(Sample {
            counters: counters(4_000_000),
            ..sample(&worker, 203, 10, State::Running, &dumps)
        }),
        request(Sample {
            counters: counters(22_000_000),
            ..sample(&worker, 213, 10, State::Running, &dumps)
        }),
        request(sample(&worker, 230, 60, State::NetRead, &read)),
        Sample {
            counters: counters(31_000_000),
            ..sample(&pool, 90, 20, State::Running, &Arc::new(cut))
        },
        Sample { place: Place::NoStack, ..sample(&pool, 120, 8, State::GilWait, &idle) },
        Sample { place: Place::NotSampled, ..sample(&pool, 130, 33, State::Sleep, &idle) },
    ]
}

pub fn timeline() -> Timeline {
    let worker = thread(4107, "worker_3");
    let wait = |at_ms: u64, ms: u64, state| WaitSpan {
        thread: Arc::clone(&worker),
        start_time: T0 + at_ms * MS,
        duration_ns: ms * MS,
        state,
        waker: String::from("worker_1"),
        holder: String::from("worker_1"),
        peer: String::new(),
    };
    let request = |at_ms: u64, ms: u64, path: &str, id: &str| RequestSpan {
        thread: Arc::clone(&worker),
        start_time: T0 + at_ms * MS,
        duration_ns: ms * MS,
        name: format!("GET {path}"),
        request_id: id.to_owned(),
        trace_id: String::from("4bf92f3577b34da6a3ce929d0e0e4736"),
        status: 200,
    };
    Timeline {
        title: String::from("wall, gunicorn"),
        samples: samples(),
        waits: vec![
            wait(5, 192, State::LockWait),
            wait(197, 5, State::Runnable),
            wait(230, 60, State::NetRead),
        ],
        requests: vec![
            request(2, 300, "/export", "00f1a2b3c4d5e6f7"),
            request(4, 10, "/health", "00f1a2b3c4d5e6f8"),
            request(400, 1, "/health", "00f1a2b3c4d5e6f9"),
        ],
    }
}
