//! From rounds of readings to rows.

use std::collections::{BTreeMap, BTreeSet};

use super::counters::{Change, Counters};
use super::{Absent, Metric, Round, Source, Status, Subject, metric};
use crate::rows::span_row;
use crate::{Context, Decoder, Measure, Rows, Thread};

/// A counter that does not move has a row this often: that it was read, and what it stood at.
const REPEAT_NS: u64 = 60_000_000_000;

pub(super) struct ThrottleDecoder {
    columns: Vec<String>,
    counters: Counters,
    rounds: u64,
    repeated: Option<u64>,
    /// What was absent in the round before.
    absent: BTreeSet<Absent>,
}

/// What a row says beside its time.
struct Line<'a> {
    source: Source,
    metric: Option<&'static Metric>,
    subject: &'a Subject,
    status: Status,
    delta: u64,
    total: u64,
    note: &'a str,
}

impl ThrottleDecoder {
    pub(super) fn new(columns: Vec<String>) -> Self {
        ThrottleDecoder {
            columns,
            counters: Counters::default(),
            rounds: 0,
            repeated: None,
            absent: BTreeSet::new(),
        }
    }

    fn write(&self, round: &Round, line: &Line<'_>, context: &mut dyn Context, rows: &mut Rows) {
        let start = if round.since == 0 { round.at } else { round.since };
        let batch = rows.table("throttle", &self.columns);
        // Of no thread: of the host.
        let duration = round.at.saturating_sub(start);
        let mut row = span_row(batch, context, &Thread::default(), start, duration);
        row.str(line.source.name()).str(line.metric.map_or("", |metric| metric.name));
        row.str(&line.subject.name).u64(line.subject.netns);
        row.str(line.metric.map_or("", |metric| metric.unit.name())).str(line.status.name());
        row.u64(line.delta).u64(line.total).str(line.note);
    }

    fn readings(&mut self, round: &Round, context: &mut dyn Context, rows: &mut Rows) {
        let repeat = self.repeated.is_none_or(|at| round.at.saturating_sub(at) >= REPEAT_NS);
        if repeat {
            self.repeated = Some(round.at);
        }
        let mut resets = 0;
        for reading in &round.readings {
            let (status, delta) = match self.counters.change(reading, self.rounds) {
                Change::First => (Status::Read, 0),
                Change::Added(0) if !repeat => continue,
                Change::Added(delta) => (Status::Read, delta),
                Change::Reset => {
                    resets += 1;
                    (Status::Reset, 0)
                }
            };
            let line = Line {
                source: reading.metric.source,
                metric: Some(reading.metric),
                subject: &reading.subject,
                status,
                delta,
                total: reading.value,
                note: "",
            };
            self.write(round, &line, context, rows);
        }
        if resets > 0 {
            context.count_lost("throttle", "counter_reset", resets);
        }
        // One row for a thing, not for each of its counters.
        let vanished = self.counters.vanished(self.rounds);
        let gone: BTreeMap<_, _> = vanished
            .into_iter()
            .filter_map(|(name, subject)| Some(((metric::named(name)?.source, subject), ())))
            .collect();
        for (source, subject) in gone.into_keys() {
            let status = Status::Gone;
            let subject = &subject;
            let line = Line { source, metric: None, subject, status, delta: 0, total: 0, note: "" };
            self.write(round, &line, context, rows);
        }
        if repeat {
            self.absent.clear();
        }
    }

    fn absent(&mut self, round: &Round, context: &mut dyn Context, rows: &mut Rows) {
        let now: BTreeSet<_> = round.absent.iter().cloned().collect();
        for absent in now.difference(&self.absent) {
            let line = Line {
                source: absent.source,
                metric: None,
                subject: &absent.subject,
                status: absent.status,
                delta: 0,
                total: 0,
                note: &absent.note,
            };
            self.write(round, &line, context, rows);
        }
        self.absent = now;
    }
}

impl Decoder for ThrottleDecoder {
    fn throttle(&mut self, round: &Round, context: &mut dyn Context, rows: &mut Rows) {
        self.rounds += 1;
        self.readings(round, context, rows);
        self.absent(round, context, rows);
        if round.left_out > 0 {
            context.count_lost("throttle", "too_many", round.left_out);
        }
        context.measure(&Measure::Host(round));
    }

    fn tick(&mut self, _now: u64, _context: &mut dyn Context, _rows: &mut Rows) {}

    fn finish(&mut self, _now: u64, _context: &mut dyn Context, _rows: &mut Rows) {}
}
