//! Evidence as a real service would leave it. The command line's snapshot tests use it too.
#![allow(dead_code, missing_docs, unreachable_pub)]

pub mod network;
mod rows;

pub use rows::*;

use underspan_explain::{Evidence, Process};
use underspan_model::{LoopStall, LostEvents, PathStep, Request, State};

pub const MS: u64 = 1_000_000;
/// 2026-03-02 10:15:00 UTC.
pub const T0: u64 = 1_772_446_500_000_000_000;
pub const PID: u32 = 4100;

const EXPORT: [(&str, &str, u32); 3] = [
    ("Thread.run", "/usr/lib/python3.11/threading.py", 975),
    ("export", "/srv/shop/reports.py", 88),
    ("dumps", "/usr/lib/python3.11/json/__init__.py", 231),
];

/// Waited 180 ms for a lock of the application; the thread that released it was encoding JSON for
/// another request.
pub fn held_lock() -> Evidence {
    let shape = |id, worker, handler, cells| Shape {
        id,
        worker,
        at_ms: 0,
        accept_queue: 0,
        handoff: 0,
        handler,
        cells,
    };
    let slow = request("/cart", &shape(0x30, 1, 200, &[(State::LockWait, 180)]));
    let holder = request("/export", &shape(0x31, 3, 400, &[]));
    let mut waited = wait(&slow, State::LockWait, 10, 180);
    waited.futex_addr = 0x7f00_0000_1000;
    waited.waker_pid = PID;
    waited.waker_tid = holder.tid;
    waited.waker_thread = String::from("ThreadPoolExecutor-0_3");
    let own = acquiring(&[("cart", "/srv/shop/cart.py", 17)]);
    let step = |number, request: &Request, depth, from_ms, ms, kind: &str, state| PathStep {
        pid: request.pid,
        tid: request.tid,
        thread: request.thread.clone(),
        process: String::new(),
        start_time: request.start_time + from_ms * MS,
        duration_ns: ms * MS,
        step: number,
        depth,
        kind: String::from(kind),
        state,
    };
    Evidence {
        path: vec![
            step(0, &slow, 0, 0, 10, "run", State::Running),
            step(1, &holder, 1, 10, 140, "run", State::Running),
            step(2, &holder, 1, 150, 10, "wait", State::GilWait),
            step(3, &holder, 1, 160, 30, "run", State::Running),
            step(4, &slow, 0, 190, 10, "run", State::Running),
        ],
        samples: vec![
            sample(&slow, slow.tid, State::LockWait, 10, 180, own),
            sample(&holder, holder.tid, State::Running, 0, 150, python(&EXPORT)),
            sample(&holder, holder.tid, State::GilWait, 150, 10, python(&EXPORT)),
            // Before and after the wait it was elsewhere.
            sample(
                &holder,
                holder.tid,
                State::Sleep,
                200,
                200,
                python(&[("idle", "/srv/a.py", 1)]),
            ),
        ],
        waits: vec![waited],
        siblings: vec![holder],
        process: process(),
        request: Some(slow),
        ..Evidence::default()
    }
}

/// Every worker waits for the same peer's answer, each in one long wait.
pub fn stuck_pool() -> Evidence {
    let mut evidence = queue();
    let request = evidence.request.clone().unwrap_or_default();
    for worker in 0..4 {
        let mut stuck = wait(&request, State::NetRead, 1, 3100);
        stuck.tid = 4110 + worker;
        stuck.thread = format!("ThreadPoolExecutor-0_{worker}");
        stuck.peer = String::from("10.0.0.5:6379");
        evidence.waits.push(stuck);
    }
    evidence
}

/// One thread reads all requests, and workers answer them, as in waitress: `(id, read, answered, worker)`.
pub fn handed_on(own: (u64, u64, u64, u32), others: &[(u64, u64, u64, u32)]) -> Evidence {
    let of = |&(id, read, answered, worker): &(u64, u64, u64, u32)| {
        let shape = Shape {
            id,
            worker: 9,
            at_ms: read,
            accept_queue: 0,
            handoff: 0,
            handler: answered - read,
            cells: &[],
        };
        Request {
            shared_thread: 1,
            sent_tid: 4200 + worker,
            sent_thread: format!("waitress-{worker}"),
            process: String::from("waitress-serve"),
            ..request("/sleep", &shape)
        }
    };
    let siblings = others.iter().map(of).collect();
    Evidence { siblings, request: Some(of(&own)), ..Evidence::default() }
}

