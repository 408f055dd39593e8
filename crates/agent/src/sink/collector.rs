//! The sink's near end: rows are written into one open batch per table, which goes on when it is full
//! or old enough. It belongs to the thread that decodes events, and never blocks it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;
use underspan_store::Batch;

use super::Options;
use super::flusher::Asked;
use super::stats::Shared;
use crate::losses::{Losses, Reason};

/// How soon a full queue is looked at again. The task empties it as fast as the disk takes it.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Collects rows into batches. Dropping it flushes what it holds.
#[derive(Debug)]
pub struct Collector {
    open: BTreeMap<String, Open>,
    sender: Sender<Message>,
    shared: Arc<Shared>,
    options: Options,
    asked: Arc<Asked>,
    /// The last question that is known, and the last whose mark was sent.
    heard: u64,
    answered: u64,
}

/// What goes from the collector to the task.
#[derive(Debug)]
pub(super) enum Message {
    Batch(Batch),
    /// All that was collected when this question came is before it.
    Mark(u64),
}

#[derive(Debug)]
struct Open {
    batch: Batch,
    since: Instant,
}

impl Collector {
    pub(super) fn new(
        sender: Sender<Message>,
        shared: Arc<Shared>,
        options: Options,
        asked: Arc<Asked>,
    ) -> Self {
        Collector { open: BTreeMap::new(), sender, shared, options, asked, heard: 0, answered: 0 }
    }

    /// The open batch of a table, to write a row (or a few) to. A full one is sent on first.
    pub fn batch(&mut self, table: &str, columns: &[&str]) -> &mut Batch {
        self.open(table, || Batch::new(table, columns))
    }

    /// Adds rows that are written already.
    pub fn append(&mut self, rows: &Batch) {
        let Batch { table, columns, .. } = rows;
        let new = || Batch { table: table.clone(), columns: columns.clone(), ..Batch::default() };
        let open = self.open(table, new);
        open.rows += rows.rows;
        open.bytes.extend_from_slice(&rows.bytes);
    }

    fn open(&mut self, table: &str, new: impl FnOnce() -> Batch) -> &mut Batch {
        if self.open.get(table).is_some_and(|open| self.is_full(&open.batch)) {
            self.send(table);
            self.drop_if_stuck(table);
        }
        let since = Instant::now();
        let open =
            self.open.entry(table.to_owned()).or_insert_with(|| Open { batch: new(), since });
        &mut open.batch
    }

    /// Sends what is old enough, and everything if that was asked for before the last call: what had
    /// happened by then has been collected since. Call it several times a second.
    pub fn flush_due(&mut self) {
        if self.heard != self.answered {
            self.answer(self.heard);
        }
        self.heard = self.asked.question();
        let now = Instant::now();
        let age = match self.asked.will_be() {
            true => self.options.flush_every_if_asked.max(self.options.flush_every),
            false => self.options.flush_every,
        };
        let due = |open: &Open| now.duration_since(open.since) >= age;
        let due: Vec<_> =
            self.open.iter().filter(|(_, open)| due(open)).map(|(t, _)| t.clone()).collect();
        due.iter().for_each(|table| self.send(table));
    }

    /// Sends everything.
    pub fn flush(&mut self) {
        let tables: Vec<_> = self.open.keys().cloned().collect();
        tables.iter().for_each(|table| self.send(table));
    }

    /// If the queue is full, the rest follows the next time, and so does the mark.
    fn answer(&mut self, question: u64) {
        self.flush();
        if self.open.is_empty() && self.sender.try_send(Message::Mark(question)).is_ok() {
            self.answered = question;
        }
    }

    /// Sends everything, and waits until the queue has taken it or `within` has passed. For the end:
    /// it blocks, and must not be called on a thread that runs the sink's task.
    pub fn flush_and_wait(&mut self, within: Duration) {
        let deadline = Instant::now() + within;
        self.flush();
        while !self.open.is_empty() && Instant::now() < deadline {
            std::thread::sleep(LOOK_AGAIN);
            self.flush();
        }
    }

    fn is_full(&self, batch: &Batch) -> bool {
        batch.rows >= self.options.batch_rows || batch.bytes.len() >= self.options.batch_bytes
    }

    /// Sends a table's batch, or leaves it open if the queue is full.
    fn send(&mut self, table: &str) {
        let Some(open) = self.open.remove(table) else { return };
        if open.batch.is_empty() {
            return;
        }
        let bytes = open.batch.bytes.len();
        {
            let mut shared = self.shared.lock();
            // One batch always fits, however large.
            if shared.queued_bytes > 0 && shared.queued_bytes + bytes > self.options.queue_bytes {
                drop(shared);
                self.open.insert(table.to_owned(), open);
                return;
            }
            shared.queued_bytes += bytes;
        }
        let since = open.since;
        if let Err(error) = self.sender.try_send(Message::Batch(open.batch)) {
            self.shared.lock().queued_bytes -= bytes;
            match error {
                TrySendError::Full(Message::Batch(batch)) => {
                    self.open.insert(table.to_owned(), Open { batch, since });
                }
                TrySendError::Closed(Message::Batch(batch)) => self.lose(&batch),
                TrySendError::Full(Message::Mark(_)) | TrySendError::Closed(Message::Mark(_)) => {}
            }
        }
    }

    /// The queue is full and so is the batch: memory is bounded, so its rows go, counted.
    fn drop_if_stuck(&mut self, table: &str) {
        let stuck = |open: &Open| {
            open.batch.rows >= 2 * self.options.batch_rows
                || open.batch.bytes.len() >= 2 * self.options.batch_bytes
        };
        if self.open.get(table).is_some_and(stuck)
            && let Some(open) = self.open.remove(table)
        {
            self.lose(&open.batch);
        }
    }

    fn lose(&self, batch: &Batch) {
        let mut losses = Losses::default();
        losses.add(&batch.table, Reason::QueueFull, batch.rows);
        self.shared.lock().lose(losses);
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.flush();
        let left: Vec<_> = std::mem::take(&mut self.open).into_values().collect();
        left.iter().for_each(|open| self.lose(&open.batch));
    }
}
