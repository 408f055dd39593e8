//! Ctrl-C and SIGTERM, at any time of a command's life.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::failure::Failure;

/// What came so far.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    count: u64,
    /// The number of the last one.
    last: i32,
}

/// SIGINT and SIGTERM as they come. Once this exists they no longer end the process by themselves.
#[derive(Clone, Debug)]
pub(crate) struct Signals {
    seen: watch::Receiver<Seen>,
    /// How many had come when we began to stop.
    at_stop: Arc<AtomicU64>,
}

impl Signals {
    /// Takes both signals over. Needs a Tokio runtime.
    pub(crate) fn take() -> std::io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        let terminate = signal(SignalKind::terminate())?;
        let (sender, receiver) = watch::channel(Seen::default());
        tokio::spawn(count(interrupt, terminate, sender));
        Ok(Signals { seen: receiver, at_stop: Arc::default() })
    }

    /// Waits for one more, and returns its number.
    pub(crate) async fn next(&self) -> i32 {
        let mut receiver = self.seen.clone();
        let before = receiver.borrow().count;
        match receiver.wait_for(|seen| seen.count > before).await {
            Ok(seen) => seen.last,
            // The runtime is ending: nothing will come any more.
            Err(_) => std::future::pending().await,
        }
    }

    /// From now on another one means hurry.
    pub(crate) fn stopping(&self) {
        self.at_stop.store(self.seen.borrow().count, Ordering::Relaxed);
    }

    /// Completes if one came since [`Signals::stopping`]. One is enough for all that is waited for.
    pub(crate) async fn hurry(self) {
        let mut receiver = self.seen;
        let before = self.at_stop;
        let more = |seen: &Seen| seen.count > before.load(Ordering::Relaxed);
        if receiver.wait_for(more).await.is_err() {
            // The runtime is ending: nothing will come any more.
            std::future::pending().await
        }
    }

    /// Does `work` unless a signal came before or comes meanwhile. What it had begun is dropped then.
    pub(crate) async fn unless<T>(
        &self,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let mut receiver = self.seen.clone();
        tokio::select! {
            biased;
            Ok(seen) = receiver.wait_for(|seen| seen.count > 0) => {
                self.stopping();
                let number = seen.last;
                let status = u8::try_from(128 + number).unwrap_or(u8::MAX);
                Err(Failure::new("interrupted before anything was watched").status(status).into())
            }
            result = work => result,
        }
    }
}

async fn count(mut interrupt: Signal, mut terminate: Signal, seen: watch::Sender<Seen>) {
    loop {
        let last = tokio::select! {
            Some(()) = interrupt.recv() => libc::SIGINT,
            Some(()) = terminate.recv() => libc::SIGTERM,
            else => return,
        };
        seen.send_modify(|seen| *seen = Seen { count: seen.count + 1, last });
    }
}