/// A backend of PostgreSQL waits for a row that another transaction keeps, until that commits.
pub fn row_lock() -> Evidence {
    let shape = |id, at_ms, handler, cells| Shape {
        id,
        worker: 0,
        at_ms,
        accept_queue: 0,
        handoff: 0,
        handler,
        cells,
    };
    let mut slow = request("/x", &shape(1, 0, 420, &[(State::PollWait, 400)]));
    slow.process = String::from("postgres");
    let mut row = wait(&slow, State::PollWait, 10, 400);
    (row.waker_pid, row.waker_tid, row.waker_thread) = (6953, 6953, String::from("postgres"));
    // The transaction's requests: an update, long done, and the commit.
    let other = |request: Request| Request { pid: 6953, tid: 6953, ..request };
    let wakers = vec![
        other(request("/update", &shape(8, 0, 1, &[]))),
        other(request("/commit", &shape(7, 405, 50, &[]))),
    ];
    Evidence { waits: vec![row], wakers, request: Some(slow), ..Evidence::default() }
}

/// An event loop that slept while requests came.
pub fn stalled_loop() -> Evidence {
    let mut evidence = event_loop();
    let request = evidence.request.clone().unwrap_or_default();
    let mut stall = LoopStall {
        host: request.host.clone(),
        pid: request.pid,
        tid: request.tid,
        thread: request.thread.clone(),
        start_time: request.start_time,
        duration_ns: 480 * MS,
        kind: String::from("epoll"),
        stack: python(&[
            ("Handle._run", "/usr/lib/python3.11/asyncio/events.py", 80),
            ("events", "/srv/app/views.py", 31),
        ]),
        ..LoopStall::default()
    };
    stall.ledger[State::Sleep] = 450 * MS;
    stall.ledger[State::Running] = 30 * MS;
    evidence.stalls.push(stall);
    evidence
}

fn process() -> Option<Process> {
    Some(Process {
        process: String::from("gunicorn"),
        cmdline: String::from("gunicorn shop.wsgi --worker-class gthread --threads 4"),
        cgroup: String::from("/system.slice/shop.service"),
        python: String::from("3.11"),
        gc_rung: String::from("symbol"),
        started: T0 - 3_600_000 * MS,
    })
}

/// Story 1: 64 requests come at once, four threads serve them at 200 ms each. The slowest waits 3.1 s.
pub fn queue() -> Evidence {
    let cells = [(State::NetRead, 196)];
    let mut siblings: Vec<_> = (0..62)
        .map(|n| {
            let round = n / 4;
            request(
                "/orders",
                &Shape {
                    id: 100 + n,
                    worker: u32::try_from(n % 4).unwrap_or(0),
                    at_ms: 0,
                    accept_queue: 1,
                    handoff: round * 205,
                    handler: 204,
                    cells: &cells,
                },
            )
        })
        .collect();
    let mut slow = request(
        "/orders",
        &Shape {
            id: 0x2a,
            worker: 3,
            at_ms: 1,
            accept_queue: 1,
            handoff: 3100,
            handler: 204,
            cells: &cells,
        },
    );
    slow.trace_id = String::from("4bf92f3577b34da6a3ce929d0e0e4736");
    slow.parent_span_id = format!("{:016x}", 0xc11e);
    let mut root = span(&slow, 1, 0xc11e, "GET /orders", 3102, 202);
    root.kind = String::from("server");
    let query = span(&slow, 2, 1, "SELECT", 3104, 197);
    let mut read = wait(&slow, State::NetRead, 3104, 196);
    read.peer = String::from("127.0.0.1:5432");
    siblings.reverse();
    Evidence {
        request: Some(slow),
        spans: vec![query, root],
        waits: vec![read],
        siblings,
        process: process(),
        ..Evidence::default()
    }
}

