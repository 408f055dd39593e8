//! Keeps the host alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::Options;
use super::host::Host;

const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A host that lived this long did not die of its start: the pauses begin anew.
const SETTLED: Duration = Duration::from_secs(60);

/// A task that starts the host again whenever it dies. Dropping it lets the host end by itself.
#[derive(Debug)]
pub(super) struct Supervisor {
    task: JoinHandle<()>,
    stop: watch::Sender<bool>,
    /// The host's process id, 0 while it is down.
    pid: Arc<AtomicU32>,
}

impl Supervisor {
    /// Watches over a host; `options` are those it is to be started with again.
    pub(super) fn watch(host: Host, mut options: Options) -> Supervisor {
        // Whoever has the endpoint must find the next life at the same address.
        options.port = host.port().unwrap_or(options.port);
        let (stop, stopped) = watch::channel(false);
        let pid = Arc::new(AtomicU32::new(host.pid().unwrap_or(0)));
        let task = tokio::spawn(keep_alive(host, options, stopped, Arc::clone(&pid)));
        Supervisor { task, stop, pid }
    }

    pub(super) fn pid(&self) -> Option<u32> {
        Some(self.pid.load(Ordering::Relaxed)).filter(|&pid| pid != 0)
    }

    /// Stops the host and waits for its end.
    pub(super) async fn shutdown(mut self) {
        self.stop.send_replace(true);
        if let Err(error) = (&mut self.task).await {
            tracing::error!(%error, "the embedded store's supervisor failed");
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // The task holds the host, and the host's standard input with it.
        self.task.abort();
    }
}

async fn keep_alive(
    mut host: Host,
    options: Options,
    mut stopped: watch::Receiver<bool>,
    pid: Arc<AtomicU32>,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        pid.store(host.pid().unwrap_or(0), Ordering::Relaxed);
        let born = Instant::now();
        tokio::select! {
            biased;
            () = told_to_stop(&mut stopped) => return host.stop().await,
            status = host.wait() => {
                pid.store(0, Ordering::Relaxed);
                let status = status.map_or_else(|error| error.to_string(), |s| s.to_string());
                tracing::error!(%status, "the embedded store died, starting it again");
            }
        }
        if born.elapsed() >= SETTLED {
            pause = FIRST_PAUSE;
        }
        let Some(next) = start_again(&options, &mut stopped, &mut pause).await else { return };
        host = next;
    }
}

/// Tries until the host is up, or `None` when told to stop.
async fn start_again(
    options: &Options,
    stopped: &mut watch::Receiver<bool>,
    pause: &mut Duration,
) -> Option<Host> {
    let python = options.python.as_deref()?;
    loop {
        tokio::select! {
            biased;
            () = told_to_stop(stopped) => return None,
            () = sleep(*pause) => {}
        }
        *pause = (*pause * 2).min(LONGEST_PAUSE);
        // Not cancelled by a stop: a host dropped half-way in its start ends by itself, too.
        match Host::start(python, &options.folder, options).await {
            Ok(host) => {
                tracing::info!(url = host.url(), "the embedded store is back");
                return Some(host);
            }
            Err(error) => tracing::error!(%error, "the embedded store does not start"),
        }
    }
}

/// Ends when told to stop, or when nobody is left to tell.
async fn told_to_stop(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|&stop| stop).await;
}
