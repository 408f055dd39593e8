//! What the kernel tells of one thread, and what is remembered of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use procfs::FromRead as _;
use procfs::process::{Process, Stat};

/// How a thread is called in rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadName {
    /// The thread's name: Python's, else the kernel's (at most 15 bytes).
    pub thread: Arc<str>,
    /// The process's name.
    pub process: Arc<str>,
    /// The process, as the host sees it; 0 if not known.
    pub pid: u32,
    /// `pid` as the process sees it; 0 if not known.
    pub ns_pid: u32,
    /// The thread as the process sees it; 0 if not known.
    pub ns_tid: u32,
}

/// A thread's `/proc` entry at one moment.
pub(super) struct Observed {
    /// Field 22 of `stat`; with the tid it is the thread's identity.
    pub(super) starttime: u64,
    pub(super) comm: String,
}

impl Observed {
    /// `None` if there is no such thread.
    pub(super) fn read(tid: u32) -> Option<Self> {
        // /proc/TID works for every thread, though only processes are listed. Its own `stat` would add up
        // what all threads of the process have used: with thousands of them that takes a millisecond.
        let stat = Stat::from_file(format!("/proc/{tid}/task/{tid}/stat")).ok()?;
        Some(Observed { starttime: stat.starttime, comm: stat.comm })
    }
}

/// The ids of a thread: process, and both as the process sees them.
pub(super) fn ids(tid: u32) -> Option<(u32, u32, u32)> {
    let status = process(tid)?.status().ok()?;
    let innermost = |ids: Option<Vec<i32>>, host: i32| {
        u32::try_from(ids.and_then(|ids| ids.last().copied()).unwrap_or(host)).ok()
    };
    let ns_pid = innermost(status.nstgid, status.tgid)?;
    let ns_tid = innermost(status.nspid, status.pid)?;
    Some((u32::try_from(status.tgid).ok()?, ns_pid, ns_tid))
}

fn process(tid: u32) -> Option<Process> {
    Process::new(i32::try_from(tid).ok()?).ok()
}

/// A time that comes back later each time, up to a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    pub(super) at: Instant,
    pause: Duration,
    longest: Duration,
}

impl Backoff {
    pub(super) fn new(now: Instant, first: Duration, longest: Duration) -> Self {
        Backoff { at: now + first, pause: first, longest }
    }

    /// Due now; then `first` later, and so on.
    pub(super) fn due(now: Instant, first: Duration, longest: Duration) -> Self {
        Backoff { at: now, pause: first / 2, longest }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.at
    }

    pub(super) fn again(&mut self, now: Instant) {
        self.pause = (self.pause * 2).min(self.longest);
        self.at = now + self.pause;
    }
}

/// What is remembered of a thread.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) name: Arc<ThreadName>,
    pub(super) starttime: u64,
    /// The kernel's name for it.
    pub(super) comm: String,
    /// Python named it, so the kernel's name does not matter.
    pub(super) python: bool,
    /// When to look whether it still is what it was.
    pub(super) check: Backoff,
    /// When to ask Python for a (better) name; `None` once it has one of its own.
    pub(super) ask: Option<Backoff>,
    pub(super) ended: Option<Instant>,
}

impl Thread {
    /// Whether nothing needs to be looked up to say how it is called.
    pub(super) fn is_settled(&self, now: Instant) -> bool {
        let wants_name = self.ended.is_none() && self.ask.is_some_and(|ask| ask.is_due(now));
        !wants_name && !self.check.is_due(now)
    }

    pub(super) fn call(&mut self, thread: &str) {
        if *self.name.thread != *thread {
            Arc::make_mut(&mut self.name).thread = thread.into();
        }
    }
}

/// `Thread-7`, `Thread-7 (worker)`, `Dummy-7`: what `threading` makes up. The program may yet give
/// the thread a name of its own.
pub(super) fn is_made_up(name: &str) -> bool {
    let number = name.strip_prefix("Thread-").or_else(|| name.strip_prefix("Dummy-"));
    number.is_some_and(|number| number.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_names_are_known() {
        for name in ["Thread-1", "Thread-12 (serve_forever)", "Dummy-3"] {
            assert!(is_made_up(name), "{name}");
        }
        for name in ["MainThread", "Thread-pool", "ThreadPoolExecutor-0_3", "worker"] {
            assert!(!is_made_up(name), "{name}");
        }
    }

    #[test]
    fn a_thread_is_known_by_its_own_ids() {
        let me = std::process::id();
        let (pid, ns_pid, ns_tid) = ids(nix::unistd::gettid().as_raw() as u32).unwrap();
        assert_eq!((pid, ns_pid), (me, me));
        assert_eq!(ns_tid, nix::unistd::gettid().as_raw() as u32);
        assert!(Observed::read(u32::MAX).is_none());
    }
}