/// Story 2: a background job collects generation 2 for 2.8 s; a quick query takes 3 s.
pub fn collection() -> Evidence {
    let cells = [(State::GcWait, 2790), (State::NetRead, 3)];
    let mut slow = request(
        "/quick",
        &Shape {
            id: 0x2b,
            worker: 1,
            at_ms: 0,
            accept_queue: 0,
            handoff: 1,
            handler: 2801,
            cells: &cells,
        },
    );
    slow.trace_id = String::from("0af7651916cd43dd8448eb211c80319c");
    let root = span(&slow, 1, 0, "GET /quick", 2, 2798);
    let query = span(&slow, 2, 1, "SELECT", 4, 2793);
    let mut wait = wait(&slow, State::GcWait, 7, 2790);
    wait.holder_tid = 4131;
    wait.holder_thread = String::from("report-job_0");
    Evidence {
        gc_pauses: vec![pause(&slow, 4131, "report-job_0", 6, 2791)],
        gil_waits: vec![gil_wait(&slow, 7, 2790, (4131, "report-job_0"), 2790)],
        waits: vec![wait],
        spans: vec![root, query],
        process: process(),
        request: Some(slow),
        ..Evidence::default()
    }
}

/// Nothing is wrong.
pub fn quiet() -> Evidence {
    let cells = [(State::NetRead, 6)];
    let request = request(
        "/health",
        &Shape {
            id: 0x2c,
            worker: 0,
            at_ms: 0,
            accept_queue: 0,
            handoff: 0,
            handler: 9,
            cells: &cells,
        },
    );
    Evidence { request: Some(request), process: process(), ..Evidence::default() }
}

/// A request that was sent while the one before it on its connection had no answer, and read by a thread
/// that was free all along.
pub fn pipelined() -> Evidence {
    let shape = |id, worker, handoff, handler| Shape {
        id,
        worker,
        at_ms: 0,
        accept_queue: 0,
        handoff,
        handler,
        cells: &[],
    };
    let before = request("/report", &shape(0x2f, 1, 0, 200));
    let mut slow = request("/short", &shape(0x30, 0, 198, 20));
    slow.conn_request = before.conn_request + 1;
    Evidence { request: Some(slow), siblings: vec![before], ..Evidence::default() }
}

/// A request of an event loop that came late to it.
pub fn event_loop() -> Evidence {
    let shape = Shape {
        id: 0x2d,
        worker: 0,
        at_ms: 0,
        accept_queue: 0,
        handoff: 480,
        handler: 120,
        cells: &[],
    };
    let on_loop = |mut request: Request| {
        request.thread = String::from("uvicorn");
        request.shared_thread = 1;
        request
    };
    let others = (0..3).map(|n| {
        let shape = Shape {
            id: 200 + n,
            worker: 0,
            at_ms: 0,
            accept_queue: 0,
            handoff: 1,
            handler: 500,
            cells: &[],
        };
        on_loop(request("/stream", &shape))
    });
    Evidence {
        siblings: others.collect(),
        request: Some(on_loop(request("/events", &shape))),
        ..Evidence::default()
    }
}

/// Blocked for an unknown reason, with a ledger that misses 20 ms, while events were lost.
pub fn unknown() -> Evidence {
    let cells = [(State::Other, 300), (State::Sleep, 200)];
    let mut request = request(
        "/odd",
        &Shape {
            id: 0x2e,
            worker: 2,
            at_ms: 0,
            accept_queue: 0,
            handoff: 0,
            handler: 600,
            cells: &cells,
        },
    );
    request.ledger[State::Running] -= 20 * MS;
    let lost = |tracker: &str, reason: &str, count| LostEvents {
        host: String::from("web-1"),
        start_time: T0 - 500 * MS,
        duration_ns: 1000 * MS,
        tracker: tracker.to_owned(),
        reason: reason.to_owned(),
        count,
    };
    let mut blocked = wait(&request, State::Other, 10, 300);
    // getrandom: with no call in progress it would have been stopped.
    blocked.syscall = 318;
    Evidence {
        waits: vec![blocked, wait(&request, State::Sleep, 350, 200)],
        lost: vec![lost("ledger", "ring_full", 17), lost("gil", "ring_full", 2)],
        request: Some(request),
        ..Evidence::default()
    }
}
