//! What the sink did, readable from anywhere while it runs.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::losses::Losses;

/// Whether the store takes rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// The last insert succeeded, or none was tried yet.
    #[default]
    Up,
    /// The store does not answer; rows go to the spool until a probe succeeds.
    Down {
        /// What it said last.
        error: String,
    },
}

/// The sink's counters, all since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Rows inserted, by table, including those drained from the spool.
    pub inserted: BTreeMap<String, u64>,
    /// Rows that went to the spool.
    pub spooled: u64,
    /// Rows inserted from the spool.
    pub drained: u64,
    /// Rows lost, by table and reason.
    pub losses: Losses,
    /// Bytes in the spool now.
    pub spool_bytes: u64,
    /// Rows in the spool now.
    pub spool_rows: u64,
    /// Whether the store takes rows now.
    pub health: Health,
    /// For how long the oldest rows in memory have waited for it. Much of that says that it does not keep up.
    pub waits: Duration,
}

impl Stats {
    /// Rows inserted into all tables.
    pub fn inserted_total(&self) -> u64 {
        self.inserted.values().sum()
    }
}

/// The counters, shared between the collector, the task and whoever reads them.
#[derive(Debug, Default)]
pub(super) struct Shared {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) stats: Stats,
    /// Losses not yet written to `lost_events`.
    unreported: Losses,
    /// Bytes on their way from the collector to the task.
    pub(super) queued_bytes: usize,
}

impl Inner {
    pub(super) fn lose(&mut self, losses: Losses) {
        self.stats.losses.merge(losses.clone());
        self.unreported.merge(losses);
    }
}

impl Shared {
    /// Counters stay right even if a thread died while it held them: each update is one step.
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take_losses(&self) -> Losses {
        self.lock().unreported.take()
    }
}
