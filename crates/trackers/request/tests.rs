//! Requests, from records to rows.

mod framed;
mod head;
mod names;
mod open;
mod paths;
mod pauses;
mod windows;

use underspan_model::{Ledger, State};

use super::decode::UNNAMED_NS;
use super::{RequestTracker, address};
use crate::record::{
    DecodeError, ThreadSnapshot, bytes_of, event_header, event_kind, request_end,
    request_head_event, request_read_event, request_sent_event, thread_exit_event,
};
use crate::tests::support::{FakeContext, Row, decode};
use crate::{Decoder, Rows, Tracker as _};

const HEAD: &str = "GET /orders?page=2 HTTP/1.1\r\nHost: shop\r\n\
    traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n";

fn header(kind: u32, tid: u32, time: u64) -> event_header {
    event_header { kind, tgid: 5_000, tid, time, ..event_header::default() }
}

/// Ready at 1,000, accepted at 5,000, read at 9,000.
fn read_event() -> request_read_event {
    request_read_event {
        h: header(event_kind::EVENT_REQUEST_READ, 5_007, 9_000),
        id: 0xfeed,
        ready: 1_000,
        accepted: 5_000,
        accept_tid: 5_001,
        number: 0,
        peer: ipv4([10, 0, 0, 9]),
        local: ipv4([127, 0, 0, 1]),
        peer_port: 54_321,
        local_port: 8_000,
        family: libc::AF_INET as u16,
        bytes: HEAD.len() as u32,
        ..request_read_event::default()
    }
}

fn ipv4(address: [u8; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&address);
    bytes
}

/// The record as it is in the ring: no longer than what was copied of the request.
fn read_bytes(mut event: request_read_event, head: &[u8]) -> Vec<u8> {
    event.head[..head.len()].copy_from_slice(head);
    event.head_len = head.len() as u16;
    let fixed = std::mem::offset_of!(request_read_event, head);
    bytes_of(&event)[..fixed + head.len()].to_vec()
}

/// The same of a head whose first bytes these are.
fn open_read_bytes(head: &[u8]) -> Vec<u8> {
    read_bytes(request_read_event { head_open: 1, ..read_event() }, head)
}

/// More of that head, after its first `at` bytes.
fn piece_bytes(at: usize, piece: &[u8]) -> Vec<u8> {
    let mut event = request_head_event {
        h: header(event_kind::EVENT_REQUEST_HEAD, 5_007, 9_500),
        id: 0xfeed,
        at: at as u32,
        len: piece.len() as u32,
        ..request_head_event::default()
    };
    event.head[..piece.len()].copy_from_slice(piece);
    bytes_of(&event)[..std::mem::offset_of!(request_head_event, head) + piece.len()].to_vec()
}

/// Sent at 20,000 by the thread that read it, which slept in between. The last of its records.
fn sent_event(end: u32) -> request_sent_event {
    let mut ledger = Ledger::default();
    ledger[State::Running] = 1_000;
    ledger[State::Sleep] = 10_000;
    let kind = match end {
        request_end::END_NOT => event_kind::EVENT_REQUEST_SENT,
        _ => event_kind::EVENT_REQUEST_END,
    };
    let mut event = request_sent_event {
        h: header(kind, 5_007, 20_000),
        id: 0xfeed,
        bytes_in: 120,
        bytes_out: 4_096,
        ns: *ledger.cells(),
        ledger_ok: 1,
        end: end as u8,
        answered: 1,
        answer_len: 16,
        ..request_sent_event::default()
    };
    for (to, from) in event.answer.iter_mut().zip(*b"HTTP/1.1 503 Ser") {
        *to = from as std::ffi::c_char;
    }
    event
}

/// Decodes records one by one; keeps what the decoder is told.
struct Play {
    decoder: Box<dyn Decoder>,
    context: FakeContext,
    rows: Rows,
}

