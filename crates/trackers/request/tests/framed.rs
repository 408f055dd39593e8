//! Answers that say where they end.

use super::*;
use crate::record::request_answer_event;
use crate::request::answering::LONGEST_SAID_PAUSE_NS;
use crate::request::framing::{Framing, framing};

const SECOND: u64 = 1_000_000_000;
/// When the last write was.
const UNTIL: u64 = 20_000;

/// What an answer to GET with this status and these headers says; of its bytes, those of the body.
fn says(head: &str) -> Framing {
    let head = format!("HTTP/1.1 {head}\r\n\r\n");
    match framing("GET", head.as_bytes()) {
        Framing::Bytes(all) => Framing::Bytes(all - head.len() as u64),
        other => other,
    }
}

#[test]
fn what_a_head_says() {
    assert_eq!(says("200 OK\r\nContent-Length: 7"), Framing::Bytes(7));
    assert_eq!(says("200 OK\r\ncontent-length:7"), Framing::Bytes(7));
    assert_eq!(says("200 OK\r\nContent-Length: 7\r\nContent-Length: 7"), Framing::Bytes(7));
    assert_eq!(says("200 OK\r\nTransfer-Encoding: chunked"), Framing::Chunks);
    assert_eq!(says("200 OK\r\nTransfer-Encoding: gzip, Chunked"), Framing::Chunks);
    assert_eq!(says("200 OK\r\nTransfer-Encoding: gzip"), Framing::Close);
    assert_eq!(says("200 OK\r\nContent-Length: 7\r\nTransfer-Encoding: chunked"), Framing::Chunks);
    assert_eq!(says("200 OK\r\nServer: x"), Framing::Close);
    assert_eq!(says("304 Not Modified\r\nContent-Length: 7"), Framing::Bytes(0));
    assert_eq!(says("204 No Content"), Framing::Bytes(0));
    assert_eq!(framing("HEAD", LENGTH), Framing::Bytes(LENGTH.len() as u64));
}

#[test]
fn what_a_head_does_not_say() {
    assert_eq!(says("101 Switching Protocols\r\nUpgrade: websocket"), Framing::Unknown);
    assert_eq!(says("200 OK\r\nContent-Length: -7"), Framing::Unknown);
    assert_eq!(says("200 OK\r\nContent-Length: 7\r\nContent-Length: 8"), Framing::Unknown);
    assert_eq!(says("200 OK\r\nContent-Length: 18446744073709551615"), Framing::Unknown);
    assert_eq!(framing("", LENGTH), Framing::Unknown);
    assert_eq!(framing("CONNECT", LENGTH), Framing::Unknown);
    for len in 0..LENGTH.len() {
        assert_eq!(framing("GET", &LENGTH[..len]), Framing::Unknown, "{len}");
    }
    assert_eq!(framing("GET", b"\x15\x03\x01"), Framing::Unknown);
}

/// How the one request ended, and how long its handler took.
#[track_caller]
fn ended(play: &mut Play) -> (String, u64) {
    let rows: Vec<_> = play.rows().into_iter().filter(|row| row.table == "requests").collect();
    assert_eq!(rows.len(), 1, "{rows:?}");
    (rows[0].text("end").to_owned(), rows[0].u64("handler_ns"))
}

const LENGTH: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n";
const CHUNKS: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
const CLOSE: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";

/// The record of an answer that begins like this.
fn answer_event(start: &[u8]) -> Vec<u8> {
    let mut event = request_answer_event {
        h: header(event_kind::EVENT_REQUEST_ANSWER, 0, 0),
        id: 0xfeed,
        len: start.len() as u32,
        ..request_answer_event::default()
    };
    event.start[..start.len()].copy_from_slice(start);
    bytes_of(&event).to_vec()
}

/// An answer to a request that was read.
fn begun(start: &[u8]) -> Play {
    Play::new().event(&read_bytes(read_event(), HEAD.as_bytes())).event(&answer_event(start))
}

/// So much of it was sent so long after the first write.
fn sent(bytes_out: u64, after: u64) -> request_sent_event {
    request_sent_event {
        h: header(event_kind::EVENT_REQUEST_SENT, 5_007, UNTIL + after),
        bytes_out,
        ..sent_event(request_end::END_NOT)
    }
}

#[test]
fn it_is_over_with_its_last_byte() {
    let all = LENGTH.len() as u64 + 100;
    let play = begun(LENGTH).event(bytes_of(&sent(all - 1, 0))).tick(UNTIL + 50 * SECOND);
    let mut play = play.event(bytes_of(&sent(all, 51 * SECOND)));
    assert_eq!(ended(&mut play), ("sent".to_owned(), 11_000 + 51 * SECOND));
    // What is told of it later is nothing new.
    let end = request_sent_event { bytes_out: all, ..sent_event(request_end::END_NEXT) };
    assert!(play.event(bytes_of(&end)).finish(UNTIL + 60 * SECOND).rows().is_empty());
}

#[test]
fn it_is_over_with_its_last_chunk() {
    let play = begun(CHUNKS).event(bytes_of(&sent(4_096, 0))).tick(UNTIL + 50 * SECOND);
    let last = request_sent_event { last_chunk: 1, ..sent(8_192, 51 * SECOND) };
    assert_eq!(ended(&mut play.event(bytes_of(&last))).1, 11_000 + 51 * SECOND);
    // Of an answer that is not in chunks it says nothing.
    let mut play = begun(CLOSE).event(bytes_of(&last));
    assert!(play.rows().is_empty());
}

#[test]
fn it_is_over_with_its_connection() {
    let play = begun(CLOSE).event(bytes_of(&sent(4_096, 0))).tick(UNTIL + 50 * SECOND);
    let closed = sent_event(request_end::END_CLOSED);
    assert_eq!(play.event(bytes_of(&closed)).row().text("end"), "sent");
}

#[test]
fn who_never_ends_it_is_not_waited_for() {
    for start in [LENGTH, CHUNKS, CLOSE] {
        let mut play = begun(start).event(bytes_of(&sent(50, 0)));
        play = play.tick(UNTIL + LONGEST_SAID_PAUSE_NS - 1);
        assert!(play.rows().is_empty());
        assert_eq!(play.tick(UNTIL + LONGEST_SAID_PAUSE_NS).row().text("end"), "sent");
    }
}

/// Of many writes at once not all are told: the last byte may have been among the others.
#[test]
fn many_writes_may_have_been_all() {
    let mut play = begun(LENGTH);
    for byte in 1..=16 {
        play = play.event(bytes_of(&sent(LENGTH.len() as u64 + byte, byte)));
    }
    assert_eq!(play.tick(UNTIL + 16 + SECOND).row().u64("handler_ns"), 11_000 + 16);
}

/// Where the close of a Unix socket is not seen, what it would end is over when it is silent.
#[test]
fn a_unix_sockets_close_ends_nothing() {
    let unix = request_read_event { family: libc::AF_UNIX as u16, ..read_event() };
    let play = Play::new().event(&read_bytes(unix, HEAD.as_bytes())).event(&answer_event(CLOSE));
    let play = play.event(bytes_of(&sent(4_096, 0))).tick(UNTIL + SECOND);
    assert_eq!(play.row().text("end"), "sent");
}
