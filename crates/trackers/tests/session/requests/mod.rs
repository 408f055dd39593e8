//! Windows of requests to a real server. Here: a client, and what is true of each request's row.

use std::io::{Read, Write};

use crate::support::Row;
use crate::watcher::{Watcher, monotonic};
use crate::workload::Workload;

mod between;
mod cost;
mod ends;
mod older;
mod pieces;
mod windows;

const MS: u64 = 1_000_000;

/// What the workload's server does, and what more a loaded machine may add.
const QUEUED: std::ops::Range<u64> = 39 * MS..160 * MS;
const HANDED: std::ops::Range<u64> = 19 * MS..140 * MS;

const HANDLED: std::ops::Range<u64> = 29 * MS..150 * MS;

/// How long a client waited for its answer. It may have waited for a CPU itself when that was there.
struct Asked {
    took: u64,
    runnable: u64,
}

/// A client that has begun to ask.
struct Asking {
    start: u64,
    runnable: u64,
}

impl Asking {
    fn begin() -> Self {
        Asking { start: monotonic(), runnable: own_runnable() }
    }

    fn end(self) -> Asked {
        Asked { took: monotonic() - self.start, runnable: own_runnable() - self.runnable }
    }
}

/// For how long the kernel has let this thread wait for a CPU.
fn own_runnable() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The same of a workload's threads: by so much it may be late.
fn runnable(workload: &Workload) -> u64 {
    workload.tids().into_iter().map(|tid| workload.schedstat(tid)[1]).sum()
}

fn ask(mut stream: impl Read + Write, path: &str) -> Asked {
    let asking = Asking::begin();
    let request = format!("GET {path}?secret=1 HTTP/1.1\r\nHost: t\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = [0; 64];
    let len = stream.read(&mut answer).unwrap();
    assert!(answer[..len].ends_with(b"ok"));
    asking.end()
}

#[track_caller]
fn check(row: &Row, asked: &Asked) {
    let phases = ["accept_queue_ns", "handoff_ns", "handler_ns"].map(|phase| row.u64(phase));
    assert_eq!(phases.iter().sum::<u64>(), row.u64("duration_ns"));
    assert_eq!(row.ledger_total(), u128::from(row.u64("handler_ns")));
    assert!(HANDLED.contains(&row.u64("handler_ns")), "{row:?}");
    assert!(row.u64("sleep_ns") >= 29 * MS, "{row:?}");
    assert!(row.u64("duration_ns") <= asked.took, "no longer than the client waited");
    let late = 20 * MS + asked.runnable;
    assert!(row.u64("duration_ns") + late > asked.took, "{row:?}: {} ns", asked.took);
    assert_eq!((row.text("method"), row.u64("status")), ("GET", 200));
    assert_eq!(row.u64("tid"), row.u64("sent_tid"));
    assert_eq!((row.u64("shared_thread"), row.text("end")), (0, "sent"));
}

fn two_requests(
    watcher: &mut Watcher,
    workload: &Workload,
    mut stream: impl Read + Write,
    accept_queue: bool,
) -> [Row; 2] {
    let first = ask(&mut stream, "/first");
    let before = runnable(workload);
    let second = ask(&mut stream, "/second");
    let late = 20 * MS + runnable(workload) - before;
    drop(stream);
    let row = watcher.row("requests", |row| row.text("path") == "/first");
    check(&row, &first);
    assert!(HANDED.contains(&row.u64("handoff_ns")), "{row:?}");
    if accept_queue {
        assert!(QUEUED.contains(&row.u64("accept_queue_ns")), "{row:?}");
    }
    assert_eq!(row.u64("conn_request"), 0);
    let kept = watcher.row("requests", |row| row.text("path") == "/second");
    check(&kept, &second);
    assert_eq!((kept.u64("accept_queue_ns"), kept.u64("accept_to_read_ns")), (0, 0));
    assert!(kept.u64("handoff_ns") < late, "nobody was asleep: {kept:?}");
    assert_eq!(kept.u64("conn_request"), 1);
    watcher.assert_nothing_lost();
    [row, kept]
}
