//! Keeps a folder served: starts the host again when it dies, and takes over when the process that
//! started it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::host::Host;
use super::{EmbeddedError, Options, folder, python};

const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A host that lived this long did not die of its start: the pauses begin anew.
const SETTLED: Duration = Duration::from_secs(60);
/// How often to look whether someone else's host is still there.
const LOOK: Duration = Duration::from_millis(500);

/// A host and whose it is.
pub(super) enum Served {
    /// Ours: it ends with us.
    Here(Box<Host>),
    /// Another process's: it is left alone for as long as it serves.
    Elsewhere,
}

/// A task that keeps the folder served at one address. Dropping it lets a host of ours end by
/// itself.
#[derive(Debug)]
pub(super) struct Supervisor {
    task: JoinHandle<()>,
    stop: watch::Sender<bool>,
    /// The process id of our host, 0 while there is none.
    pid: Arc<AtomicU32>,
}

impl Supervisor {
    /// Watches over a host at `url`; `options` are those to start one with.
    pub(super) fn watch(served: Served, url: &str, mut options: Options) -> Supervisor {
        // Whoever has the endpoint must find the next life at the same address.
        options.port = port(url).unwrap_or(options.port);
        let (stop, stopped) = watch::channel(false);
        let pid = Arc::new(AtomicU32::new(0));
        let keeper = Keeper { url: url.to_owned(), options, stopped, pid: Arc::clone(&pid) };
        keeper.note(&served);
        Supervisor { task: tokio::spawn(keeper.run(served)), stop, pid }
    }

    pub(super) fn pid(&self) -> Option<u32> {
        Some(self.pid.load(Ordering::Relaxed)).filter(|&pid| pid != 0)
    }

    /// Stops a host of ours and waits for its end.
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

struct Keeper {
    url: String,
    options: Options,
    stopped: watch::Receiver<bool>,
    pid: Arc<AtomicU32>,
}

impl Keeper {
    async fn run(mut self, mut served: Served) {
        let mut pause = FIRST_PAUSE;
        loop {
            self.note(&served);
            let born = Instant::now();
            let mut stopped = self.stopped.clone();
            tokio::select! {
                biased;
                () = told_to_stop(&mut stopped) => {
                    if let Served::Here(host) = &mut served {
                        host.stop().await;
                    }
                    return;
                }
                how = self.end(&mut served) => {
                    tracing::warn!("the embedded store {how}, starting it again");
                }
            }
            self.pid.store(0, Ordering::Relaxed);
            if born.elapsed() >= SETTLED {
                pause = FIRST_PAUSE;
            }
            let Some(next) = self.serve_again(&mut pause).await else { return };
            served = next;
        }
    }

    fn note(&self, served: &Served) {
        let pid = match served {
            Served::Here(host) => host.pid().unwrap_or(0),
            Served::Elsewhere => 0,
        };
        self.pid.store(pid, Ordering::Relaxed);
    }

    /// Waits for the host's end and says how it came.
    async fn end(&self, served: &mut Served) -> String {
        match served {
            Served::Here(host) => match host.wait().await {
                Ok(status) => format!("died ({status})"),
                Err(error) => format!("was lost ({error})"),
            },
            Served::Elsewhere => {
                while self.is_served_elsewhere() {
                    sleep(LOOK).await;
                }
                "was stopped by the process that had started it".to_owned()
            }
        }
    }

    /// Whether another process serves the folder at our address.
    fn is_served_elsewhere(&self) -> bool {
        let advertised = folder::advertised(&self.options.folder);
        advertised.is_ok_and(|found| found.is_some_and(|found| found.url == self.url))
    }

    /// Tries until the folder is served again, or `None` when told to stop.
    async fn serve_again(&mut self, pause: &mut Duration) -> Option<Served> {
        loop {
            tokio::select! {
                biased;
                () = told_to_stop(&mut self.stopped) => return None,
                () = sleep(*pause) => {}
            }
            *pause = (*pause * 2).min(LONGEST_PAUSE);
            // Not cancelled by a stop: a host dropped half-way in its start ends by itself, too.
            match self.start().await {
                Ok(host) => {
                    tracing::info!(url = self.url, "the embedded store is back");
                    return Some(Served::Here(Box::new(host)));
                }
                Err(EmbeddedError::FolderInUse(_)) if self.is_served_elsewhere() => {
                    return Some(Served::Elsewhere);
                }
                Err(error) => tracing::error!(%error, "the embedded store does not start"),
            }
        }
    }

    async fn start(&self) -> Result<Host, EmbeddedError> {
        let python = python::find(self.options.python.as_deref()).await?;
        Host::start(&python, &self.options.folder, &self.options).await
    }
}

/// Ends when told to stop, or when nobody is left to tell.
async fn told_to_stop(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|&stop| stop).await;
}

fn port(url: &str) -> Option<u16> {
    url.rsplit(':').next()?.parse().ok()
}
