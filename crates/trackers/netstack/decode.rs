//! From readings of the histograms to rows: what was added since the reading before.

use crate::netstack::{BUCKETS, Histogram, NAME, buckets};
use crate::rows::span_row;
use crate::{Context, Decoder, Measure, Rows, Thread};

pub(super) struct NetstackDecoder {
    columns: Vec<String>,
    before: Vec<Histogram>,
    /// When that was read. `None`: never.
    since: Option<u64>,
}

impl NetstackDecoder {
    pub(super) fn new(columns: Vec<String>) -> Self {
        NetstackDecoder { columns, before: Vec::new(), since: None }
    }
}

impl Decoder for NetstackDecoder {
    fn histograms(
        &mut self,
        histograms: &[Histogram],
        now: u64,
        context: &mut dyn Context,
        rows: &mut Rows,
    ) {
        // What came before the first reading came within an unknown time.
        if let Some(since) = self.since {
            for histogram in histograms {
                let same = |before: &&Histogram| before.group() == histogram.group();
                let new = match self.before.iter().find(same) {
                    Some(before) => histogram.since(before),
                    None => histogram.clone(),
                };
                if new.count() > 0 {
                    self.write(&new, since, now, context, rows);
                    context.measure(&Measure::Packets(&new));
                }
            }
        }
        self.before = histograms.to_vec();
        self.since = Some(now);
    }

    fn tick(&mut self, _now: u64, _context: &mut dyn Context, _rows: &mut Rows) {}

    fn finish(&mut self, _now: u64, _context: &mut dyn Context, _rows: &mut Rows) {}
}

impl NetstackDecoder {
    fn write(
        &self,
        new: &Histogram,
        since: u64,
        now: u64,
        context: &mut dyn Context,
        rows: &mut Rows,
    ) {
        // A packet is no thread's.
        let nobody = Thread::default();
        let batch = rows.table(NAME, &self.columns);
        let mut row = span_row(batch, context, &nobody, since, now.saturating_sub(since));
        row.str(new.point.name()).str(if new.ipv6 { "ipv6" } else { "ipv4" });
        row.str(&new.interface).u32(new.netns).str(&new.cgroup);
        row.u64(new.count()).u64(new.sum_ns);
        let filled: Vec<_> = (0..BUCKETS).filter(|bucket| new.buckets[*bucket] > 0).collect();
        row.len(filled.len());
        for bucket in &filled {
            row.u64(buckets::upper_bound_ns(*bucket).unwrap_or(u64::MAX));
        }
        row.len(filled.len());
        for bucket in filled {
            row.u64(new.buckets[bucket]);
        }
    }
}