impl Play {
    fn new() -> Self {
        Play {
            decoder: RequestTracker.decoder(),
            context: FakeContext::new()
                .know(5_000, 5_007, "gthread_3")
                .know(5_000, 5_008, "writer"),
            rows: Rows::default(),
        }
    }

    fn event(mut self, bytes: &[u8]) -> Self {
        self.decoder.event(bytes, &mut self.context, &mut self.rows).unwrap();
        self
    }

    fn ledgers(mut self, threads: &[ThreadSnapshot], now: u64) -> Self {
        self.decoder.ledgers(threads, now, &mut self.context, &mut self.rows);
        self
    }

    fn tick(mut self, now: u64) -> Self {
        self.decoder.tick(now, &mut self.context, &mut self.rows);
        self
    }

    fn finish(mut self, now: u64) -> Self {
        self.decoder.finish(now, &mut self.context, &mut self.rows);
        self
    }

    fn rows(&mut self) -> Vec<Row> {
        decode(&mut self.rows)
    }

    #[track_caller]
    fn row(mut self) -> Row {
        let [row] = <[Row; 1]>::try_from(self.rows()).unwrap();
        row
    }
}

#[track_caller]
fn row_of(read: request_read_event, sent: &request_sent_event) -> Row {
    Play::new().event(&read_bytes(read, HEAD.as_bytes())).event(bytes_of(sent)).row()
}

fn whole() -> Row {
    row_of(read_event(), &sent_event(request_end::END_CLOSED))
}

