//! The sink's far end: a task that inserts batches, and spools them while the store is away.
//!
//! One insert is under way at a time. Meanwhile batches wait in memory up to a bound, then go to the
//! spool. After a retryable failure everything goes to the spool, and one batch is tried as a probe
//! with growing pauses; once it is in, the spool is drained beside live rows, at a bounded rate.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use underspan_store::Batch;

use super::collector::Message;
use super::flusher::Written;
use super::pending::Pending;
use super::stats::{Health, Shared};
use super::{Insert, InsertError, Options};
use crate::losses::{Losses, Reason};
use crate::spool::{Rejected, Spool};

/// Where the batch under way came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Live,
    Spool,
}

type Outcome = Result<(), InsertError>;

/// Rows that wait for longer than this are told of: whoever asks the store does not see them.
const LATE: Duration = Duration::from_secs(10);
/// From here on they are in time again.
const IN_TIME: Duration = Duration::from_secs(2);

struct InFlight {
    batch: Arc<Batch>,
    source: Source,
    /// Since when the batch has waited, in the spool not counted.
    since: Instant,
    outcome: Pin<Box<dyn Future<Output = Outcome> + Send>>,
}

pub(super) struct Task<I> {
    insert: Arc<I>,
    spool: Spool,
    rejected: Rejected,
    options: Options,
    shared: Arc<Shared>,
    receiver: mpsc::Receiver<Message>,
    pending: Pending,
    /// The last mark that came, and where to tell once all that came before it is written.
    mark: u64,
    written: Written,
    /// The store takes rows, and does not keep up; it was told.
    late: bool,
    in_flight: Option<InFlight>,
    /// While the store is away: the pause before the next probe.
    backoff: Option<Duration>,
    next_probe: Instant,
    next_drain: Instant,
    last_source: Source,
    /// What each table was last refused for, so that the same words are not logged every second.
    refusals: BTreeMap<String, String>,
}

impl<I: Insert> Task<I> {
    pub(super) fn new(
        insert: I,
        spool: Spool,
        options: Options,
        shared: Arc<Shared>,
        receiver: mpsc::Receiver<Message>,
        written: Written,
    ) -> Self {
        let now = Instant::now();
        Task {
            insert: Arc::new(insert),
            rejected: Rejected::new(spool.dir(), options.rejected_bytes),
            spool,
            options,
            shared,
            receiver,
            pending: Pending::default(),
            mark: 0,
            written,
            late: false,
            in_flight: None,
            backoff: None,
            next_probe: now,
            next_drain: now,
            last_source: Source::Live,
            refusals: BTreeMap::new(),
        }
    }

    /// Runs until told when to be done at the latest, or until the other end is gone.
    pub(super) async fn run(mut self, mut stop: watch::Receiver<Option<Instant>>) {
        loop {
            self.publish();
            self.start_insert();
            let wake = self.wake();
            tokio::select! {
                () = told_to_stop(&mut stop) => break,
                outcome = outcome(&mut self.in_flight) => self.finished(outcome),
                message = self.receiver.recv() => match message {
                    Some(message) => self.take(message),
                    None => break,
                },
                () = sleep_until(wake) => {}
            }
        }
        self.finish(stop).await;
        self.publish();
    }

    /// Inserts what is in memory until the deadline, then spools the rest.
    async fn finish(&mut self, mut stop: watch::Receiver<Option<Instant>>) {
        let latest = Instant::now() + self.options.insert_timeout;
        self.receiver.close();
        while let Some(message) = self.receiver.recv().await {
            self.take(message);
        }
        while self.backoff.is_none() && (self.in_flight.is_some() || !self.pending.is_empty()) {
            if self.in_flight.is_none() {
                // No more of the spool now: that has time.
                self.next_drain = latest;
                self.start_insert();
            }
            tokio::select! {
                outcome = outcome(&mut self.in_flight) => self.finished(outcome),
                () = out_of_time(&mut stop, latest) => break,
            }
        }
        if let Some(InFlight { batch, source, .. }) = self.in_flight.take() {
            // It may arrive nevertheless: rows may come twice, never not at all.
            match source {
                Source::Live => self.spool(&batch),
                Source::Spool => self.spool.put_back(),
            }
        }
        self.spool_pending();
        if let Err(error) = self.spool.sync() {
            tracing::warn!("{error}");
        }
    }

