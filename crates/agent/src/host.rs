//! Reads the host's counters once a second on a thread of its own: a device that answers slowly must
//! not hold up the ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use underspan_trackers::throttle::{Reader, Round};

use crate::monotonic_ns;

/// How often the counters are read.
const PERIOD: Duration = Duration::from_secs(1);
/// Rounds that may wait for the agent's loop.
const QUEUE: usize = 16;
/// After a round the pause is at least so many times as long as the round was: at most 2 % of a CPU.
const REST: u32 = 49;

/// The reading thread.
#[derive(Debug, Default)]
pub(crate) struct Host {
    worker: Option<Worker>,
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Worker {
    /// The processes that are watched now.
    watched: Sender<Vec<u32>>,
    rounds: Receiver<Round>,
    thread: Option<JoinHandle<()>>,
}

impl Host {
    /// Tells which processes' cgroups and network namespaces to read. The first call starts reading.
    pub(crate) fn watch(&mut self, pids: Vec<u32>) {
        let worker = match &mut self.worker {
            Some(worker) => worker,
            none => match Worker::start(Arc::clone(&self.lost)) {
                Ok(worker) => none.insert(worker),
                Err(error) => {
                    tracing::warn!("the host's counters are not read: no thread: {error}");
                    return;
                }
            },
        };
        // It ends only with us.
        let _ = worker.watched.send(pids);
    }

    /// Rounds since the last call.
    pub(crate) fn rounds(&self) -> Vec<Round> {
        self.worker.iter().flat_map(|worker| worker.rounds.try_iter()).collect()
    }

    /// Rounds that found no place in the queue, ever. What they would have told of is in the next.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Worker {
    fn start(lost: Arc<AtomicU64>) -> std::io::Result<Self> {
        let (watched, inbox) = mpsc::channel();
        let (outbox, rounds) = mpsc::sync_channel(QUEUE);
        let body = move || read(&inbox, &outbox, &lost);
        let thread = thread::Builder::new().name("host".into()).spawn(body)?;
        Ok(Worker { watched, rounds, thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The thread ends when nobody can tell it anything any more. One that hangs in a device's
        // driver is left behind.
        self.watched = mpsc::channel().0;
        if let Some(thread) = self.thread.take() {
            let deadline = Instant::now() + PERIOD;
            while !thread.is_finished() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

fn read(inbox: &Receiver<Vec<u32>>, outbox: &SyncSender<Round>, lost: &AtomicU64) {
    let mut reader = Reader::new();
    let mut pids = Vec::new();
    let mut next = Instant::now();
    loop {
        match inbox.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(watched) => {
                pids = watched;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let began = Instant::now();
        let Ok(at) = monotonic_ns() else { return };
        match outbox.try_send(reader.round(at, &pids)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                lost.fetch_add(1, Ordering::Relaxed);
            }
            Err(TrySendError::Disconnected(_)) => return,
        }
        let ended = Instant::now();
        next = (next + PERIOD).max(ended + (ended - began) * REST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_once_a_second_and_no_more_when_it_is_dropped() {
        let mut host = Host::default();
        assert!(host.rounds().is_empty());
        host.watch(vec![std::process::id()]);
        let mut rounds = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(10);
        while rounds.len() < 3 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
            rounds.extend(host.rounds());
        }
        assert_eq!(rounds[0].since, 0);
        for pair in rounds.windows(2) {
            assert_eq!(pair[1].since, pair[0].at);
            assert!(pair[1].at - pair[0].at >= 900_000_000, "{pair:?}");
            assert!(!pair[1].readings.is_empty());
        }
        assert_eq!((rounds.len(), host.lost()), (3, 0));
        let began = Instant::now();
        drop(host);
        assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
    }
}
