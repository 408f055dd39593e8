//! Rows that will never reach the store, counted by table and reason.

use std::collections::BTreeMap;
use std::fmt;

/// Why rows were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The sink's queue and the collector's own buffer were full.
    QueueFull,
    /// The spool reached its bound and its oldest rows made room.
    SpoolFull,
    /// The rows waited in the spool for longer than the table keeps them.
    Expired,
    /// One batch was larger than the whole spool.
    TooLarge,
    /// The spool could not be written (disk full, I/O error).
    SpoolWrite,
    /// The spool's file was damaged. Counts records, because their rows cannot be read.
    SpoolDamaged,
    /// The store refused the rows for good; they are kept in `rejected/`.
    Rejected,
}

impl Reason {
    /// The reason's name in the table `lost_events` and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::QueueFull => "queue_full",
            Reason::SpoolFull => "spool_full",
            Reason::Expired => "expired",
            Reason::TooLarge => "batch_too_large",
            Reason::SpoolWrite => "spool_write",
            Reason::SpoolDamaged => "spool_damaged",
            Reason::Rejected => "rejected",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Rows of one table that were lost for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The table; empty where it cannot be known.
    pub table: String,
    /// Why.
    pub reason: Reason,
    /// How many.
    pub rows: u64,
}

/// Counts losses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses(BTreeMap<(String, Reason), u64>);

impl Losses {
    /// Counts `rows` more.
    pub fn add(&mut self, table: &str, reason: Reason, rows: u64) {
        if rows > 0 {
            *self.0.entry((table.to_owned(), reason)).or_default() += rows;
        }
    }

    /// Adds what another counter has.
    pub fn merge(&mut self, other: Losses) {
        for ((table, reason), rows) in other.0 {
            *self.0.entry((table, reason)).or_default() += rows;
        }
    }

    /// The counts, and starts again from zero.
    pub fn take(&mut self) -> Losses {
        std::mem::take(self)
    }

    /// Whether nothing was lost.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All rows lost.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Rows lost for one reason.
    pub fn by_reason(&self, reason: Reason) -> u64 {
        self.iter().filter(|loss| loss.reason == reason).map(|loss| loss.rows).sum()
    }

    /// One entry per table and reason.
    pub fn iter(&self) -> impl Iterator<Item = Loss> + '_ {
        self.0.iter().map(|((table, reason), rows)| Loss {
            table: table.clone(),
            reason: *reason,
            rows: *rows,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_add_up_and_start_again_once_taken() {
        let mut losses = Losses::default();
        losses.add("waits", Reason::SpoolFull, 2);
        losses.add("waits", Reason::SpoolFull, 3);
        losses.add("waits", Reason::Expired, 1);
        losses.add("requests", Reason::SpoolFull, 0);
        let mut sum = losses.take();
        assert!(losses.is_empty());
        losses.add("requests", Reason::SpoolFull, 7);
        sum.merge(losses);
        assert_eq!(sum.by_reason(Reason::SpoolFull), 12);
        assert_eq!(sum.total(), 13);
        assert_eq!(sum.iter().count(), 3);
    }
}
