//! From rows to the store: collects, inserts, and spools while the store is away.
//!
//! ```text
//! Collector ── one open batch per table ──▶ bounded queue ──▶ task ──▶ store
//! (decoding thread)                                            └─▶ spool ──▶ store, later
//! ```
//!
//! A [`Flusher`] has the open batches sent at once; a mark behind them in the queue tells when they are in.
//!
//! A row given to the [`Collector`] ends in exactly one of [`Stats::inserted`], the spool, or
//! [`Stats::losses`] with its reason.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::losses::Losses;
use crate::spool::Spool;

mod collector;
mod flusher;
mod insert;
mod pending;
mod stats;
mod store;
mod task;
#[cfg(test)]
mod tests;

pub use collector::Collector;
pub use flusher::Flusher;
pub use insert::{Insert, InsertError};
use stats::Shared;
pub use stats::{Health, Stats};
use task::Task;

/// The sink's limits. The defaults hold a busy host's rows within some 30 MiB of memory.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// A batch goes on at this age. Each is an insert, which costs the store some 10 ms.
    pub flush_every: Duration,
    /// At this age, while whoever reads the store has it asked for first: [`underspan_store::embedded::Holds`].
    pub flush_every_if_asked: Duration,
    /// A batch goes on at this many rows.
    pub batch_rows: u64,
    /// A batch goes on at this many bytes.
    pub batch_bytes: usize,
    /// Bytes between the collector and the task; when they are full the collector holds its batches,
    /// up to twice their size, before it drops rows.
    pub queue_bytes: usize,
    /// Bytes that may wait in memory for an insert that is under way, before the spool takes them.
    pub pending_bytes: usize,
    /// An insert that takes longer counts as failed, and is tried again later.
    pub insert_timeout: Duration,
    /// The pause before the first probe of a store that failed; it doubles …
    pub backoff_min: Duration,
    /// … up to this.
    pub backoff_max: Duration,
    /// How fast the spool is drained beside live rows.
    pub drain_bytes_per_s: u64,
    /// The bound of `rejected/`, in bytes.
    pub rejected_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            flush_every: Duration::from_secs(1),
            flush_every_if_asked: Duration::from_secs(10),
            batch_rows: 50_000,
            batch_bytes: 4 << 20,
            queue_bytes: 8 << 20,
            pending_bytes: 8 << 20,
            insert_timeout: Duration::from_secs(30),
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(5),
            drain_bytes_per_s: 8 << 20,
            rejected_bytes: 16 << 20,
        }
    }
}

/// How many batches may be queued. The queue's true bound is in bytes.
const QUEUE_BATCHES: usize = 256;

/// A running sink.
#[derive(Debug)]
pub struct Sink {
    shared: Arc<Shared>,
    /// When to be done at the latest, once it is known.
    stop: watch::Sender<Option<Instant>>,
    flusher: Flusher,
    task: JoinHandle<()>,
}

impl Sink {
    /// Starts the task on the current Tokio runtime. Rows that earlier runs left in the spool are
    /// drained.
    ///
    /// The spool's file operations run on the task; they block its worker thread for as long as the
    /// disk takes.
    pub fn start(insert: impl Insert, spool: Spool, options: Options) -> (Sink, Collector) {
        let shared = Arc::new(Shared::default());
        let (sender, receiver) = mpsc::channel(QUEUE_BATCHES);
        let (stop, stopped) = watch::channel(None);
        let (flusher, asked, written) = flusher::new();
        let task = Task::new(insert, spool, options, Arc::clone(&shared), receiver, written);
        let task = tokio::spawn(task.run(stopped));
        let collector = Collector::new(sender, Arc::clone(&shared), options, asked);
        (Sink { shared, stop, flusher, task }, collector)
    }

    /// Has what was collected written at once, for whoever is about to read.
    pub fn flusher(&self) -> Flusher {
        self.flusher.clone()
    }

    /// The counters now.
    pub fn stats(&self) -> Stats {
        self.shared.lock().stats.clone()
    }

    /// The rows lost since this was last called, to be written to `lost_events`.
    pub fn take_losses(&self) -> Losses {
        self.shared.take_losses()
    }

    /// Inserts what was collected until `within` has passed or `hurry` is done, and spools the rest.
    /// Drop the [`Collector`] first: what it sends after this call is counted as lost.
    pub async fn shutdown(mut self, within: Duration, hurry: impl Future<Output = ()>) -> Stats {
        self.stop.send_replace(Some(Instant::now() + within));
        let ended = tokio::select! {
            ended = &mut self.task => ended,
            () = hurry => {
                self.stop.send_replace(Some(Instant::now()));
                self.task.await
            }
        };
        if let Err(error) = ended {
            tracing::error!("the sink's task failed: {error}");
        }
        self.shared.lock().stats.clone()
    }
}
