//! Rounds of readings, from counters to rows.

use super::metric::named;
use super::*;
use crate::tests::support::{FakeContext, Row, decode};
use crate::{Decoder, Rows};

const SECOND: u64 = 1_000_000_000;
const DROPS: &str = "node_network_receive_drop_total";
const STOLEN: &str = "node_cpu_seconds_total";

fn reading(name: &str, subject: &str, identity: u64, value: u64) -> Reading {
    Reading { metric: named(name).unwrap(), subject: Subject::new(subject), identity, value }
}

fn absent(status: Status, note: &str) -> Absent {
    let subject = Subject::new("eth0");
    Absent { source: Source::Ena, subject, status, note: note.to_owned() }
}

struct Decoding {
    decoder: Box<dyn Decoder>,
    context: FakeContext,
    rounds: u64,
}

impl Decoding {
    fn new() -> Self {
        Decoding { decoder: ThrottleTracker.decoder(), context: FakeContext::new(), rounds: 0 }
    }

    /// A round a second after the one before.
    fn round(&mut self, readings: &[Reading], absent: &[Absent]) -> Vec<Row> {
        self.rounds += 1;
        let at = 1_000 * SECOND + self.rounds * SECOND;
        let since = if self.rounds == 1 { 0 } else { at - SECOND };
        let (readings, absent) = (readings.to_vec(), absent.to_vec());
        let round = Round { since, at, readings, absent, left_out: 0 };
        let mut rows = Rows::default();
        self.decoder.throttle(&round, &mut self.context, &mut rows);
        decode(&mut rows)
    }
}

/// What rows say, in short.
fn said(rows: &[Row]) -> Vec<(String, u64, u64)> {
    let short = |row: &Row| (row.text("status").to_owned(), row.u64("delta"), row.u64("total"));
    rows.iter().map(short).collect()
}

fn says(status: &str, delta: u64, total: u64) -> Vec<(String, u64, u64)> {
    vec![(status.to_owned(), delta, total)]
}

#[test]
fn every_column_has_its_value() {
    let mut decoding = Decoding::new();
    decoding.round(&[reading(STOLEN, "1", 0, 40)], &[]);
    let rows = decoding.round(&[reading(STOLEN, "1", 0, 70)], &[]);
    let [row] = &rows[..] else { panic!("{} rows", rows.len()) };
    assert_eq!(row.table, "throttle");
    assert_eq!(row.text("host"), FakeContext::HOST);
    assert_eq!((row.u64("pid"), row.u64("tid"), row.text("thread")), (0, 0, ""));
    assert_eq!(row.u64("start_time"), FakeContext::OFFSET + 1_001 * SECOND);
    assert_eq!(row.u64("duration_ns"), SECOND);
    assert_eq!((row.text("source"), row.text("metric")), ("cpu", STOLEN));
    assert_eq!((row.text("subject"), row.u64("netns"), row.text("unit")), ("1", 0, "ns"));
    assert_eq!((row.text("status"), row.text("note")), ("read", ""));
    assert_eq!((row.u64("delta"), row.u64("total")), (30, 70));
}

#[test]
fn a_counter_has_a_row_when_it_moves_and_once_a_minute() {
    let mut decoding = Decoding::new();
    assert_eq!(said(&decoding.round(&[reading(DROPS, "eth0", 2, 9)], &[])), says("read", 0, 9));
    let mut rows = Vec::new();
    for _ in 1..60 {
        rows.extend(decoding.round(&[reading(DROPS, "eth0", 2, 9)], &[]));
    }
    assert!(rows.is_empty(), "{} rows of a counter that stood still", rows.len());
    assert_eq!(said(&decoding.round(&[reading(DROPS, "eth0", 2, 9)], &[])), says("read", 0, 9));
    assert_eq!(said(&decoding.round(&[reading(DROPS, "eth0", 2, 12)], &[])), says("read", 3, 12));
}

