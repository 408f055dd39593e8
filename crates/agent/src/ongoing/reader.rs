//! The thread that reads: what it is told to, one thing after another, with rests in between.

use std::collections::VecDeque;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use underspan_trackers::offcpu::OngoingWait;
use underspan_trackers::{OngoingStacks, ThreadSnapshot};

use super::pythons::Pythons;
use crate::priority;

/// After each the reader rests so many times as long as it took: at most 2 % of a CPU.
const REST: u32 = 49;
/// Only the first look at a process takes so long that this is less.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// The reading thread's other end.
pub(super) struct Reader {
    pub(super) commands: Sender<Command>,
    pub(super) read: Receiver<OngoingWait>,
}

/// What the thread is told.
pub(super) enum Command {
    Read(Vec<ThreadSnapshot>),
    /// A process ended, or runs another program.
    Forget(u32),
}

impl Reader {
    pub(super) fn start(stacks: Option<OngoingStacks>) -> Option<Self> {
        let (commands, inbox) = mpsc::channel();
        let (outbox, read) = mpsc::channel();
        let body = move || {
            // What is watched must not wait for a CPU because of this.
            if let Err(error) = priority::set_nice(priority::SELF, 10) {
                tracing::debug!("waits that go on are read at ordinary priority: {error}");
            }
            run(&mut Reading { stacks, pythons: Pythons::new(), inbox, outbox });
        };
        match thread::Builder::new().name("ongoing".into()).spawn(body) {
            Ok(_) => Some(Reader { commands, read }),
            Err(error) => {
                tracing::warn!("waits that go on have no stack: no thread: {error}");
                None
            }
        }
    }
}

/// What takes the thread's time, and the clock that says how much.
trait Work {
    fn now(&self) -> Instant;

    /// The next command. `Timeout`: none came for that long.
    fn command(&mut self, within: Option<Duration>) -> Result<Command, RecvTimeoutError>;

    /// Has the part of these threads' stacks told that BPF reads.
    fn tell(&mut self, threads: &[ThreadSnapshot]);

    /// Reads the rest of one. False: nobody wants it any more.
    fn read(&mut self, thread: ThreadSnapshot) -> bool;

    /// A process ended, or runs another program.
    fn forget(&mut self, pid: u32);
}

/// Until nobody commands any more, or wants what is read.
fn run(work: &mut impl Work) {
    let mut todo = VecDeque::new();
    let mut rest = Rest { until: work.now() };
    loop {
        let within = (!todo.is_empty()).then(|| rest.until.saturating_duration_since(work.now()));
        match work.command(within) {
            // At once, since threads move on; it is rested from before anything is read.
            Ok(Command::Read(threads)) => {
                let began = work.now();
                work.tell(&threads);
                rest.worked(began, work.now());
                todo.extend(threads);
            }
            Ok(Command::Forget(pid)) => work.forget(pid),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let Some(thread) = todo.pop_front() else { continue };
                let began = work.now();
                if !work.read(thread) {
                    return;
                }
                rest.worked(began, work.now());
            }
        }
    }
}

/// For how long nothing is to be read.
struct Rest {
    until: Instant,
}

impl Rest {
    /// What was done while it was to rest makes the rest longer, by the work as well.
    fn worked(&mut self, began: Instant, ended: Instant) {
        let took = ended.saturating_duration_since(began);
        self.until = self.until.max(began) + took + (took * REST).min(LONGEST_REST);
    }
}

/// The thread in earnest.
struct Reading {
    /// `None`: this kernel has it not.
    stacks: Option<OngoingStacks>,
    pythons: Pythons,
    inbox: Receiver<Command>,
    outbox: Sender<OngoingWait>,
}

