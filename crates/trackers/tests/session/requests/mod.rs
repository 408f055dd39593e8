//! Windows of requests to a real server. Here: a client, and what is true of each request's row.

use std::io::{Read, Write};
use std::ops::Range;
use std::thread;
use std::time::Duration;

use crate::machine::{Since, SinceOf, Took};
use crate::support::Row;
use crate::watcher::{Watcher, monotonic};
use crate::workload::Workload;

mod between;
mod cost;
mod ends;
mod framed;
mod older;
mod pauses;
mod pieces;
mod windows;

const MS: u64 = 1_000_000;

/// What the workload's server does, and what a loaded machine may add beyond what it tells of.
const QUEUED: Range<u64> = 39 * MS..160 * MS;
const HANDED: Range<u64> = 19 * MS..140 * MS;

const HANDLED: Range<u64> = 29 * MS..150 * MS;

/// A column is within these, the server having been so late.
#[track_caller]
fn assert_within(row: &Row, column: &str, range: Range<u64>, late: u64) {
    let range = range.start..range.end + late;
    assert!(range.contains(&row.u64(column)), "{column} not in {range:?}: {row:?}");
}

/// What a client does, while records are read as the agent reads them.
fn watched<T: Send>(watcher: &mut Watcher, client: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let client = scope.spawn(client);
        while !client.is_finished() {
            watcher.drain();
            watcher.read_ledgers();
            thread::sleep(Duration::from_millis(50));
        }
        client.join().expect("the client is answered")
    })
}

fn ask(stream: impl Read + Write, path: &str) -> Took {
    ask_and_tell_when(stream, path).1
}

/// By when the request was sent, and how long the answer took.
fn ask_and_tell_when(mut stream: impl Read + Write, path: &str) -> (u64, Took) {
    let asking = Since::now();
    let request = format!("GET {path}?secret=1 HTTP/1.1\r\nHost: t\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let sent = monotonic();
    let mut answer = [0; 64];
    let len = stream.read(&mut answer).unwrap();
    assert!(answer[..len].ends_with(b"ok"));
    (sent, asking.took())
}

/// The client waited so long, while the server was so late.
#[track_caller]
fn check(row: &Row, asked: Took, late: u64) {
    let phases = ["accept_queue_ns", "handoff_ns", "handler_ns"].map(|phase| row.u64(phase));
    assert_eq!(phases.iter().sum::<u64>(), row.u64("duration_ns"));
    assert_eq!(row.ledger_total(), u128::from(row.u64("handler_ns")));
    assert_within(row, "handler_ns", HANDLED, late);
    assert!(row.u64("sleep_ns") >= 29 * MS, "{row:?}");
    assert!(row.u64("duration_ns") <= asked.ns, "no longer than the client waited");
    assert!(row.u64("duration_ns") + 20 * MS + asked.late > asked.ns, "{row:?}: {asked:?}");
    assert_eq!((row.text("method"), row.u64("status")), ("GET", 200));
    assert_eq!(row.u64("tid"), row.u64("sent_tid"));
    assert_eq!((row.u64("shared_thread"), row.text("end")), (0, "sent"));
}

/// Over a connection that was not begun before `connecting`.
fn two_requests(
    watcher: &mut Watcher,
    workload: &Workload,
    mut stream: impl Read + Write,
    connecting: u64,
) -> [Row; 2] {
    let begun = SinceOf::now(workload);
    let (sent, first) = ask_and_tell_when(&mut stream, "/first");
    let late_first = begun.late(workload);
    let begun = SinceOf::now(workload);
    let second = ask(&mut stream, "/second");
    let late = begun.late(workload);
    drop(stream);
    let row = watcher.row("requests", |row| row.text("path") == "/first");
    check(&row, first, late_first);
    assert_within(&row, "handoff_ns", HANDED, late_first);
    // The server's 40 ms begin with the connection, the wait with what was sent over it.
    let queued = QUEUED.start.saturating_sub(sent - connecting)..QUEUED.end;
    assert_within(&row, "accept_queue_ns", queued, late_first);
    assert_eq!(row.u64("conn_request"), 0);
    let kept = watcher.row("requests", |row| row.text("path") == "/second");
    check(&kept, second, late);
    assert_eq!((kept.u64("accept_queue_ns"), kept.u64("accept_to_read_ns")), (0, 0));
    assert!(kept.u64("handoff_ns") < 20 * MS + late, "nobody was asleep: {kept:?}");
    assert_eq!(kept.u64("conn_request"), 1);
    watcher.assert_nothing_lost();
    [row, kept]
}
