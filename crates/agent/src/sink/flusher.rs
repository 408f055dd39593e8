//! Having what was collected written at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::watch;
use underspan_store::embedded::Holds;

/// Has rows written that wait in a collector for more of their kind.
#[derive(Clone, Debug)]
pub struct Flusher {
    asked: Arc<Asked>,
    written: watch::Receiver<u64>,
}

/// What the collector is asked for.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// The latest question.
    question: AtomicU64,
    will_be: AtomicBool,
}

/// Where the task says up to which question everything is written.
pub(super) type Written = watch::Sender<u64>;

pub(super) fn new() -> (Flusher, Arc<Asked>, Written) {
    let asked = Arc::new(Asked::default());
    let (sender, written) = watch::channel(0);
    (Flusher { asked: Arc::clone(&asked), written }, asked, sender)
}

impl Asked {
    pub(super) fn question(&self) -> u64 {
        self.question.load(Ordering::Acquire)
    }

    pub(super) fn will_be(&self) -> bool {
        self.will_be.load(Ordering::Relaxed)
    }
}

impl Holds for Flusher {
    fn will_be_asked(&self, will_be: bool) {
        self.asked.will_be.store(will_be, Ordering::Relaxed);
    }

    /// What cannot be in the store for now is in the spool. At once when the sink has ended.
    async fn flush(&mut self) {
        let question = self.asked.question.fetch_add(1, Ordering::AcqRel) + 1;
        // An error: nobody is left who would write.
        let _ = self.written.wait_for(|written| *written >= question).await;
    }
}

#[cfg(test)]
impl Flusher {
    pub(super) fn asked_for(&self) -> u64 {
        self.asked.question()
    }
}
