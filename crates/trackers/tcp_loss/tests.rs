//! Stalls, from records to rows.

use super::TcpLossTracker;
use crate::record::{
    bytes_of, event_header, event_kind, tcp_ends, tcp_loss_event, tcp_loss_kind, tcp_loss_reason,
};
use crate::tests::support::{FakeContext, Row, decode};
use crate::{Rows, Tracker as _};

const MS: u64 = 1_000_000;

fn stall(kind: u32) -> tcp_loss_event {
    let mut ends = tcp_ends { family: libc::AF_INET6 as u16, ..tcp_ends::default() };
    ends.local[15] = 1;
    ends.peer[15] = 1;
    (ends.local_port, ends.peer_port) = (80, 40_000);
    tcp_loss_event {
        h: event_header {
            kind: event_kind::EVENT_TCP_LOSS,
            tgid: 5_000,
            tid: 5_001,
            time: 1_000 * MS,
            ..event_header::default()
        },
        duration: 600 * MS,
        bytes: 2_896,
        retransmits: 2,
        backoff: 1,
        kind: kind as u8,
        ends,
        ..tcp_loss_event::default()
    }
}

fn row(event: &tcp_loss_event) -> Option<Row> {
    let mut context = FakeContext::new().know(5_000, 5_001, "worker");
    let mut rows = Rows::default();
    TcpLossTracker.decoder().event(bytes_of(event), &mut context, &mut rows).ok()?;
    decode(&mut rows).pop()
}

#[test]
fn every_column_has_its_value() {
    let row = row(&stall(tcp_loss_kind::TCP_RTO)).unwrap();
    assert_eq!((row.table.as_str(), row.text("process")), ("tcp_loss", "service"));
    assert_eq!((row.u64("pid"), row.u64("tid"), row.text("thread")), (5_000, 5_001, "worker"));
    assert_eq!(row.u64("start_time"), FakeContext::OFFSET + 1_000 * MS);
    assert_eq!(row.u64("duration_ns"), 600 * MS);
    assert_eq!((row.text("local"), row.text("peer")), ("[::1]:80", "[::1]:40000"));
    assert_eq!((row.text("kind"), row.text("reason")), ("rto", ""));
    assert_eq!((row.u64("retransmits"), row.u64("backoff"), row.u64("bytes")), (2, 1, 2_896));
}

#[test]
fn every_kind_and_reason_has_a_name_of_its_own_that_the_readme_explains() {
    let readme = TcpLossTracker.readme();
    let mut names = std::collections::BTreeSet::new();
    for kind in 1..tcp_loss_kind::TCP_LOSS_KINDS {
        let name = row(&stall(kind)).unwrap().text("kind").to_owned();
        assert!(readme.contains(&format!("`{name}`")), "{name}");
        assert!(names.insert(name));
    }
    for reason in 1..tcp_loss_reason::TCP_LOSS_REASONS {
        let event = tcp_loss_event { reason: reason as u8, ..stall(tcp_loss_kind::TCP_RESET_SENT) };
        let name = row(&event).unwrap().text("reason").to_owned();
        assert!(readme.contains(&format!("`{name}`")), "{name}");
        assert!(names.insert(name));
    }
}

#[test]
fn what_is_not_known_is_refused() {
    assert!(row(&stall(tcp_loss_kind::TCP_NO_LOSS)).is_none());
    assert!(row(&stall(tcp_loss_kind::TCP_LOSS_KINDS)).is_none());
    let reason = tcp_loss_reason::TCP_LOSS_REASONS as u8;
    assert!(row(&tcp_loss_event { reason, ..stall(tcp_loss_kind::TCP_DROP) }).is_none());
}
