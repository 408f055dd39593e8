//! The agent on this thread, and beside it what needs a Tokio runtime: store, server, signals.
//!
//! What BPF hands out belongs to the thread that opened it. So the agent is opened on the main
//! thread, while it is the only one and privileges can still be dropped, and stays there.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::oneshot;
use underspan_agent::{Agent, Collector, OpenError, Sink, Spool, SpoolOptions};

use crate::signals::Signals;
use crate::store::Opened;
use crate::watch::progress;

/// How long the last rows may take to reach the store.
const LAST_ROWS: Duration = Duration::from_secs(15);

/// Runs `rest` on a runtime of its own and, once that asks for it, the agent on this thread.
pub(crate) fn beside<T, F>(
    agent: Agent,
    rest: impl FnOnce(Starter) -> F + Send,
) -> anyhow::Result<T>
where
    T: Send,
    F: Future<Output = anyhow::Result<T>>,
{
    let (jobs, job) = mpsc::channel();
    std::thread::scope(|scope| {
        let rest = scope.spawn(move || runtime()?.block_on(rest(Starter { jobs })));
        // An error means that it never came so far.
        if let Ok(job) = job.recv() {
            job.work(agent);
        }
        rest.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A runtime for store, server and sink.
pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

/// What the agent's thread is to do.
struct Job {
    never: Vec<u32>,
    collector: Collector,
    sink: Sink,
    stop: Arc<AtomicBool>,
    ready: oneshot::Sender<()>,
    done: oneshot::Sender<Outcome>,
}

type Outcome = (Sink, Result<(), OpenError>);

impl Job {
    fn work(self, mut agent: Agent) {
        agent.watch(&self.never);
        if self.ready.send(()).is_err() {
            // Interrupted meanwhile.
            return;
        }
        let outcome = agent.run(self.collector, &self.sink, &self.stop);
        // Nobody listens when the rest has failed; the sink then keeps what it has in the spool.
        let _ = self.done.send((self.sink, outcome));
    }
}

/// Starts the agent, once.
pub(crate) struct Starter {
    jobs: mpsc::Sender<Job>,
}

impl Starter {
    /// Begins to watch, and to write to `store`, by way of the first of the spools that is free.
    /// Returns once everything that was selected is being
    /// watched.
    pub(crate) async fn start(
        self,
        store: &Opened,
        spools: &[PathBuf],
        spool_options: SpoolOptions,
    ) -> anyhow::Result<Running> {
        let spool = open_spool(spools, spool_options)?;
        let (sink, collector) = Sink::start(store.client(), spool, store.sink_options());
        if let Some(readers) = store.readers("agent") {
            // Ends with the sink's runtime.
            tokio::spawn(readers.ask_first(sink.flusher()));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = oneshot::channel();
        let (done, is_done) = oneshot::channel();
        let never = store.own_pids();
        let job = Job { never, collector, sink, stop: Arc::clone(&stop), ready, done };
        self.jobs.send(job).map_err(|_| anyhow::anyhow!("the agent's thread is gone"))?;
        is_ready.await?;
        Ok(Running { stop, is_done, outcome: None })
    }
}

/// The first of these that no other agent has.
fn open_spool(spools: &[PathBuf], options: SpoolOptions) -> anyhow::Result<Spool> {
    let mut in_use = None;
    for folder in spools {
        match Spool::open(folder, options) {
            Err(error @ underspan_agent::Error::SpoolInUse { .. }) => {
                in_use = in_use.or(Some(error))
            }
            opened => return Ok(opened?),
        }
    }
    Err(in_use.map_or_else(|| anyhow::anyhow!("there is no folder for the spool"), Into::into))
}

/// An agent at work. It ends with this.
pub(crate) struct Running {
    stop: Arc<AtomicBool>,
    is_done: oneshot::Receiver<Outcome>,
    outcome: Option<Outcome>,
}

impl Running {
    /// Waits until it has given up by itself. May be cancelled.
    pub(crate) async fn ended(&mut self) {
        if self.outcome.is_none() {
            self.outcome = (&mut self.is_done).await.ok();
        }
    }

    /// Stops watching, and waits until what was seen is in the store or the spool. A signal cuts the
    /// wait for the store short.
    pub(crate) async fn stop(mut self, signals: &Signals) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.ended().await;
        let Some((sink, outcome)) = self.outcome.take() else {
            anyhow::bail!("the agent's thread is gone");
        };
        let hurry = async {
            signals.clone().hurry().await;
            progress("the last rows go to the spool");
        };
        let stats = sink.shutdown(LAST_ROWS, hurry).await;
        if stats.spool_bytes > 0 {
            progress(&format!(
                "{} KiB of rows wait in the spool: the store did not take them; they are sent when \
                 an agent runs again",
                stats.spool_bytes.div_ceil(1 << 10)
            ));
        }
        let lost = stats.losses.total();
        if lost > 0 {
            let losses: Vec<_> = stats
                .losses
                .iter()
                .map(|loss| format!("{} {} ({})", loss.rows, loss.table, loss.reason))
                .collect();
            let rows = if lost == 1 { "row was" } else { "rows were" };
            progress(&format!("{lost} {rows} lost: {}", losses.join(", ")));
        }
        Ok(outcome?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