impl Work for Reading {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn command(&mut self, within: Option<Duration>) -> Result<Command, RecvTimeoutError> {
        match within {
            Some(within) => self.inbox.recv_timeout(within),
            None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn tell(&mut self, threads: &[ThreadSnapshot]) {
        let tids: Vec<_> = threads.iter().map(|thread| thread.tid).collect();
        if let Some(Err(error)) = self.stacks.as_ref().map(|stacks| stacks.tell(&tids)) {
            tracing::warn!("{error}");
        }
    }

    fn read(&mut self, thread: ThreadSnapshot) -> bool {
        let (python, python_end) = self.pythons.frames(&thread);
        self.outbox.send(OngoingWait { thread, seen: 0, python, python_end }).is_ok()
    }

    fn forget(&mut self, pid: u32) {
        self.pythons.forget(pid);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use underspan_model::State;

    use super::super::tests::thread;
    use super::*;

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// Work longer than that is not rested from in full.
    const LONGEST_WORK: Duration = micros(20_408);

    /// Work that takes as long as it is said to, on a clock that only work and waiting move.
    struct Simulated {
        began: Instant,
        now: Duration,
        /// Commands to come: when, and to read how many threads. The last is first.
        commands: Vec<(Duration, usize)>,
        /// What the next work takes; then it begins anew.
        takes: Vec<Duration>,
        done: usize,
        busy: Duration,
        /// When each reading began, and what work there had been until then.
        read: Vec<(Duration, Duration)>,
    }

    impl Simulated {
        fn new(commands: &[(Duration, usize)], takes: &[Duration]) -> Self {
            let mut commands = commands.to_vec();
            commands.sort_unstable();
            commands.reverse();
            Simulated {
                began: Instant::now(),
                now: Duration::ZERO,
                commands,
                takes: takes.to_vec(),
                done: 0,
                busy: Duration::ZERO,
                read: Vec::new(),
            }
        }

        /// Runs until all that it is told to read is read.
        fn run(mut self) -> Self {
            run(&mut self);
            self
        }

        fn work(&mut self) {
            let took = self.takes[self.done % self.takes.len()];
            self.done += 1;
            self.busy += took;
            self.now += took;
        }
    }

    impl Work for Simulated {
        fn now(&self) -> Instant {
            self.began + self.now
        }

        fn command(&mut self, within: Option<Duration>) -> Result<Command, RecvTimeoutError> {
            let until = within.map(|within| self.now + within);
            let next = self.commands.pop_if(|(at, _)| until.is_none_or(|until| *at <= until));
            match (next, until) {
                (Some((at, threads)), _) => {
                    self.now = self.now.max(at);
                    Ok(Command::Read(vec![thread(1, State::Sleep, 1); threads]))
                }
                (None, Some(until)) => {
                    self.now = until;
                    Err(RecvTimeoutError::Timeout)
                }
                (None, None) => Err(RecvTimeoutError::Disconnected),
            }
        }

        fn tell(&mut self, _threads: &[ThreadSnapshot]) {
            self.work();
        }

        fn read(&mut self, _thread: ThreadSnapshot) -> bool {
            self.read.push((self.now, self.busy));
            self.work();
            true
        }

        fn forget(&mut self, _pid: u32) {}
    }

    #[test]
    fn a_reader_that_always_has_to_read_uses_two_percent() {
        let told = micros(3_000);
        let read = [micros(300), micros(1_700), micros(40)];
        let takes = [&[told][..], &read.repeat(21)].concat();
        let simulated = Simulated::new(&[(Duration::ZERO, 63)], &takes).run();
        assert_eq!(simulated.read.len(), 63);
        for (at, busy) in simulated.read {
            assert_eq!(at, busy * 50, "neither more nor less");
        }
    }

    #[test]
    fn a_long_look_is_rested_from_for_a_second() {
        let (long, short) = (micros(300_000), micros(100));
        let simulated = Simulated::new(&[(Duration::ZERO, 3)], &[short, long, short, short]).run();
        let began: Vec<_> = simulated.read.iter().map(|(at, _)| *at).collect();
        let first = short * 50;
        let second = first + long + LONGEST_REST;
        assert_eq!(began, [first, second, second + short * 50]);
    }

    /// What is told while the reader rests is work as well, though it does not wait.
    #[test]
    fn what_does_not_wait_is_rested_from_later() {
        let took = micros(2_000);
        let commands = [(Duration::ZERO, 2), (micros(101_000), 1)];
        let simulated = Simulated::new(&commands, &[took]).run();
        // Told; read; told at 101 ms while it is to rest until 200 ms; read.
        let began: Vec<_> = simulated.read.iter().map(|(at, _)| *at).collect();
        assert_eq!(began, [took * 50, took * 150, took * 200]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Whatever comes when, and takes how long: before each reading at most a fiftieth of the time was work.
        #[test]
        fn no_more_than_a_fiftieth_of_the_time_is_work(
            commands in proptest::collection::vec((0..20_000_000u64, 1..64usize), 1..20),
            takes in proptest::collection::vec(0..LONGEST_WORK.as_micros() as u64, 1..50),
        ) {
            let commands: Vec<_> = commands.iter().map(|(at, n)| (micros(*at), *n)).collect();
            let takes: Vec<_> = takes.into_iter().map(micros).collect();
            let simulated = Simulated::new(&commands, &takes).run();
            let asked: usize = commands.iter().map(|(_, threads)| threads).sum();
            prop_assert_eq!(simulated.read.len(), asked);
            for (at, busy) in simulated.read {
                prop_assert!(busy * 50 <= at, "{busy:?} of {at:?}");
            }
        }
    }
}
