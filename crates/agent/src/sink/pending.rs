//! Batches that wait in memory for the insert under way.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;
use underspan_store::Batch;

/// Oldest first.
#[derive(Debug, Default)]
pub(super) struct Pending {
    batches: VecDeque<(Batch, Instant)>,
    bytes: usize,
}

impl Pending {
    /// Takes a batch. One of the same table that waits already, and has room, takes its rows: a store that
    /// is slow gets fewer and larger inserts, each of which costs it about the same.
    pub(super) fn push(&mut self, batch: Batch, most_rows: u64, most_bytes: usize) {
        self.bytes += batch.bytes.len();
        let has_room = |waiting: &Batch| {
            waiting.table == batch.table
                && waiting.columns == batch.columns
                && waiting.rows + batch.rows <= most_rows
                && waiting.bytes.len() + batch.bytes.len() <= most_bytes
        };
        match self.batches.iter_mut().find(|(waiting, _)| has_room(waiting)) {
            Some((waiting, _)) => {
                waiting.rows += batch.rows;
                waiting.bytes.extend_from_slice(&batch.bytes);
            }
            None => self.batches.push_back((batch, Instant::now())),
        }
    }

    pub(super) fn pop(&mut self) -> Option<(Batch, Instant)> {
        let (batch, since) = self.batches.pop_front()?;
        self.bytes -= batch.bytes.len();
        Some((batch, since))
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// For how long the oldest has waited.
    pub(super) fn age(&self) -> Duration {
        self.batches.front().map_or(Duration::ZERO, |(_, since)| since.elapsed())
    }
}
