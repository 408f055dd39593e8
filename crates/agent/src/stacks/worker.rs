//! The thread that looks up names.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use underspan_symbols::{Incarnation, Kallsyms, Symbolizer};
use underspan_trackers::stack::RawStack;

use super::Named;
use super::haste::Haste;

/// Jobs that may wait,
const QUEUE: usize = 8192;
/// and bytes of stacks in them.
const QUEUE_BYTES: usize = 8 << 20;
/// Named stacks that may wait for their row to be written.
const NAMED: usize = 1024;
/// How often memory is given back that only look-ups need.
const REST_EVERY: Duration = Duration::from_secs(1);

/// What the thread is told, in order.
#[derive(Debug)]
pub(super) enum Job {
    /// Look up a stack's names.
    Name { id: u64, at: u64, process: Incarnation, stack: RawStack },
    /// Read what a process's addresses mean.
    Learn(Incarnation),
    /// A process was forked.
    Forked { parent: Incarnation, child: Incarnation },
    /// A process ended, or began another program.
    Ended(Incarnation),
}

impl Job {
    fn bytes(&self) -> usize {
        match self {
            Job::Name { stack, .. } => {
                let RawStack { kernel, native, python, .. } = stack;
                size_of::<Job>()
                    + (kernel.len() + native.len()) * size_of::<u64>()
                    + size_of_val(python.as_slice())
            }
            _ => size_of::<Job>(),
        }
    }
}

/// The thread's other end.
pub(super) struct Worker {
    /// `None`: the thread could not be started.
    jobs: Option<SyncSender<Job>>,
    named: Receiver<Named>,
    waiting: Arc<Waiting>,
    haste: Arc<Haste>,
}

/// What was given and did not come back yet.
#[derive(Debug, Default)]
struct Waiting {
    bytes: AtomicUsize,
    stacks: AtomicUsize,
}

impl Worker {
    /// Starts the thread. It inherits what the caller may do.
    pub(super) fn start(kernel: Option<Kallsyms>) -> Self {
        let (jobs, todo) = sync_channel(QUEUE);
        let (done, named) = sync_channel(NAMED);
        let waiting = Arc::new(Waiting::default());
        let haste = Arc::new(Haste::default());
        let (shared, hurried) = (Arc::clone(&waiting), Arc::clone(&haste));
        let thread = thread::Builder::new().name("symbols".into()).spawn(move || {
            run(&todo, &done, &shared, &hurried, Symbolizer::new(kernel));
        });
        if let Err(error) = &thread {
            tracing::error!("stacks get no names: their thread cannot be started: {error}");
        }
        Worker { jobs: thread.is_ok().then_some(jobs), named, waiting, haste }
    }

    /// Whether the job could be taken on.
    pub(super) fn give(&self, job: Job) -> bool {
        let Some(jobs) = &self.jobs else { return false };
        let bytes = job.bytes();
        let stacks = usize::from(matches!(job, Job::Name { .. }));
        if self.waiting.bytes.load(Ordering::Relaxed) + bytes > QUEUE_BYTES {
            return false;
        }
        // Counted before it is sent: the thread takes it off again.
        self.waiting.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.waiting.stacks.fetch_add(stacks, Ordering::Relaxed);
        match jobs.try_send(job) {
            Ok(()) => {
                self.haste.given();
                true
            }
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.waiting.bytes.fetch_sub(bytes, Ordering::Relaxed);
                self.waiting.stacks.fetch_sub(stacks, Ordering::Relaxed);
                false
            }
        }
    }

    /// What is ready.
    pub(super) fn named(&self) -> Vec<Named> {
        self.haste.look();
        self.named.try_iter().collect()
    }

    /// What gets ready within a time, and how many stacks did not.
    pub(super) fn finish(mut self, within: Duration) -> (Vec<Named>, u64) {
        let until = Instant::now() + within;
        self.jobs = None;
        let mut named = Vec::new();
        loop {
            match self.named.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(one) => named.push(one),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    named.extend(self.named.try_iter());
                    break;
                }
            }
        }
        (named, self.waiting.stacks.load(Ordering::Relaxed) as u64)
    }
}

fn run(
    jobs: &Receiver<Job>,
    done: &SyncSender<Named>,
    waiting: &Waiting,
    haste: &Haste,
    mut symbolizer: Symbolizer,
) {
    if let Err(error) = haste.begin() {
        tracing::debug!("names are looked up at ordinary priority: {error}");
    }
    let mut todo = VecDeque::new();
    let mut rested = Instant::now();
    loop {
        if rested.elapsed() >= REST_EVERY {
            symbolizer.rest();
            rested = Instant::now();
        }
        // Before each look-up, which may take long where a binary is new: what has come meanwhile may
        // be of a process that ends before its turn comes.
        let job = match next(jobs, &mut todo, haste, |job| read_ahead(&mut symbolizer, job)) {
            Ok(job) => job,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        haste.over();
        waiting.bytes.fetch_sub(job.bytes(), Ordering::Relaxed);
        match job {
            Job::Name { id, at, process, stack } => {
                let stack = symbolizer.name(process, &stack);
                // The agent has ended, and counts what is left.
                if done.send(Named { id, at, stack }).is_err() {
                    return;
                }
                waiting.stacks.fetch_sub(1, Ordering::Relaxed);
            }
            Job::Ended(process) => symbolizer.ended(process),
            Job::Learn(_) | Job::Forked { .. } => {}
        }
    }
}

/// The oldest job. All that have come are shown to `arrived` first.
///
/// # Errors
/// There is none for now, or there will be none.
fn next(
    jobs: &Receiver<Job>,
    todo: &mut VecDeque<Job>,
    haste: &Haste,
    mut arrived: impl FnMut(&Job),
) -> Result<Job, RecvTimeoutError> {
    let first = if todo.is_empty() { Some(jobs.recv_timeout(REST_EVERY)?) } else { None };
    // From here on what is given may be met by the loop below or not: it counts as not.
    haste.taken();
    for job in first.into_iter().chain(jobs.try_iter()) {
        arrived(&job);
        todo.push_back(job);
    }
    todo.pop_front().ok_or(RecvTimeoutError::Timeout)
}

/// Reads what can vanish: mappings go with their process, code objects when nobody refers to them.
/// The rest is in files.
fn read_ahead(symbolizer: &mut Symbolizer, job: &Job) {
    match job {
        Job::Name { process, stack, .. } => {
            symbolizer.read_python(*process, stack);
            symbolizer.learn(*process);
        }
        Job::Learn(process) => symbolizer.learn(*process),
        Job::Forked { parent, child } => symbolizer.forked(*parent, *child),
        Job::Ended(_) => {}
    }
}
