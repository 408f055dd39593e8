//! Attempts to connect, from records to rows.

use super::TcpConnectTracker;
use crate::record::{bytes_of, event_header, event_kind, tcp_connect_event, tcp_ends};
use crate::tests::support::{FakeContext, Row, decode};
use crate::{Rows, Tracker as _};

const MS: u64 = 1_000_000;

fn attempt(time: u64, port: u16) -> tcp_connect_event {
    let mut ends = tcp_ends { family: libc::AF_INET as u16, ..tcp_ends::default() };
    ends.local[..4].copy_from_slice(&[10, 0, 0, 1]);
    ends.peer[..4].copy_from_slice(&[10, 0, 0, 2]);
    (ends.local_port, ends.peer_port) = (40_000, port);
    tcp_connect_event {
        h: event_header {
            kind: event_kind::EVENT_TCP_CONNECT,
            tgid: 5_000,
            tid: 5_001,
            time,
            ..event_header::default()
        },
        duration: 30 * MS,
        connected: 1,
        sent: 1,
        ends,
        ..tcp_connect_event::default()
    }
}

fn rows(events: &[tcp_connect_event]) -> Vec<Row> {
    let mut context = FakeContext::new().know(5_000, 5_001, "worker");
    let (mut decoder, mut rows) = (TcpConnectTracker.decoder(), Rows::default());
    for event in events {
        decoder.event(bytes_of(event), &mut context, &mut rows).unwrap();
    }
    decode(&mut rows)
}

#[test]
fn every_column_has_its_value() {
    let event = tcp_connect_event { retransmits: 2, ..attempt(1_000 * MS, 80) };
    let row = rows(&[event]).remove(0);
    assert_eq!((row.table.as_str(), row.text("process")), ("tcp_connect", "service"));
    assert_eq!((row.u64("pid"), row.u64("tid"), row.text("thread")), (5_000, 5_001, "worker"));
    assert_eq!(row.u64("start_time"), FakeContext::OFFSET + 1_000 * MS);
    assert_eq!((row.u64("duration_ns"), row.u64("syn_retransmits")), (30 * MS, 2));
    assert_eq!((row.text("local"), row.text("peer")), ("10.0.0.1:40000", "10.0.0.2:80"));
    assert_eq!((row.text("outcome"), row.u64("reconnect_ns")), ("connected", 0));
}

#[test]
fn each_outcome_has_its_name() {
    let outcome = |error: i32, sent: u8| {
        let event = tcp_connect_event { connected: 0, error, sent, ..attempt(0, 80) };
        rows(&[event]).remove(0).text("outcome").to_owned()
    };
    assert_eq!(outcome(libc::ECONNREFUSED, 1), "refused");
    assert_eq!(outcome(libc::ETIMEDOUT, 1), "timed_out");
    assert_eq!(outcome(libc::EHOSTUNREACH, 1), "unreachable");
    assert_eq!(outcome(libc::ECONNRESET, 1), "reset");
    assert_eq!(outcome(0, 1), "interrupted");
    assert_eq!(outcome(0, 0), "not_sent");
    assert_eq!(outcome(libc::EACCES, 1), "failed");
}

#[test]
fn a_peer_that_is_connected_again_is_told_from_another() {
    let told = rows(&[
        attempt(1_000 * MS, 80),
        attempt(1_010 * MS, 81),
        attempt(1_300 * MS, 80),
        attempt(9_000 * MS, 80),
    ]);
    let again: Vec<_> = told.iter().map(|row| row.u64("reconnect_ns") / MS).collect();
    assert_eq!(again, [0, 0, 300, 7_700]);
}

#[test]
fn attempts_that_end_out_of_order_are_none_the_longer_ago() {
    let told = rows(&[attempt(1_300 * MS, 80), attempt(1_000 * MS, 80), attempt(1_400 * MS, 80)]);
    let again: Vec<_> = told.iter().map(|row| row.u64("reconnect_ns") / MS).collect();
    assert_eq!(again, [0, 0, 100]);
}

#[test]
fn so_many_peers_are_remembered_and_no_more() {
    let mut decoder = super::decode::TcpConnectDecoder::new(super::connect_columns());
    for n in 0..40_000u64 {
        decoder.reconnect(n as u32, "10.0.0.2:80", n);
    }
    assert!(decoder.remembered() <= 16_384);
    assert_eq!(decoder.reconnect(39_999, "10.0.0.2:80", 40_009), 10, "the newest are kept");
}
