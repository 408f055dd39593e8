//! What was lost: counted once a second by tracker and reason, told to `/metrics` at once, and written
//! when the store takes it.

use std::collections::{BTreeMap, HashMap};

use underspan_model::LostEvents;
use underspan_trackers::{Context as _, LostCount};

use super::{Agent, OpenError};
use crate::rows::{LOST_EVENTS, LOST_EVENTS_COLUMNS};
use crate::{Collector, Metrics, Sink, rows};

/// Losses of one run.
pub(super) struct Lost {
    /// Up to the last count, of those that are told as a total.
    totals: HashMap<(&'static str, &'static str), u64>,
    /// Not yet written, by tracker and reason, and since when they were counted.
    unwritten: BTreeMap<(String, String), u64>,
    unwritten_since: u64,
}

impl Lost {
    /// Nothing, as of `now`.
    pub(super) fn begin(now: u64) -> Self {
        Lost { totals: HashMap::new(), unwritten: BTreeMap::new(), unwritten_since: now }
    }

    /// Counts so many more.
    pub(super) fn count(
        &mut self,
        metrics: Option<&Metrics>,
        tracker: &str,
        reason: String,
        count: u64,
    ) {
        if count > 0 {
            if let Some(metrics) = metrics {
                metrics.lost(tracker, &reason, count);
            }
            *self.unwritten.entry((tracker.to_owned(), reason)).or_default() += count;
        }
    }
}

impl Agent {
    /// Counts what was lost since the last call, by whom and why.
    pub(super) fn count_lost(&mut self, lost: &mut Lost, sink: &Sink) -> Result<(), OpenError> {
        let mut totals: Vec<_> = self
            .session
            .lost()?
            .into_iter()
            .map(|LostCount { tracker, reason, count }| (tracker, reason, count))
            .collect();
        if let Some(netstack) = &self.netstack {
            let lost = netstack.lost()?.into_iter();
            totals.extend(lost.map(|lost| (lost.tracker, lost.reason, lost.count)));
        }
        let programs = self.programs.read()?;
        let missed = programs.values().map(|program| program.recursion_misses).sum();
        totals.push(("ledger", "recursion", missed));
        totals.push(("agent", "malformed", self.malformed));
        totals.push(("agent", "shed", self.shed));
        totals.push(("goroutine", "queue_full", self.goroutines.lost()));
        totals.push(("throttle", "queue_full", self.host.lost()));
        totals.push(("stack", "no_room", self.session.unwind_stats().refused));

        let metrics = self.metrics.as_ref();
        for (tracker, reason, total) in totals {
            let before = lost.totals.insert((tracker, reason), total).unwrap_or(0);
            lost.count(metrics, tracker, reason.to_owned(), total.saturating_sub(before));
        }
        for ((tracker, reason), count) in self.namer.take_lost() {
            lost.count(metrics, tracker, reason.to_owned(), count);
        }
        for loss in sink.take_losses().iter() {
            lost.count(metrics, "agent", format!("{} {}", loss.reason, loss.table), loss.rows);
        }
        Ok(())
    }

    /// Writes what was counted since the last call.
    pub(super) fn write_lost(&self, lost: &mut Lost, collector: &mut Collector, now: u64) {
        let since = std::mem::replace(&mut lost.unwritten_since, now);
        for ((tracker, reason), count) in std::mem::take(&mut lost.unwritten) {
            let row = LostEvents {
                host: self.namer.host().to_owned(),
                start_time: self.namer.unix_ns(since),
                duration_ns: now.saturating_sub(since),
                tracker,
                reason,
                count,
            };
            rows::lost_events(collector.batch(LOST_EVENTS, LOST_EVENTS_COLUMNS), &row);
        }
    }
}
