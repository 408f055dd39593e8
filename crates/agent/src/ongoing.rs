//! Where threads stand whose wait is not over: their memory is read from outside, on a thread of its own (`reader.rs`).
//!
//! ```text
//!  ledgers, once a second ─ look(), ask() ─▶ thread "ongoing" ─▶ kernel and native, by BPF ─▶ ring ─┐
//!                                                 └─▶ Python's frames ─▶ read() ────────────────────┴▶ has it moved? ─▶ row
//! ```

use std::collections::HashMap;
use std::time::Duration;

use underspan_model::{ONGOING_AGAIN_NS, State};
use underspan_trackers::offcpu::OngoingWait;
use underspan_trackers::{OngoingStacks, ThreadSnapshot};

mod pythons;
mod reader;

use reader::{Command, Reader};

/// Threads that are being read at the same time, at the most. The others' turn comes later.
const AT_ONCE: usize = 64;

/// A stack that was cut short, since an unwind table was not read yet, is asked for again after this long, and then
/// after twice as long each time; in nanoseconds.
const CUT_AGAIN_NS: u64 = 5_000_000_000;

/// What was asked for.
#[derive(Clone, Copy)]
struct Asked {
    /// When the wait began.
    since: u64,
    /// When its stack was asked for.
    at: u64,
    /// How often it was cut short.
    cut: u32,
    /// After how long it is asked for again.
    again: u64,
}

/// Which threads are read, and which have been.
pub(crate) struct Ongoing {
    /// Waits at least this long, in nanoseconds; `None`: none.
    threshold: Option<u64>,
    /// By thread.
    asked: HashMap<u32, Asked>,
    /// Asked for and not read yet.
    waiting: usize,
    /// Until there is a reader, which takes it.
    stacks: Option<OngoingStacks>,
    reader: Option<Reader>,
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
    /// the same wait, or sooner if it was cut short. Those that hold up a request come first, then those that wait
    /// for a lock, of these the longest.
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
            let asked = before.get(&thread.tid).filter(|asked| asked.since == since);
            self.asked.extend(asked.map(|asked| (thread.tid, *asked)));
            let is_due = asked.is_none_or(|asked| now.saturating_sub(asked.at) >= asked.again);
            if is_due && now.saturating_sub(since) >= threshold {
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
        for thread in threads {
            let Some((_, since)) = thread.waits() else { continue };
            let before = self.asked.get(&thread.tid).filter(|asked| asked.since == since);
            let cut = before.map_or(0, |asked| asked.cut);
            let asked = Asked { since, at: now, cut, again: ONGOING_AGAIN_NS };
            self.asked.insert(thread.tid, asked);
        }
    }

    /// What was read of this thread was cut short: an unwind table was not read yet.
    pub(crate) fn is_cut(&mut self, tid: u32) {
        if let Some(asked) = self.asked.get_mut(&tid) {
            let again = CUT_AGAIN_NS.saturating_mul(1 << asked.cut.min(u64::BITS / 2));
            asked.again = again.min(ONGOING_AGAIN_NS);
            asked.cut += 1;
        }
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

#[cfg(test)]
mod tests {
    use underspan_model::{Ledger, StackEnd};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    pub(super) fn thread(tid: u32, state: State, since: u64) -> ThreadSnapshot {
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
    fn what_was_cut_short_is_asked_for_again_sooner() {
        let mut ongoing = Ongoing::new(Duration::from_secs(1), None);
        let mut threads = [thread(10, State::LockWait, SECOND), thread(11, State::Sleep, SECOND)];
        let mut due = 10 * SECOND;
        let found = ongoing.look(&threads, due);
        ongoing.ask(&found, due);
        for pause in [5, 10, 20, 40, 80, 160, 300, 300] {
            ongoing.is_cut(10);
            assert_eq!(tids(&ongoing.look(&threads[..1], due + pause * SECOND - 1)), [0; 0]);
            due += pause * SECOND;
            let found = ongoing.look(&threads[..1], due);
            assert_eq!(tids(&found), [10], "{pause}");
            ongoing.ask(&found, due);
        }
        // Another wait begins anew.
        threads[0] = thread(10, State::LockWait, due);
        due += SECOND;
        let found = ongoing.look(&threads[..1], due);
        ongoing.ask(&found, due);
        ongoing.is_cut(10);
        assert_eq!(tids(&ongoing.look(&threads[..1], due + CUT_AGAIN_NS)), [10]);
        // It was whole this time.
        ongoing.ask(&[&threads[0]], due + CUT_AGAIN_NS);
        assert!(ongoing.look(&threads[..1], due + ONGOING_AGAIN_NS).is_empty());
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
                None => std::thread::sleep(Duration::from_millis(10)),
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