    fn wake(&self) -> Instant {
        if self.in_flight.is_some() {
            // The insert's own timeout wakes the loop.
            return Instant::now() + self.options.insert_timeout;
        }
        match self.backoff {
            Some(_) => self.next_probe,
            None if !self.spool.is_empty() => self.next_drain,
            None => Instant::now() + Duration::from_secs(1),
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Batch(batch) => self.accept(batch),
            Message::Mark(question) => self.mark = question,
        }
    }

    fn accept(&mut self, batch: Batch) {
        {
            let mut shared = self.shared.lock();
            shared.queued_bytes = shared.queued_bytes.saturating_sub(batch.bytes.len());
        }
        let fits = self.pending.bytes() + batch.bytes.len() <= self.options.pending_bytes;
        if self.backoff.is_none() && (fits || self.pending.is_empty()) {
            self.pending.push(batch, self.options.batch_rows, self.options.batch_bytes);
        } else {
            self.spool(&batch);
        }
    }

    fn start_insert(&mut self) {
        if self.in_flight.is_some() {
            return;
        }
        let now = Instant::now();
        let next = if self.backoff.is_some() {
            (now >= self.next_probe).then(|| self.next_spooled()).flatten()
        } else if now >= self.next_drain
            && (self.last_source == Source::Live || self.pending.is_empty())
        {
            self.next_spooled().or_else(|| self.next_pending())
        } else {
            self.next_pending()
        };
        let Some((batch, source, since)) = next else {
            if self.backoff.is_some() && self.spool.is_empty() {
                // Nothing to probe with: the next live batch is the probe.
                self.backoff = None;
            }
            return;
        };
        self.last_source = source;
        let batch = Arc::new(batch);
        let (insert, sent, limit) =
            (Arc::clone(&self.insert), Arc::clone(&batch), self.options.insert_timeout);
        let outcome = Box::pin(async move {
            timeout(limit, insert.insert(&sent)).await.unwrap_or_else(|_| {
                Err(InsertError::Retryable(format!("no answer within {} s", limit.as_secs_f32())))
            })
        });
        self.in_flight = Some(InFlight { batch, source, since, outcome });
    }

    fn next_pending(&mut self) -> Option<(Batch, Source, Instant)> {
        self.pending.pop().map(|(batch, since)| (batch, Source::Live, since))
    }

    fn next_spooled(&mut self) -> Option<(Batch, Source, Instant)> {
        match self.spool.take() {
            Ok(batch) => Some((batch?, Source::Spool, Instant::now())),
            Err(error) => {
                tracing::warn!("{error}");
                self.next_drain = Instant::now() + self.options.backoff_max;
                self.next_probe = self.next_drain;
                None
            }
        }
    }

    fn finished(&mut self, outcome: Outcome) {
        let Some(InFlight { batch, source, .. }) = self.in_flight.take() else { return };
        match outcome {
            Ok(()) => {
                self.store_answers();
                self.inserted(&batch, source);
            }
            Err(InsertError::Retryable(error)) => self.store_is_away(&batch, source, error),
            Err(InsertError::Permanent(reason)) => {
                self.store_answers();
                self.reject(&batch, &reason);
            }
        }
        if source == Source::Spool {
            let pace = batch.bytes.len() as f64 / self.options.drain_bytes_per_s as f64;
            self.next_drain = Instant::now() + Duration::from_secs_f64(pace);
        }
    }

    fn inserted(&mut self, batch: &Batch, source: Source) {
        {
            let stats = &mut self.shared.lock().stats;
            *stats.inserted.entry(batch.table.clone()).or_default() += batch.rows;
            if source == Source::Spool {
                stats.drained += batch.rows;
            }
        }
        self.remove_from_spool();
    }

    fn reject(&mut self, batch: &Batch, reason: &str) {
        let mut losses = Losses::default();
        losses.add(&batch.table, Reason::Rejected, batch.rows);
        self.shared.lock().lose(losses);
        let kept = self.rejected.keep(batch, reason);
        if self.refusals.insert(batch.table.clone(), reason.to_owned()).as_deref() != Some(reason) {
            match kept {
                Ok(Some(path)) => tracing::warn!(
                    table = batch.table, rows = batch.rows, kept = %path.display(),
                    "the store refused rows: {reason}"
                ),
                Ok(None) => tracing::warn!(table = batch.table, "the store refused rows: {reason}"),
                Err(error) => tracing::warn!("the store refused rows: {reason}; {error}"),
            }
        }
        self.remove_from_spool();
    }