#[test]
fn a_reset_is_said_and_counted_and_adds_nothing() {
    let mut decoding = Decoding::new();
    decoding.round(&[reading(DROPS, "eth0", 2, 1_000)], &[]);
    assert_eq!(said(&decoding.round(&[reading(DROPS, "eth0", 2, 7)], &[])), says("reset", 0, 7));
    assert_eq!(decoding.context.lost[&("throttle", "counter_reset")], 1);
    assert_eq!(said(&decoding.round(&[reading(DROPS, "eth0", 2, 8)], &[])), says("read", 1, 8));
    assert_eq!(decoding.context.lost.len(), 1);
}

#[test]
fn an_interface_that_vanishes_is_gone_once_and_another_of_its_name_starts_afresh() {
    let mut decoding = Decoding::new();
    let all = [
        reading(DROPS, "veth7", 11, 5),
        reading("node_network_transmit_drop_total", "veth7", 11, 6),
        reading(DROPS, "eth0", 2, 0),
    ];
    decoding.round(&all, &[]);
    let rows = decoding.round(&all[2..], &[]);
    assert_eq!(said(&rows), says("gone", 0, 0));
    assert_eq!((rows[0].text("source"), rows[0].text("subject")), ("interface", "veth7"));
    assert!(decoding.round(&all[2..], &[]).is_empty());
    let made_anew = [reading(DROPS, "veth7", 12, 900), all[2].clone()];
    assert_eq!(said(&decoding.round(&made_anew, &[])), says("read", 0, 900));
    assert!(decoding.context.lost.is_empty());
}

#[test]
fn what_cannot_be_read_is_said_when_that_changes_and_once_a_minute() {
    let mut decoding = Decoding::new();
    let refused = [absent(Status::Refused, "ethtool: Operation not permitted")];
    let rows = decoding.round(&[], &refused);
    assert_eq!(said(&rows), says("refused", 0, 0));
    assert_eq!((rows[0].text("metric"), rows[0].text("subject")), ("", "eth0"));
    assert_eq!(rows[0].text("note"), "ethtool: Operation not permitted");
    for _ in 1..60 {
        assert!(decoding.round(&[], &refused).is_empty());
    }
    assert_eq!(said(&decoding.round(&[], &refused)), says("refused", 0, 0));
    let unsupported = [absent(Status::Unsupported, "driver gone")];
    assert_eq!(said(&decoding.round(&[], &unsupported)), says("unsupported", 0, 0));
}

#[test]
fn a_step_of_the_clock_moves_rows_and_changes_no_number() {
    let mut decoding = Decoding::new();
    decoding.round(&[reading(DROPS, "eth0", 2, 1)], &[]);
    for step in [3_600 * SECOND, 0] {
        decoding.context.offset = FakeContext::OFFSET - step;
        let value = 2 + decoding.rounds;
        let rows = decoding.round(&[reading(DROPS, "eth0", 2, value)], &[]);
        assert_eq!((rows.len(), rows[0].u64("duration_ns")), (1, SECOND));
        assert!(rows[0].u64("delta") <= 2, "{}", rows[0].u64("delta"));
    }
    assert!(decoding.context.lost.is_empty());
}

#[test]
fn what_was_left_out_is_counted() {
    let mut decoding = Decoding::new();
    let round = Round { at: SECOND, left_out: 40, ..Round::default() };
    decoding.decoder.throttle(&round, &mut decoding.context, &mut Rows::default());
    assert_eq!(decoding.context.lost[&("throttle", "too_many")], 40);
}

#[test]
fn the_page_names_every_counter() {
    for metric in &METRICS {
        let name = format!("`{}`", metric.name);
        assert!(ThrottleTracker.readme().contains(&name), "{name} in README.md");
    }
    for source in Source::ALL {
        let row = format!("| `{}` |", source.name());
        assert!(ThrottleTracker.readme().contains(&row), "{row} in README.md");
    }
}
