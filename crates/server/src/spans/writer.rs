//! Writes queued spans to the store, one batch at a time, for as long as the server lives.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use underspan_store::Batch;

use super::counters::Counters;
use super::losses::Losses;
use super::queue::Queue;
use super::sink::{SinkError, SpanSink};

const FIRST_BACKOFF: Duration = Duration::from_millis(250);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// Senders keep their spans this long after the store refused rows for good, so that a wrong schema
/// or password costs a batch now and then, not every span.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_secs(5);
/// An insert that takes longer than this is given up and tried again.
const INSERT_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Writer<S> {
    queue: Arc<Queue>,
    counters: Arc<Counters>,
    sink: Arc<S>,
    /// Once set: when to give up what the store still does not take.
    deadline: watch::Receiver<Option<Instant>>,
    losses: Losses,
}

impl<S: SpanSink> Writer<S> {
    pub(crate) fn new(
        queue: Arc<Queue>,
        counters: Arc<Counters>,
        sink: Arc<S>,
        deadline: watch::Receiver<Option<Instant>>,
    ) -> Self {
        Writer { queue, counters, sink, deadline, losses: Losses::default() }
    }

    /// Runs until the queue is closed and empty.
    pub(crate) async fn run(mut self) {
        while let Some(batch) = self.queue.take().await {
            self.write(&batch).await;
            self.queue.settled();
        }
    }

    async fn write(&mut self, batch: &Batch) {
        let mut backoff = FIRST_BACKOFF;
        loop {
            let Err(error) = self.insert(batch).await else {
                self.counters.written.add(batch.rows);
                self.queue.up();
                self.report_losses().await;
                return;
            };
            if !error.retryable {
                tracing::error!(spans = batch.rows, %error, "the store refused spans for good");
                self.counters.dropped_by_store.add(batch.rows);
                self.losses.add(batch.rows);
                self.queue.down(error.message, PAUSE_AFTER_REFUSAL, Some(PAUSE_AFTER_REFUSAL));
                return;
            }
            tracing::warn!(spans = batch.rows, %error, "the store takes no spans, will try again");
            self.queue.down(error.message, backoff.max(Duration::from_secs(1)), None);
            if !self.sleep(backoff).await {
                tracing::error!(spans = batch.rows, "lost: the store was down at shutdown");
                self.counters.dropped_at_shutdown.add(batch.rows);
                return;
            }
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
    }

    /// Tells the store what it lacks. What cannot be told now is told with the next batch.
    async fn report_losses(&mut self) {
        let Some(batch) = self.losses.batch() else { return };
        match self.insert(&batch).await {
            Ok(()) => self.losses = Losses::default(),
            Err(error) => tracing::warn!(%error, "lost spans are not yet in lost_events"),
        }
    }

    async fn insert(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let insert = tokio::time::timeout(INSERT_TIMEOUT, self.sink.insert(batch));
        let answer = tokio::select! {
            answer = insert => answer.ok(),
            // Also one that was set meanwhile.
            () = reached(&mut self.deadline) => None,
        };
        let error = || SinkError { message: "no answer in time".to_owned(), retryable: true };
        answer.unwrap_or_else(|| Err(error()))
    }

    /// Waits before the next attempt. `false`: there is none.
    async fn sleep(&mut self, backoff: Duration) -> bool {
        let Some(deadline) = *self.deadline.borrow_and_update() else {
            // A shutdown cuts the wait short. An error means that the server is gone.
            let changed = tokio::time::timeout(backoff, self.deadline.changed()).await;
            return !matches!(changed, Ok(Err(_)));
        };
        tokio::time::sleep_until(deadline.min(Instant::now() + FIRST_BACKOFF)).await;
        Instant::now() < deadline
    }
}

/// Completes at the deadline, whenever that is set, and set again.
async fn reached(deadline: &mut watch::Receiver<Option<Instant>>) {
    loop {
        let at = *deadline.borrow_and_update();
        let over = async {
            match at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = over => return,
            changed = deadline.changed() => if changed.is_err() {
                // The server is gone: nobody will set it any more.
                return std::future::pending().await;
            }
        }
    }
}
