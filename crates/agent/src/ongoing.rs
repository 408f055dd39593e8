//! Where threads stand whose wait is not over: their memory is read from outside, on a thread of its own.
//!
//! ```text
//!  ledgers, once a second ─ look(), ask() ─▶ thread "ongoing" ─▶ kernel and native, by BPF ─▶ ring ─┐
//!                                                 └─▶ Python's frames ─▶ read() ────────────────────┴▶ has it moved? ─▶ row
//! ```

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use underspan_cpython::code::CodeReader;
use underspan_cpython::{InspectError, Inspector, Interpreter};
use underspan_model::{ONGOING_AGAIN_NS, StackEnd, State};
use underspan_trackers::offcpu::OngoingWait;
use underspan_trackers::stack::PythonFrame;
use underspan_trackers::{OngoingStacks, ThreadSnapshot};

/// Threads that are being read at the same time, at the most. The others' turn comes later.
const AT_ONCE: usize = 64;
/// After each the reader rests so many times as long as it took: at most 2 % of a CPU.
const REST: u32 = 49;
/// Only the first look at a process takes so long that this is less.
const LONGEST_REST: Duration = Duration::from_secs(1);
/// Processes of which it is remembered what they run.
const PROCESSES: usize = 256;
/// A Python that could not be read is looked at again after this long.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Which threads are read, and which have been.
pub(crate) struct Ongoing {
    /// Waits at least this long, in nanoseconds; `None`: none.
    threshold: Option<u64>,
    /// When the wait began whose stack was asked for, and when it was, by thread.
    asked: HashMap<u32, (u64, u64)>,
    /// Asked for and not read yet.
    waiting: usize,
    /// Until there is a reader, which takes it.
    stacks: Option<OngoingStacks>,
    reader: Option<Reader>,
}

/// The reading thread's other end.
struct Reader {
    commands: Sender<Command>,
    read: Receiver<OngoingWait>,
}

/// What the thread is told.
enum Command {
    Read(Vec<ThreadSnapshot>),
    /// A process ended, or runs another program.
    Forget(u32),
}

impl Ongoing {
    /// Of waits at least this long; zero: of none. Without `stacks` only Python's frames are read.
    pub(crate) fn new(threshold: Duration, stacks: Option<OngoingStacks>) -> Self {
        let ns = u64::try_from(threshold.as_nanos()).unwrap_or(u64::MAX);
        Ongoing {
            threshold: (ns > 0).then_some(ns),
            asked: HashMap::new(),
            waiting: 0,
            stacks,
            reader: None,
        }
    }

    /// Which threads to read now, of all: what was asked for is asked for again only after [`ONGOING_AGAIN_NS`] of
    /// the same wait. Those that hold up a request come first, then those that wait for a lock, of these the longest.
    pub(crate) fn look<'a>(
        &mut self,
        threads: &'a [ThreadSnapshot],
        now: u64,
    ) -> Vec<&'a ThreadSnapshot> {
        let Some(threshold) = self.threshold else { return Vec::new() };
        let before = std::mem::take(&mut self.asked);
        let mut found = Vec::new();
        for thread in threads {
            let Some((state, since)) = thread.waits() else { continue };
            let asked = before.get(&thread.tid).filter(|(of, _)| *of == since);
            if let Some(asked) = asked.filter(|(_, at)| now.saturating_sub(*at) < ONGOING_AGAIN_NS)
            {
                self.asked.insert(thread.tid, *asked);
            } else if now.saturating_sub(since) >= threshold {
                found.push((!thread.in_request, state != State::LockWait, since, thread));
            }
        }
        found.sort_by_key(|(outside, other, since, _)| (*outside, *other, *since));
        found.truncate(AT_ONCE.saturating_sub(self.waiting));
        found.into_iter().map(|(.., thread)| thread).collect()
    }

    /// Has these read, at `now`.
    pub(crate) fn ask(&mut self, threads: &[&ThreadSnapshot], now: u64) {
        if threads.is_empty() {
            return;
        }
        if self.reader.is_none() {
            self.reader = Reader::start(self.stacks.take());
        }
        let Some(reader) = &self.reader else { return };
        let read = threads.iter().map(|thread| (*thread).clone()).collect();
        if reader.commands.send(Command::Read(read)).is_err() {
            return;
        }
        self.waiting += threads.len();
        let asked =
            threads.iter().filter_map(|thread| Some((thread.tid, (thread.waits()?.1, now))));
        self.asked.extend(asked);
    }

    /// A process ended, or runs another program.
    pub(crate) fn forget(&self, pid: u32) {
        if let Some(reader) = &self.reader {
            let _ = reader.commands.send(Command::Forget(pid));
        }
    }

    /// What has been read. Whether the thread has moved meanwhile is for the caller to find out.
    pub(crate) fn read(&mut self) -> Vec<OngoingWait> {
        let Some(reader) = &self.reader else { return Vec::new() };
        let read: Vec<_> = reader.read.try_iter().collect();
        self.waiting = self.waiting.saturating_sub(read.len());
        read
    }
}

