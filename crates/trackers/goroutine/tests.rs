//! Looks at goroutines, from rounds to rows.

use std::sync::Arc;

use underspan_model::StackEnd;

use super::{GoroutineTracker, Round, Sample};
use crate::tests::support::{FakeContext, Row, decode};
use crate::{Decoder, Rows, Tracker as _};

const MS: u64 = 1_000_000;

/// A goroutine that polls, 100 ms after the look before.
fn polls(at: u64) -> Round {
    let sample = Sample {
        goid: 18,
        status: "waiting",
        wait_reason: Arc::from("IO wait"),
        wait_ns: at,
        weight_ns: 100 * MS,
        tid: 0,
        stack: Arc::from([0x47_0001, 0x48_0002]),
        end: StackEnd::Complete,
        function: Arc::from("main.(*consumer).run"),
    };
    Round { pid: 5_000, since: at - 100 * MS, at, samples: vec![sample], torn: 0 }
}

struct Decoding {
    decoder: Box<dyn Decoder>,
    context: FakeContext,
    rows: Rows,
}

impl Decoding {
    fn new() -> Self {
        let context =
            FakeContext::new().know(5_000, 5_000, "consumer").know(5_000, 5_003, "consumer");
        Decoding { decoder: GoroutineTracker.decoder(), context, rows: Rows::default() }
    }

    fn see(&mut self, round: Round) {
        self.decoder.goroutines(&round, &mut self.context, &mut self.rows);
    }

    fn rows(&mut self) -> Vec<Row> {
        decode(&mut self.rows)
    }

    fn finish(mut self) -> Vec<Row> {
        self.decoder.finish(u64::MAX, &mut self.context, &mut self.rows);
        self.rows()
    }
}

#[test]
fn every_column_has_its_value() {
    let mut decoding = Decoding::new();
    decoding.see(polls(500 * MS));
    let rows = decoding.finish();
    let [row] = &rows[..] else { panic!("{} rows", rows.len()) };
    assert_eq!(row.table, "goroutine");
    assert_eq!(row.text("host"), FakeContext::HOST);
    assert_eq!((row.u64("pid"), row.u64("tid"), row.u64("ns_tid")), (5_000, 0, 0));
    assert_eq!(row.u64("duration_ns"), 100 * MS);
    assert_eq!(row.text("thread"), "main.(*consumer).run");
    assert_eq!((row.u64("goid"), row.text("status")), (18, "waiting"));
    assert_eq!((row.text("wait_reason"), row.u64("wait_ns")), ("IO wait", 500 * MS));
    assert_ne!(row.u64("stack_id"), 0);
}

#[test]
fn looks_that_see_the_same_are_one_row_up_to_a_second() {
    let mut decoding = Decoding::new();
    for look in 1..=25 {
        decoding.see(polls(look * 100 * MS));
        decoding.decoder.tick(look * 100 * MS, &mut decoding.context, &mut decoding.rows);
    }
    let rows = decoding.finish();
    let weights: Vec<_> = rows.iter().map(|row| row.u64("duration_ns") / MS).collect();
    assert_eq!(weights, [1000, 1000, 500]);
}

#[test]
fn another_wait_another_row() {
    let mut decoding = Decoding::new();
    decoding.see(polls(100 * MS));
    let mut runs = polls(200 * MS);
    let none: Arc<[u64]> = Arc::from([]);
    for sample in &mut runs.samples {
        (sample.status, sample.tid, sample.stack) = ("running", 5_003, Arc::clone(&none));
        sample.wait_reason = Arc::from("");
    }
    decoding.see(runs);
    decoding.see(polls(300 * MS));
    let rows = decoding.finish();
    let seen: Vec<_> = rows
        .iter()
        .map(|row| (row.text("status"), row.u64("tid"), row.u64("stack_id") == 0))
        .collect();
    assert_eq!(seen, [("waiting", 0, false), ("running", 5_003, true), ("waiting", 0, false)]);
}

#[test]
fn a_look_that_was_missed_is_not_filled_in() {
    let mut decoding = Decoding::new();
    decoding.see(polls(100 * MS));
    decoding.see(polls(300 * MS));
    let rows = decoding.finish();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows.iter().map(|row| row.u64("duration_ns")).sum::<u64>(), 200 * MS);
}

#[test]
fn torn_reads_are_counted() {
    let mut decoding = Decoding::new();
    decoding.see(Round { torn: 3, ..polls(100 * MS) });
    assert_eq!(decoding.context.lost[&("goroutine", "torn")], 3);
}
