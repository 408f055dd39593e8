//! The critical path of a slow request.

use underspan_model::State;

use super::*;
use crate::record::{gil_event, lifecycle_event, wait_event};

const MS: u64 = 1_000_000;

fn waited(tid: u32, from_ms: u64, ms: u64, state: State, waker_tid: u32) -> Vec<u8> {
    let event = wait_event {
        h: header(event_kind::EVENT_WAIT, tid, from_ms * MS),
        duration: ms * MS,
        state: state.index() as u8,
        waker_tgid: 5_000,
        waker_tid,
        ..wait_event::default()
    };
    bytes_of(&event).to_vec()
}

fn started(tid: u32) -> Vec<u8> {
    let event = lifecycle_event {
        h: header(event_kind::EVENT_THREAD_START, tid, 1),
        ..lifecycle_event::default()
    };
    bytes_of(&event).to_vec()
}

/// Read at 1,000 ms and answered at 1,000 + `ms`.
fn request(ms: u64) -> [Vec<u8>; 2] {
    let mut read = read_event();
    read.h.time = 1_000 * MS;
    read.ready = 999 * MS;
    read.accepted = 999 * MS;
    let mut sent = sent_event(request_end::END_CLOSED);
    sent.h.time = (1_000 + ms) * MS;
    [read_bytes(read, HEAD.as_bytes()), bytes_of(&sent).to_vec()]
}

fn path(records: &[Vec<u8>]) -> Vec<(u64, u64, u64, String, String)> {
    let mut context =
        FakeContext::new().know(5_000, 5_007, "gthread_0").know(5_000, 5_008, "report_0");
    let mut rows = Rows::default();
    let mut decoder = RequestTracker.decoder();
    for record in records {
        decoder.event(record, &mut context, &mut rows).unwrap();
    }
    decoder.finish(10_000 * MS, &mut context, &mut rows);
    let mut steps: Vec<_> = decode(&mut rows)
        .into_iter()
        .filter(|row| row.table == "critical_path")
        .map(|row| {
            assert_eq!(row.text("request_id"), format!("{:016x}", 0xfeed));
            let text = |name: &str| row.text(name).to_owned();
            let ms = row.u64("duration_ns") / MS;
            (row.u64("step"), row.u64("tid"), ms, text("kind"), text("state"))
        })
        .collect();
    steps.sort();
    steps
}

fn step(step: u64, tid: u64, ms: u64, kind: &str, state: &str) -> (u64, u64, u64, String, String) {
    (step, tid, ms, kind.to_owned(), state.to_owned())
}

#[test]
fn who_held_the_lock_is_on_the_path_with_what_it_did() {
    let mut records = vec![started(5_008)];
    records.push(waited(5_008, 1_050, 60, State::NetRead, 0));
    records.push(waited(5_007, 1_020, 150, State::LockWait, 5_008));
    records.extend(request(200));
    assert_eq!(
        path(&records),
        [
            step(0, 5_007, 20, "run", "running"),
            step(1, 5_008, 30, "run", "running"),
            step(2, 5_008, 60, "wait", "net_read"),
            step(3, 5_008, 60, "run", "running"),
            step(4, 5_007, 30, "run", "running"),
        ]
    );
}

#[test]
fn a_thread_that_is_not_watched_is_not_said_to_have_run() {
    let mut records = vec![waited(5_007, 1_020, 150, State::PipeIpc, 7_000)];
    records.extend(request(200));
    let kinds: Vec<_> = path(&records).into_iter().map(|step| (step.1, step.3)).collect();
    let expected = [("run", 5_007), ("wait", 5_007), ("run", 5_007)];
    assert_eq!(kinds, expected.map(|(kind, tid)| (tid, kind.to_owned())));
}

#[test]
fn waits_for_the_gil_are_followed_too() {
    let wait = gil_event {
        h: header(event_kind::EVENT_GIL, 5_007, 1_020 * MS),
        duration: 150 * MS,
        waker_tgid: 5_000,
        waker_tid: 5_008,
        ..gil_event::default()
    };
    let mut records = vec![started(5_008), bytes_of(&wait).to_vec()];
    records.extend(request(200));
    assert_eq!(path(&records)[1], step(1, 5_008, 150, "run", "running"));
}

#[test]
fn a_quick_request_has_none() {
    let mut records = vec![waited(5_007, 1_020, 30, State::Sleep, 0)];
    records.extend(request(99));
    assert_eq!(path(&records), []);
}

/// A server whose reading thread hands its requests on: what that thread waits for afterwards is its next work.
#[test]
fn it_leads_back_from_who_answered() {
    let [read, mut sent] = request(200);
    let tid = std::mem::offset_of!(event_header, tid);
    sent[tid..tid + 4].copy_from_slice(&5_008_u32.to_ne_bytes());
    let records = |known: bool| {
        let mut records = vec![started(if known { 5_008 } else { 5_009 }), started(5_007)];
        // The worker is woken by the reader, and sleeps in the handler.
        records.push(waited(5_008, 500, 520, State::LockWait, 5_007));
        records.push(waited(5_008, 1_030, 150, State::Sleep, 0));
        records.extend([read.clone(), sent.clone()]);
        records
    };
    assert_eq!(
        path(&records(true)),
        [
            step(0, 5_007, 20, "run", "running"),
            step(1, 5_008, 10, "run", "running"),
            step(2, 5_008, 150, "wait", "sleep"),
            step(3, 5_008, 20, "run", "running"),
        ]
    );
    // Of a thread whose waits nobody told, it is not said that it ran.
    assert_eq!(path(&records(false)), [step(0, 5_007, 200, "run", "running")]);
}