#[test]
fn every_column_has_its_value() {
    let row = whole();
    assert_eq!(row.table, "requests");
    assert_eq!(row.text("host"), FakeContext::HOST);
    assert_eq!((row.u64("pid"), row.u64("tid")), (5_000, 5_007));
    assert_eq!((row.u64("ns_pid"), row.u64("ns_tid")), (4_000, 4_007));
    assert_eq!((row.text("thread"), row.text("process")), ("gthread_3", "service"));
    assert_eq!(row.u64("start_time"), FakeContext::OFFSET + 1_000);
    assert_eq!(row.u64("duration_ns"), 19_000);
    assert_eq!(row.text("request_id"), "000000000000feed");
    assert_eq!(row.text("trace_id"), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(row.text("parent_span_id"), "b7ad6b7169203331");
    assert_eq!(row.u64("accept_queue_ns"), 4_000);
    assert_eq!(row.u64("handoff_ns"), 4_000);
    assert_eq!(row.u64("handler_ns"), 11_000);
    assert_eq!(row.u64("accept_to_read_ns"), 4_000);
    assert_eq!(row.u64("conn_request"), 0);
    assert_eq!((row.text("method"), row.text("path")), ("GET", "/orders"));
    assert_eq!(row.u64("status"), 503);
    assert_eq!((row.text("peer"), row.text("local")), ("10.0.0.9:54321", "127.0.0.1:8000"));
    assert_eq!((row.u64("bytes_in"), row.u64("bytes_out")), (120, 4_096));
    assert_eq!((row.u64("accept_tid"), row.u64("sent_tid")), (5_001, 5_007));
    assert_eq!((row.text("sent_thread"), row.u64("shared_thread")), ("gthread_3", 0));
    assert_eq!(row.text("end"), "sent");
    assert_eq!((row.u64("running_ns"), row.u64("sleep_ns")), (1_000, 10_000));
    assert_eq!(row.ledger_total(), 11_000);
}

#[test]
fn one_field_of_what_was_read_changes_its_own_columns() {
    type Change = fn(&mut request_read_event);
    let changes: [(Change, &[&str]); 9] = [
        (|r| r.ready += 500, &["accept_queue_ns", "duration_ns", "start_time"]),
        (|r| r.accepted += 500, &["accept_queue_ns", "accept_to_read_ns", "handoff_ns"]),
        (|r| r.h.time += 500, &["accept_to_read_ns", "handler_ns", "handoff_ns"]),
        (|r| r.accept_tid += 1, &["accept_tid"]),
        (|r| r.number = 7, &["conn_request"]),
        (|r| r.peer_port += 1, &["peer"]),
        (|r| r.local[3] += 1, &["local"]),
        (|r| r.family = libc::AF_UNIX as u16, &["local", "peer"]),
        (|r| r.bytes = 1, &[]), // the answer's record has the total
    ];
    for (index, (change, columns)) in changes.into_iter().enumerate() {
        let mut read = read_event();
        change(&mut read);
        let row = row_of(read, &sent_event(request_end::END_CLOSED));
        assert_eq!(row.differences(&whole()), columns, "change {index}");
    }
}

#[test]
fn one_field_of_what_was_sent_changes_its_own_columns() {
    type Change = fn(&mut request_sent_event);
    let changes: [(Change, &[&str]); 8] = [
        (|s| s.h.time += 500, &["duration_ns", "handler_ns"]),
        (|s| s.h.tid = 5_008, &["sent_thread", "sent_tid"]),
        (|s| s.bytes_in += 1, &["bytes_in"]),
        (|s| s.bytes_out += 1, &["bytes_out"]),
        (|s| s.ns[State::Sleep.index()] += 1, &["sleep_ns"]),
        (|s| s.shared_thread = 1, &["shared_thread"]),
        (|s| s.answer_len = 0, &["status"]),
        (|s| s.ledger_ok = 0, &["other_ns", "running_ns", "sleep_ns"]),
    ];
    for (index, (change, columns)) in changes.into_iter().enumerate() {
        let mut sent = sent_event(request_end::END_CLOSED);
        change(&mut sent);
        assert_eq!(row_of(read_event(), &sent).differences(&whole()), columns, "change {index}");
    }
}

#[test]
fn an_unknown_ledger_is_shown_as_that() {
    let sent = request_sent_event { ledger_ok: 0, ..sent_event(request_end::END_CLOSED) };
    let row = row_of(read_event(), &sent);
    assert_eq!((row.u64("other_ns"), row.ledger_total()), (11_000, 11_000));
}

/// The process was killed: its connections were closed when the thread was gone.
#[test]
fn what_a_thread_did_before_it_ended_is_known() {
    const BORN: u64 = 4_000;
    let mut at_read = Ledger::default();
    at_read[State::Running] = 5_000;
    let read = request_read_event { born: BORN, ns: *at_read.cells(), ..read_event() };
    let ended = |born: u64, until: u64| {
        let mut ledger = at_read;
        ledger[State::Running] += 1_000;
        ledger[State::Sleep] = until - 10_000;
        let h = header(event_kind::EVENT_THREAD_EXIT, 5_007, born);
        thread_exit_event { h, until, ns: *ledger.cells() }
    };
    let play = || Play::new().event(&read_bytes(read, HEAD.as_bytes()));
    let cells = |row: &Row| ["running_ns", "sleep_ns", "other_ns"].map(|cell| row.u64(cell));
    let closed =
        request_sent_event { ledger_ok: 0, answered: 0, ..sent_event(request_end::END_CLOSED) };
    let row = play().event(bytes_of(&ended(BORN, 19_990))).event(bytes_of(&closed)).row();
    assert_eq!((cells(&row), row.ledger_total()), ([1_000, 9_990, 10], 11_000));
    // Also where only the end of the process tells that the request has ended.
    let exit = header(event_kind::EVENT_PROCESS_EXIT, 5_000, 20_000);
    let row = play().event(bytes_of(&ended(BORN, 19_990))).event(bytes_of(&exit)).row();
    assert_eq!((cells(&row), row.text("end")), ([1_000, 9_990, 10], "closed"));
    // Another thread of the same number; and one that went on.
    for other in [ended(BORN + 1, 19_990), ended(BORN, 20_010)] {
        let row = play().event(bytes_of(&other)).event(bytes_of(&closed)).row();
        assert_eq!(cells(&row), [0, 0, 11_000]);
    }
}

#[test]
fn how_it_ended() {
    let ends = [
        (request_end::END_NEXT, 1, "sent"),
        (request_end::END_CLOSED, 1, "sent"),
        (request_end::END_PEER_CLOSED, 1, "sent"),
        (request_end::END_RESET, 1, "sent"),
        (request_end::END_CLOSED, 0, "closed"),
        (request_end::END_PEER_CLOSED, 0, "peer_closed"),
        (request_end::END_RESET, 0, "reset"),
    ];
    for (end, answered, name) in ends {
        let row = row_of(read_event(), &request_sent_event { answered, ..sent_event(end) });
        assert_eq!(row.text("end"), name);
    }
}

#[test]
fn absurd_values_are_refused_or_harmless() {
    let mut read = read_bytes(read_event(), HEAD.as_bytes());
    let at = std::mem::offset_of!(request_read_event, head_len);
    for len in [HEAD.len() as u16 + 1, 2_049, u16::MAX] {
        read[at..at + 2].copy_from_slice(&len.to_ne_bytes());
        let mut play = Play::new();
        let refused = DecodeError::Value {
            kind: event_kind::EVENT_REQUEST_READ,
            field: "head_len",
            value: len.into(),
        };
        assert_eq!(play.decoder.event(&read, &mut play.context, &mut play.rows), Err(refused));
        assert!(play.finish(1).rows().is_empty());
    }
    let row = row_of(
        request_read_event { family: 999, ..read_event() },
        &request_sent_event { end: 255, answer_len: 255, ..sent_event(request_end::END_NEXT) },
    );
    assert_eq!((row.text("peer"), row.text("local"), row.u64("status")), ("", "", 0));
}

#[test]
fn cut_records_are_refused() {
    let read = read_bytes(read_event(), HEAD.as_bytes());
    let sent = sent_event(request_end::END_CLOSED);
    let piece = piece_bytes(8, b"ers HTTP/1.1");
    for whole in [&read, &piece, bytes_of(&sent)] {
        for len in 4..whole.len() {
            let mut play = Play::new();
            let result = play.decoder.event(&whole[..len], &mut play.context, &mut play.rows);
            assert!(result.is_err(), "{len} of {} bytes", whole.len());
            assert!(play.finish(1).rows().is_empty());
        }
    }
}

#[test]
fn the_end_of_a_request_that_nobody_saw_begin_is_no_row() {
    let mut play = Play::new().event(bytes_of(&sent_event(request_end::END_CLOSED)));
    assert!(play.rows().is_empty());
    assert!(play.finish(1 << 40).rows().is_empty());
}

#[test]
fn too_many_in_flight_are_counted() {
    let mut play = Play::new();
    for id in 0..65_540 {
        let read = read_bytes(request_read_event { id, ..read_event() }, b"");
        play = play.event(&read);
    }
    assert_eq!(play.context.lost[&("request", "too_many_in_flight")], 4);
    assert_eq!(play.finish(50_000).rows().len(), 65_536);
}

#[test]
fn addresses_are_written_as_people_do() {
    let v6 = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
    let (inet, inet6) = (libc::AF_INET as u16, libc::AF_INET6 as u16);
    assert_eq!(address(inet, &ipv4([192, 168, 1, 2]), 80), "192.168.1.2:80");
    assert_eq!(address(inet6, &v6("2001:db8::1"), 443), "[2001:db8::1]:443");
    assert_eq!(address(inet6, &v6("::1"), 65_535), "[::1]:65535");
    assert_eq!(address(inet6, &v6("::ffff:10.1.2.3"), 9), "10.1.2.3:9");
    assert_eq!(address(libc::AF_UNIX as u16, &[7; 16], 9), "unix");
    for family in [0, 3, 999, u16::MAX] {
        assert_eq!(address(family, &[7; 16], 9), "");
    }
}
