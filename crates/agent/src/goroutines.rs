//! Samples goroutines on a thread of its own: reading a service's memory must not hold up the ring.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use underspan_golang::{Error, Inspector, Sampler, Source, StackEnd};
use underspan_trackers::goroutine::{Round, Sample};

use crate::{monotonic_ns, priority};

/// A runtime that is starting is looked at again after this long, and then ever more seldom.
const FIRST_LOOK: Duration = Duration::from_millis(50);
const LAST_LOOK: Duration = Duration::from_secs(10);
/// Rounds that may wait for the agent's loop, which may not get its turn for seconds on a busy host,
const QUEUE: usize = 4096;
/// and samples in them, some 150 bytes each.
const QUEUE_SAMPLES: usize = 65_536;
/// After a round the pause is at least so many times as long as the round was: at most 2 % of a CPU.
const REST: u32 = 49;
/// What the thread does when there is nothing to do.
const IDLE: Duration = Duration::from_secs(60);

/// What it means that the thread cannot run when it is time.
const LATE: &str = "where all CPUs are busy, goroutines are seen waiting too often";

/// Tells the thread what to do.
enum Command {
    Watch(u32),
    Forget(u32),
}

/// The sampling thread, started when the first process is watched.
#[derive(Debug)]
pub(crate) struct Goroutines {
    period: Option<Duration>,
    worker: Option<Worker>,
    known: BTreeSet<u32>,
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Worker {
    commands: Sender<Command>,
    rounds: Receiver<Round>,
    /// Samples in rounds that wait.
    waiting: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Goroutines {
    /// Looks so often a second; never, if 0.
    pub(crate) fn new(hz: u32) -> Self {
        let period = (hz > 0).then(|| Duration::from_secs(1) / hz);
        Goroutines { period, worker: None, known: BTreeSet::new(), lost: Arc::default() }
    }

    /// A process is watched, or runs another program now: is it Go's?
    pub(crate) fn watch(&mut self, pid: u32) {
        let Some(period) = self.period else { return };
        if self.worker.is_none() {
            self.worker = Worker::start(period, Arc::clone(&self.lost));
        }
        self.known.insert(pid);
        self.tell(Command::Watch(pid));
    }

    /// Forgets processes that are not watched any more.
    pub(crate) fn keep(&mut self, is_watched: impl Fn(u32) -> bool) {
        let known = std::mem::take(&mut self.known);
        let (kept, gone): (BTreeSet<_>, BTreeSet<_>) =
            known.into_iter().partition(|pid| is_watched(*pid));
        self.known = kept;
        for pid in gone {
            self.tell(Command::Forget(pid));
        }
    }

    /// Rounds since the last call.
    pub(crate) fn rounds(&self) -> Vec<Round> {
        let Some(worker) = &self.worker else { return Vec::new() };
        let rounds: Vec<_> = worker.rounds.try_iter().collect();
        let samples = rounds.iter().map(|round| round.samples.len()).sum();
        worker.waiting.fetch_sub(samples, Ordering::Relaxed);
        rounds
    }

    /// Rounds that found no place in the queue, ever.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn tell(&self, command: Command) {
        if let Some(worker) = &self.worker {
            // It ends only with us.
            let _ = worker.commands.send(command);
        }
    }
}

impl Worker {
    fn start(period: Duration, lost: Arc<AtomicU64>) -> Option<Self> {
        let (commands, inbox) = mpsc::channel();
        let (outbox, rounds) = mpsc::sync_channel(QUEUE);
        let waiting = Arc::new(AtomicUsize::new(0));
        let outbox = Outbox { rounds: outbox, waiting: Arc::clone(&waiting), lost };
        let body = move || Sampling::new(period, outbox).run(&inbox);
        match thread::Builder::new().name("goroutines".into()).spawn(body) {
            Ok(thread) => Some(Worker { commands, rounds, waiting, thread: Some(thread) }),
            Err(error) => {
                tracing::warn!("goroutines are not sampled: no thread: {error}");
                None
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The thread ends when nobody can command it any more.
        self.commands = mpsc::channel().0;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What a process is to the thread.
enum Target {
    /// Its runtime is not up.
    Starting { pause: Duration },
    /// It is sampled; the monotonic time of the last look.
    Sampled { sampler: Box<Sampler>, last: u64 },
}

/// Where rounds go.
struct Outbox {
    rounds: SyncSender<Round>,
    waiting: Arc<AtomicUsize>,
    lost: Arc<AtomicU64>,
}

impl Outbox {
    fn send(&self, round: Round) {
        let samples = round.samples.len();
        // Counted before it is sent: the other side takes it off again.
        let before = self.waiting.fetch_add(samples, Ordering::Relaxed);
        let fits = before + samples <= QUEUE_SAMPLES || before == 0;
        if !fits || self.rounds.try_send(round).is_err() {
            self.waiting.fetch_sub(samples, Ordering::Relaxed);
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The thread's side.
struct Sampling {
    period: Duration,
    outbox: Outbox,
    inspector: Inspector,
    targets: BTreeMap<u32, (Instant, Target)>,
}

impl Sampling {
    fn new(period: Duration, outbox: Outbox) -> Self {
        Sampling { period, outbox, inspector: Inspector::new(), targets: BTreeMap::new() }
    }

    fn run(mut self, inbox: &Receiver<Command>) {
        // Where all CPUs are busy, whoever waits for a turn has it when another thread begins to wait.
        // Looks at such moments would see waits too often. [`REST`] bounds how long they take.
        if let Err(error) = priority::first() {
            tracing::warn!("{LATE}: {error}");
        }
        loop {
            let now = Instant::now();
            let due = self.targets.iter().map(|(pid, (at, _))| (*at, *pid)).min();
            let pause = due.map_or(IDLE, |(at, _)| at.saturating_duration_since(now));
            match inbox.recv_timeout(pause) {
                Ok(Command::Watch(pid)) => self.inspect(pid, FIRST_LOOK),
                Ok(Command::Forget(pid)) => {
                    self.targets.remove(&pid);
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    let Some((_, pid)) = due else { continue };
                    let began = Instant::now();
                    self.look(pid);
                    // Whoever is due meanwhile waits: the bound holds for all together.
                    let cost = began.elapsed();
                    let rest = Instant::now() + cost * REST;
                    for (at, _) in self.targets.values_mut() {
                        *at = (*at).max(rest);
                    }
                }
            }
        }
    }

    fn look(&mut self, pid: u32) {
        match self.targets.remove(&pid) {
            None => {}
            Some((_, Target::Starting { pause })) => self.inspect(pid, pause),
            Some((_, Target::Sampled { sampler, last })) => self.sample(pid, sampler, last),
        }
    }

    fn inspect(&mut self, pid: u32, pause: Duration) {
        // Reading a large program's tables may take a second, and is in no haste.
        let inspected = priority::ordinary(|| self.inspector.inspect(pid));
        match inspected {
            Ok(runtime) => {
                tracing::debug!(pid, "{}: goroutines are sampled", runtime.version());
                let sampler = Box::new(Sampler::new(runtime));
                self.targets.insert(pid, (Instant::now(), Target::Sampled { sampler, last: 0 }));
            }
            Err(error) if error.is_transient() => {
                let next = (pause * 2).min(LAST_LOOK);
                let starting = Target::Starting { pause: next };
                self.targets.insert(pid, (Instant::now() + pause, starting));
            }
            Err(Error::NotGo | Error::Gone) => {
                self.targets.remove(&pid);
            }
            Err(error) => {
                self.targets.remove(&pid);
                tracing::warn!(pid, "its goroutines are not sampled: {error}");
            }
        }
    }

    fn sample(&mut self, pid: u32, mut sampler: Box<Sampler>, last: u64) {
        let Ok(at) = monotonic_ns() else { return };
        let round = match sampler.round(at) {
            Ok(round) => round,
            Err(Error::Gone) => return,
            // Also after it began another program: that is looked at from the start.
            Err(_) => return self.inspect(pid, FIRST_LOOK),
        };
        let samples = round.samples.into_iter().map(sample).collect();
        let round = Round { pid, since: last, at, samples, torn: round.torn };
        if last != 0 {
            self.outbox.send(round);
        }
        let next = Instant::now() + jittered(self.period);
        self.targets.insert(pid, (next, Target::Sampled { sampler, last: at }));
    }
}

/// Up to a quarter more or less: in step with nothing the service does.
fn jittered(period: Duration) -> Duration {
    let share = RandomState::new().hash_one(0) % 1000;
    period.mul_f64(0.75 + share as f64 / 2000.0)
}

fn sample(sample: underspan_golang::Sample) -> Sample {
    use underspan_model::StackEnd as End;
    Sample {
        goid: sample.goid,
        status: sample.status.name(),
        wait_reason: sample.wait_reason,
        wait_ns: sample.wait_ns,
        weight_ns: sample.weight_ns,
        tid: sample.tid,
        stack: sample.stack,
        end: match sample.end {
            StackEnd::Complete => End::Complete,
            StackEnd::Running => End::Absent,
            StackEnd::TooDeep => End::TooDeep,
            StackEnd::NoTable => End::NoTable,
            StackEnd::Unreadable => End::Unreadable,
        },
        function: sample.function,
    }
}

/// What can be seen of a process's goroutines, in words, for `doctor`; `None` if it is no Go program.
pub fn goroutines(pid: u32) -> Option<String> {
    let found = Inspector::new().inspect(pid).and_then(|runtime| Ok((runtime.alive()?, runtime)));
    Some(match found {
        Ok((alive, runtime)) => {
            let offsets = match runtime.source() {
                Source::Dwarf => "DWARF",
                Source::Table => "known offsets",
            };
            let late = match thread::spawn(priority::first).join() {
                Ok(Err(_)) => format!("; {LATE}: CAP_SYS_NICE is missing"),
                _ => String::new(),
            };
            let s = if alive == 1 { "" } else { "s" };
            format!("{}, {offsets}, {alive} goroutine{s}{late}", runtime.version())
        }
        Err(Error::NotGo | Error::Gone) => return None,
        Err(error) => format!("Go, goroutines not read: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_a_quarter_more_or_less() {
        let period = Duration::from_millis(100);
        let pauses: Vec<_> = (0..1000).map(|_| jittered(period)).collect();
        let range = Duration::from_millis(75)..=Duration::from_millis(125);
        assert!(pauses.iter().all(|pause| range.contains(pause)));
        let mean = pauses.iter().sum::<Duration>() / 1000;
        // Standard deviation of the mean: 0.5 ms.
        assert!(mean.abs_diff(period) < Duration::from_millis(4), "{mean:?}");
    }

    #[test]
    fn a_program_of_another_language_is_let_be() {
        assert_eq!(goroutines(std::process::id()), None);
        let mut goroutines = Goroutines::new(100);
        goroutines.watch(std::process::id());
        goroutines.watch(u32::MAX);
        thread::sleep(Duration::from_millis(50));
        assert!(goroutines.rounds().is_empty());
        assert_eq!(goroutines.lost(), 0);
    }

    #[test]
    fn rounds_wait_as_long_as_their_samples_are_not_too_many() {
        let sample = Sample {
            goid: 1,
            status: "running",
            wait_reason: "".into(),
            wait_ns: 0,
            weight_ns: 1,
            tid: 0,
            stack: Arc::from([]),
            end: underspan_model::StackEnd::Absent,
            function: "main.main".into(),
        };
        let (rounds, inbox) = mpsc::sync_channel(QUEUE);
        let (waiting, lost) = (Arc::<AtomicUsize>::default(), Arc::<AtomicU64>::default());
        let outbox = Outbox { rounds, waiting: Arc::clone(&waiting), lost: Arc::clone(&lost) };
        let of = |samples| Round { samples: vec![sample.clone(); samples], ..Round::default() };
        outbox.send(of(QUEUE_SAMPLES + 1));
        outbox.send(of(1));
        assert_eq!((inbox.try_iter().count(), lost.load(Ordering::Relaxed)), (1, 1));
        waiting.store(0, Ordering::Relaxed);
        for _ in 0..=QUEUE {
            outbox.send(of(2));
        }
        assert_eq!((inbox.try_iter().count(), lost.load(Ordering::Relaxed)), (QUEUE, 2));
        assert_eq!(waiting.load(Ordering::Relaxed), 2 * QUEUE);
    }

    #[test]
    fn none_at_zero_hertz() {
        let mut goroutines = Goroutines::new(0);
        goroutines.watch(std::process::id());
        assert!(goroutines.worker.is_none());
    }
}