impl Reader {
    fn start(stacks: Option<OngoingStacks>) -> Option<Self> {
        let (commands, inbox) = mpsc::channel();
        let (outbox, read) = mpsc::channel();
        let body = move || {
            if let Err(error) = lower_priority() {
                tracing::debug!("waits that go on are read at ordinary priority: {error}");
            }
            run(stacks.as_ref(), &inbox, &outbox);
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

/// What is watched must not wait for a CPU because of this.
fn lower_priority() -> io::Result<()> {
    // SAFETY: changes nothing but how the calling thread (0) is scheduled.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Until nobody commands any more.
fn run(stacks: Option<&OngoingStacks>, inbox: &Receiver<Command>, outbox: &Sender<OngoingWait>) {
    let mut pythons = Pythons::new();
    let mut todo = VecDeque::new();
    let mut next = Instant::now();
    loop {
        let command = if todo.is_empty() {
            inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            inbox.recv_timeout(next.saturating_duration_since(Instant::now()))
        };
        match command {
            Ok(Command::Read(threads)) => {
                let began = Instant::now();
                let tids: Vec<_> = threads.iter().map(|thread| thread.tid).collect();
                if let Some(Err(error)) = stacks.map(|stacks| stacks.tell(&tids)) {
                    tracing::warn!("{error}");
                }
                todo.extend(threads);
                next = next.max(rested(began));
            }
            Ok(Command::Forget(pid)) => pythons.forget(pid),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let Some(thread) = todo.pop_front() else { continue };
                let began = Instant::now();
                let (python, python_end) = pythons.frames(&thread);
                if outbox.send(OngoingWait { thread, seen: 0, python, python_end }).is_err() {
                    return;
                }
                next = rested(began);
            }
        }
    }
}

/// When work that `began` then and is done now has been rested from.
fn rested(began: Instant) -> Instant {
    Instant::now() + (began.elapsed() * REST).min(LONGEST_REST)
}

/// What processes run.
struct Pythons {
    inspector: Inspector,
    known: HashMap<u32, Python>,
}

enum Python {
    Known(Box<(Interpreter, CodeReader)>),
    /// There is none.
    None,
    /// There is one that cannot be read, until then at least.
    Refused(Instant),
}

impl Pythons {
    fn new() -> Self {
        Pythons { inspector: Inspector::new(), known: HashMap::new() }
    }

    fn forget(&mut self, pid: u32) {
        self.known.remove(&pid);
    }

    /// The thread's Python frames, innermost first.
    fn frames(&mut self, thread: &ThreadSnapshot) -> (Vec<PythonFrame>, StackEnd) {
        let refused = (Vec::new(), StackEnd::Unreadable);
        let (interpreter, reader) = match self.of(thread.pid) {
            Python::Known(known) => &**known,
            Python::None => return (Vec::new(), StackEnd::Absent),
            Python::Refused(_) => return refused,
        };
        let Ok(facts) = &interpreter.frames else { return refused };
        let found = facts.read_frames(interpreter.pid, |pthread| pthread == thread.pthread);
        let found = match found {
            Ok(Some(found)) => found,
            // A thread of a library's own.
            Ok(None) => return (Vec::new(), StackEnd::Absent),
            Err(error) => {
                tracing::debug!(thread.pid, thread.tid, "its Python frames: {error}");
                return refused;
            }
        };
        let mut frames = Vec::with_capacity(found.frames.len());
        for frame in &found.frames {
            // No code object stands there: the thread has moved on.
            let Ok(check) = reader.check(frame.code) else {
                return (frames, StackEnd::Inconsistent);
            };
            let &underspan_cpython::RawFrame { code, lasti, entry } = frame;
            frames.push(PythonFrame { code, check, lasti, entry });
        }
        let end = match (frames.is_empty(), found.is_cut) {
            (true, _) => StackEnd::Absent,
            (_, true) => StackEnd::TooDeep,
            _ => StackEnd::Complete,
        };
        (frames, end)
    }

    fn of(&mut self, pid: u32) -> &Python {
        let now = Instant::now();
        if matches!(self.known.get(&pid), Some(Python::Refused(until)) if *until <= now) {
            self.known.remove(&pid);
        }
        if self.known.len() >= PROCESSES && !self.known.contains_key(&pid) {
            self.known.clear();
        }
        let Pythons { inspector, known } = self;
        known.entry(pid).or_insert_with(|| {
            let Ok(id) = i32::try_from(pid) else { return Python::None };
            let found = match inspector.inspect(id) {
                Ok(interpreter) => CodeReader::new(&interpreter)
                    .map(|reader| Python::Known(Box::new((interpreter, reader))))
                    .map_err(|error| error.to_string()),
                Err(InspectError::NotPython) => Ok(Python::None),
                Err(error) => Err(error.to_string()),
            };
            found.unwrap_or_else(|why| {
                tracing::debug!(pid, "waits that go on have no Python frames: {why}");
                Python::Refused(now + LOOK_AGAIN)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use underspan_model::Ledger;

    const SECOND: u64 = 1_000_000_000;

    fn thread(tid: u32, state: State, since: u64) -> ThreadSnapshot {
        ThreadSnapshot {
            pid: std::process::id(),
            tid,
            born: 1,
            since,
            state: state as u8,
            comm: String::new(),
            ledger: Ledger::default(),
            waiting_since: since,
            gil_holder: 0,
            pthread: 0,
            in_request: false,
            futex: 0,
            syscall: -1,
        }
    }

    fn tids(found: &[&ThreadSnapshot]) -> Vec<u32> {
        found.iter().map(|thread| thread.tid).collect()
    }

    #[test]
    fn each_long_wait_is_asked_for_once() {
        let mut ongoing = Ongoing::new(Duration::from_secs(1), None);
        let mut threads = vec![
            thread(10, State::LockWait, 4 * SECOND),
            thread(11, State::LockWait, 9 * SECOND + 1),
            thread(12, State::Running, SECOND),
            thread(13, State::Runnable, SECOND),
        ];
        let found = ongoing.look(&threads, 10 * SECOND);
        assert_eq!(tids(&found), [10]);
        ongoing.ask(&found, 10 * SECOND);
        assert_eq!(tids(&ongoing.look(&threads, 10 * SECOND)), [0; 0]);
        let later = 10 * SECOND + ONGOING_AGAIN_NS;
        assert_eq!(tids(&ongoing.look(&threads[..1], later)), [10]);
        // Another wait, and one that is long enough now.
        threads[0] = thread(10, State::LockWait, 10 * SECOND);
        let found = ongoing.look(&threads, 11 * SECOND);
        assert_eq!(tids(&found), [11, 10]);
        // What could not be asked for is tried again.
        assert_eq!(tids(&ongoing.look(&threads, 12 * SECOND)), [11, 10]);
    }

    #[test]
    fn requests_come_first_and_locks_next() {
        let mut ongoing = Ongoing::new(Duration::from_secs(1), None);
        let serving = ThreadSnapshot { in_request: true, ..thread(4, State::NetRead, 3 * SECOND) };
        let mut threads = vec![
            thread(1, State::PollWait, SECOND),
            thread(2, State::LockWait, 2 * SECOND),
            thread(3, State::Sleep, 2 * SECOND),
            serving,
        ];
        assert_eq!(tids(&ongoing.look(&threads, 9 * SECOND)), [4, 2, 1, 3]);
        threads.extend((100..300).map(|tid| thread(tid, State::Sleep, SECOND)));
        let found = ongoing.look(&threads, 9 * SECOND);
        assert_eq!(found.len(), AT_ONCE);
        ongoing.ask(&found, 9 * SECOND);
        assert!(ongoing.look(&threads, 9 * SECOND).is_empty(), "there is no room");
    }

    #[test]
    fn what_runs_no_python_has_no_frames_of_it() {
        let mut ongoing = Ongoing::new(Duration::from_secs(1), None);
        let sleeper = thread(std::process::id(), State::Sleep, SECOND);
        ongoing.ask(&[&sleeper], 9 * SECOND);
        let read = loop {
            match ongoing.read().pop() {
                Some(read) => break read,
                None => thread::sleep(Duration::from_millis(10)),
            }
        };
        assert_eq!((read.python.len(), read.python_end), (0, StackEnd::Absent));
        assert_eq!(read.thread, sleeper);
        assert_eq!(ongoing.waiting, 0);
    }

    #[test]
    fn none_below_no_threshold() {
        let mut ongoing = Ongoing::new(Duration::ZERO, None);
        assert!(ongoing.look(&[thread(1, State::LockWait, 1)], 9 * SECOND).is_empty());
    }
}