    /// Does nothing if the batch did not come from the spool.
    fn remove_from_spool(&mut self) {
        if let Err(error) = self.spool.remove() {
            tracing::warn!("{error}");
        }
    }

    fn store_answers(&mut self) {
        if self.backoff.take().is_some() {
            tracing::info!("the store is back; {} rows to drain from the spool", self.spool.rows());
            self.shared.lock().stats.health = Health::Up;
        }
    }

    fn store_is_away(&mut self, batch: &Batch, source: Source, error: String) {
        let backoff = match self.backoff {
            Some(backoff) => (backoff * 2).min(self.options.backoff_max),
            None => {
                tracing::warn!(
                    spool = %self.spool.dir().display(),
                    "the store does not take rows, they go to the spool: {error}"
                );
                self.options.backoff_min
            }
        };
        self.backoff = Some(backoff);
        self.next_probe = Instant::now() + backoff;
        self.shared.lock().stats.health = Health::Down { error };
        match source {
            Source::Live => self.spool(batch),
            Source::Spool => self.spool.put_back(),
        }
        self.spool_pending();
    }

    fn spool_pending(&mut self) {
        while let Some((batch, _)) = self.pending.pop() {
            self.spool(&batch);
        }
    }

    fn spool(&mut self, batch: &Batch) {
        match self.spool.append(batch) {
            Ok(()) => self.shared.lock().stats.spooled += batch.rows,
            Err(error) => tracing::warn!("{error}; {} rows are lost", batch.rows),
        }
    }

    /// For how long the oldest rows have waited.
    fn waits(&self) -> Duration {
        let in_flight = self.in_flight.as_ref().map_or(Duration::ZERO, |one| one.since.elapsed());
        self.pending.age().max(in_flight)
    }

    /// A store that answers and does not keep up loses nothing, and says nothing of it.
    fn tell_if_late(&mut self, waits: Duration) {
        if !self.late && waits >= LATE && self.backoff.is_none() {
            self.late = true;
            tracing::warn!(
                "the store is slow: rows wait {} s until they are in it, and whoever asks it does not see \
                 newer ones yet; nothing is lost",
                waits.as_secs()
            );
        } else if self.late && waits < IN_TIME && self.spool.is_empty() {
            self.late = false;
            tracing::info!("the store keeps up again: it has all rows but the newest");
        }
    }

    /// Nothing that came before the last mark waits in memory. What waits in the spool has time.
    fn is_written(&self) -> bool {
        let live = self.in_flight.as_ref().is_some_and(|one| one.source == Source::Live);
        !live && self.pending.is_empty()
    }

    fn publish(&mut self) {
        if self.mark > *self.written.borrow() && self.is_written() {
            self.written.send_replace(self.mark);
        }
        let waits = self.waits();
        self.tell_if_late(waits);
        let losses = self.spool.take_losses();
        let mut shared = self.shared.lock();
        shared.lose(losses);
        shared.stats.spool_bytes = self.spool.bytes();
        shared.stats.spool_rows = self.spool.rows();
        shared.stats.waits = waits;
    }
}

/// Ends when a deadline is set, or when nobody is left to set one.
async fn told_to_stop(stop: &mut watch::Receiver<Option<Instant>>) {
    let _ = stop.wait_for(Option::is_some).await;
}

/// Ends at the deadline, which may still be moved nearer, and at `latest` at all events.
async fn out_of_time(stop: &mut watch::Receiver<Option<Instant>>, latest: Instant) {
    loop {
        let deadline = stop.borrow_and_update().unwrap_or(latest).min(latest);
        tokio::select! {
            () = sleep_until(deadline) => return,
            // Nobody is left who could wait for us.
            moved = stop.changed() => if moved.is_err() { return },
        }
    }
}

/// The outcome of the insert under way; never, if there is none.
async fn outcome(in_flight: &mut Option<InFlight>) -> Outcome {
    match in_flight {
        Some(in_flight) => in_flight.outcome.as_mut().await,
        None => std::future::pending().await,
    }
}
