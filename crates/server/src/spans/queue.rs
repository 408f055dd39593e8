//! The bounded place between receivers and the writer.
//!
//! A span is acknowledged once it is in here. While the store takes nothing, or when there is no
//! room, senders are asked to come back: they keep their spans meanwhile.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use underspan_store::Batch;
use underspan_store::embedded::Holds;

use super::row;

/// How much is gathered, and how much is kept at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// A batch is written once it has this many spans,
    pub(crate) batch_spans: u64,
    /// or once its first span has waited this long.
    pub(crate) batch_age: Duration,
    /// While whoever reads has spans written first, it may wait this long,
    pub(crate) held_age: Duration,
    /// and is written once it has this many bytes.
    pub(crate) held_bytes: usize,
    /// Spans beyond this many are refused,
    pub(crate) max_spans: u64,
    /// and so are bytes of rows beyond this many.
    pub(crate) max_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            batch_spans: 10_000,
            batch_age: Duration::from_secs(1),
            held_age: Duration::from_secs(10),
            held_bytes: 1 << 20,
            max_spans: 100_000,
            max_bytes: 128 << 20,
        }
    }
}

/// Why a sender was asked to come back later.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// No room.
    #[error("too many spans wait for the store; send again in {} s", retry_after.as_secs())]
    Full { retry_after: Duration },
    /// The store takes nothing at present.
    #[error("the store does not take spans ({cause}); send again in {} s", retry_after.as_secs())]
    StoreDown { cause: String, retry_after: Duration },
    /// The server is ending.
    #[error("the server is shutting down; send again in {} s", retry_after.as_secs())]
    ShuttingDown { retry_after: Duration },
}

impl Refused {
    pub(crate) fn retry_after(&self) -> Duration {
        match self {
            Refused::Full { retry_after }
            | Refused::StoreDown { retry_after, .. }
            | Refused::ShuttingDown { retry_after } => *retry_after,
        }
    }
}

pub(crate) struct Queue {
    limits: Limits,
    state: Mutex<State>,
    /// Told when there is more to write, or sooner, and on closing.
    changed: Notify,
    /// How many batches are stored, or given up.
    settled: watch::Sender<u64>,
}

struct State {
    pending: Batch,
    /// When the first pending span came.
    since: Instant,
    /// Taken by the writer and not yet stored.
    in_flight: u64,
    /// How many batches the writer has taken.
    taken: u64,
    /// Somebody waits for what is pending.
    wanted: bool,
    /// Nobody reads without asking for it first.
    held: bool,
    outage: Option<Outage>,
    closed: bool,
}

#[derive(Clone)]
struct Outage {
    cause: String,
    /// Senders are let in again then, whatever happened meanwhile.
    until: Option<Instant>,
    retry_after: Duration,
}

impl Queue {
    pub(crate) fn new(limits: Limits) -> Self {
        let state = State {
            pending: row::empty(),
            since: Instant::now(),
            in_flight: 0,
            taken: 0,
            wanted: false,
            held: false,
            outage: None,
            closed: false,
        };
        let settled = watch::Sender::new(0);
        Queue { limits, state: Mutex::new(state), changed: Notify::new(), settled }
    }

    /// Takes all of `batch`, or nothing of it.
    pub(crate) fn push(&self, batch: Batch) -> Result<(), Refused> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut state = self.lock();
        if state.closed {
            return Err(Refused::ShuttingDown { retry_after: Duration::from_secs(5) });
        }
        if let Some(Outage { cause, retry_after, .. }) = state.outage() {
            return Err(Refused::StoreDown { cause, retry_after });
        }
        let spans = state.pending.rows + state.in_flight + batch.rows;
        let bytes = state.pending.bytes.len() + batch.bytes.len();
        let alone = state.pending.is_empty() && state.in_flight == 0;
        if !alone && (spans > self.limits.max_spans || bytes > self.limits.max_bytes) {
            return Err(Refused::Full { retry_after: Duration::from_secs(1) });
        }
        if state.pending.is_empty() {
            state.since = Instant::now();
        }
        state.pending.rows += batch.rows;
        state.pending.bytes.extend_from_slice(&batch.bytes);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// The next batch to write, once it is large or old enough. `None` once closed and empty.
    pub(crate) async fn take(&self) -> Option<Batch> {
        loop {
            // The lock is never held across an await.
            let wait = {
                let mut state = self.lock();
                let age = if state.held { self.limits.held_age } else { self.limits.batch_age };
                let ripe = state.since + age;
                let full = state.pending.rows >= self.limits.batch_spans
                    || (state.held && state.pending.bytes.len() >= self.limits.held_bytes);
                let now = state.wanted || state.closed;
                if state.pending.is_empty() {
                    if state.closed {
                        return None;
                    }
                    None
                } else if full || now || Instant::now() >= ripe {
                    let batch = std::mem::replace(&mut state.pending, row::empty());
                    state.in_flight = batch.rows;
                    state.taken += 1;
                    state.wanted = false;
                    return Some(batch);
                } else {
                    Some(ripe)
                }
            };
            match wait {
                None => self.changed.notified().await,
                Some(ripe) => {
                    let _ = tokio::time::timeout_at(ripe, self.changed.notified()).await;
                }
            }
        }
    }

    /// The batch that was taken is gone: stored, or given up.
    pub(crate) fn settled(&self) {
        let taken = {
            let mut state = self.lock();
            state.in_flight = 0;
            state.taken
        };
        self.settled.send_replace(taken);
    }

    /// Has what is pending written now, and waits until it is settled.
    async fn flush(&self) {
        let last = {
            let mut state = self.lock();
            state.wanted = !state.pending.is_empty();
            state.taken + u64::from(state.wanted)
        };
        self.changed.notify_one();
        // An error: there is no queue any more.
        let _ = self.settled.subscribe().wait_for(|settled| *settled >= last).await;
    }

    /// Refuses senders until `up`, or for `pause` if one is given.
    pub(crate) fn down(&self, cause: String, retry_after: Duration, pause: Option<Duration>) {
        let until = pause.map(|pause| Instant::now() + pause);
        self.lock().outage = Some(Outage { cause, until, retry_after });
    }

    /// Lets senders in again.
    pub(crate) fn up(&self) {
        self.lock().outage = None;
    }

    /// Why senders are refused at present.
    pub(crate) fn outage(&self) -> Option<String> {
        self.lock().outage().map(|outage| outage.cause)
    }

    /// Spans that are not yet stored.
    pub(crate) fn queued(&self) -> u64 {
        let state = self.lock();
        state.pending.rows + state.in_flight
    }

    /// Takes no more; what is queued is handed out at once.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// A panic elsewhere leaves the state whole: every change to it is a plain assignment.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has queued spans written when somebody is about to read the store.
pub struct Flusher(Arc<Queue>);

impl Flusher {
    pub(crate) fn new(queue: Arc<Queue>) -> Self {
        Flusher(queue)
    }
}

impl Holds for Flusher {
    fn will_be_asked(&self, will_be: bool) {
        self.0.lock().held = will_be;
        self.0.changed.notify_one();
    }

    async fn flush(&mut self) {
        self.0.flush().await;
    }
}

impl State {
    fn outage(&mut self) -> Option<Outage> {
        self.outage.take_if(|outage| outage.until.is_some_and(|until| Instant::now() >= until));
        self.outage.clone()
    }
}
