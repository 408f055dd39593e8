//! Accepted connections and listening sockets, from records to rows.

use super::{TcpAcceptTracker, ends};
use crate::record::{
    bytes_of, event_header, event_kind, tcp_accept_event, tcp_ends, tcp_listener_event,
};
use crate::tests::support::{FakeContext, Row, decode};
use crate::{Decoder, Rows, Tracker as _};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

fn header(kind: u32, time: u64) -> event_header {
    event_header { kind, tgid: 5_000, tid: 5_001, time, ..event_header::default() }
}

fn ipv4() -> tcp_ends {
    let mut ends = tcp_ends { family: libc::AF_INET as u16, ..tcp_ends::default() };
    ends.local[..4].copy_from_slice(&[10, 0, 0, 1]);
    ends.peer[..4].copy_from_slice(&[10, 0, 0, 2]);
    (ends.local_port, ends.peer_port) = (80, 40_000);
    ends
}

fn listener(time: u64, queue_length: u32, drops: u32) -> tcp_listener_event {
    tcp_listener_event {
        // No process has this number: of its namespace nothing is known.
        h: event_header { tgid: 0, ..header(event_kind::EVENT_TCP_LISTENER, time) },
        sock: 1,
        queue_length,
        queue_limit: 128,
        drops,
        ends: ipv4(),
        ..tcp_listener_event::default()
    }
}

fn rows_of(decoder: &mut dyn Decoder, records: &[&[u8]]) -> Vec<Row> {
    let mut context = FakeContext::new().know(5_000, 5_001, "acceptor");
    let mut rows = Rows::default();
    for record in records {
        decoder.event(record, &mut context, &mut rows).unwrap();
    }
    decode(&mut rows)
}

#[test]
fn every_column_has_its_value() {
    let event = tcp_accept_event {
        h: header(event_kind::EVENT_TCP_ACCEPT, SECOND),
        duration: 40 * MS,
        handshake: 3 * MS,
        queue_length: 2,
        queue_limit: 128,
        synacks: 1,
        ends: ipv4(),
        ..tcp_accept_event::default()
    };
    let rows = rows_of(&mut *TcpAcceptTracker.decoder(), &[bytes_of(&event)]);
    let [row] = <[Row; 1]>::try_from(rows).unwrap();
    assert_eq!((row.table.as_str(), row.text("process")), ("tcp_accept", "service"));
    assert_eq!((row.u64("pid"), row.u64("tid"), row.text("thread")), (5_000, 5_001, "acceptor"));
    assert_eq!(row.u64("start_time"), FakeContext::OFFSET + SECOND);
    assert_eq!((row.u64("duration_ns"), row.u64("queue_ns")), (40 * MS, 40 * MS));
    assert_eq!((row.text("local"), row.text("peer")), ("10.0.0.1:80", "10.0.0.2:40000"));
    assert_eq!((row.u64("handshake_ns"), row.u64("synack_retransmits")), (3 * MS, 1));
    assert_eq!((row.u64("queue_length"), row.u64("queue_limit")), (2, 128));
}

#[test]
fn both_families_are_written_as_requests_have_them() {
    let mut six = tcp_ends { family: libc::AF_INET6 as u16, ..ipv4() };
    six.local = std::net::Ipv6Addr::LOCALHOST.octets();
    // IPv4 on a socket of both families.
    six.peer = std::net::Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped().octets();
    assert_eq!(ends(&six), ("[::1]:80".to_owned(), "10.0.0.2:40000".to_owned()));
    assert_eq!(ends(&tcp_ends::default()), (String::new(), String::new()));
}

#[test]
fn a_listener_is_told_when_there_is_something_to_say() {
    let events = [
        listener(SECOND, 0, 7),      // first seen: what it dropped before is not told
        listener(2 * SECOND, 0, 7),  // nothing
        listener(3 * SECOND, 5, 7),  // a queue
        listener(4 * SECOND, 0, 9),  // drops
        listener(5 * SECOND, 0, 9),  // nothing
        listener(65 * SECOND, 0, 9), // a minute later
    ];
    let records: Vec<_> = events.iter().map(bytes_of).collect();
    let mut rows = rows_of(&mut *TcpAcceptTracker.decoder(), &records);
    rows.sort_by_key(|row| row.u64("start_time"));
    let told: Vec<_> = rows
        .iter()
        .map(|row| (row.u64("duration_ns") / SECOND, row.u64("queue_length"), row.u64("drops")))
        .collect();
    assert_eq!(told, [(0, 0, 0), (1, 5, 0), (1, 0, 2), (60, 0, 0)]);
    assert!(rows.iter().all(|row| row.text("local") == "10.0.0.1:80"));
    assert!(rows.iter().all(|row| row.u64("queue_limit") == 128));
}

#[test]
fn counters_that_begin_anew_are_no_drops() {
    let events = [listener(SECOND, 1, 1_000), listener(2 * SECOND, 1, 3)];
    let records: Vec<_> = events.iter().map(bytes_of).collect();
    let rows = rows_of(&mut *TcpAcceptTracker.decoder(), &records);
    assert!(rows.iter().all(|row| row.u64("drops") == 0), "{rows:?}");
    // They wrap, too.
    let events = [listener(SECOND, 1, u32::MAX), listener(2 * SECOND, 1, 1)];
    let records: Vec<_> = events.iter().map(bytes_of).collect();
    let rows = rows_of(&mut *TcpAcceptTracker.decoder(), &records);
    assert_eq!(rows.iter().map(|row| row.u64("drops")).sum::<u64>(), 2);
}
