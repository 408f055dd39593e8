//! What a thread's stack says of the wait that it is in. The ledger knows whether a thread is at a request;
//! only the stack knows a pool's queue from a lock.

use std::collections::{HashMap, HashSet};

use underspan_model::State;

use crate::stack::Stacks;

/// Shorter waits are not asked about: it costs a millisecond.
const LONG_NS: u64 = 100_000_000;
/// So many waits are asked about in an interval; and in one that begins to read a process, no more.
const MOST: usize = 8;

/// A wait for a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) since: u64,
    pub(crate) for_ns: u64,
    /// The thread serves requests, and is at none.
    pub(crate) outside_requests: bool,
}

/// What was said. A wait is asked about once: where the thread waits does not change.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// By thread: when the wait began, and whether it is one for something to do.
    said: HashMap<u32, (u64, Option<bool>)>,
    /// Processes that were read, and those that cannot be.
    readable: HashSet<u32>,
    unreadable: HashSet<u32>,
    /// How many more may be asked about.
    left: usize,
}

impl Asked {
    /// An interval has ended: so many may be asked about again. Forgets threads and processes that are gone.
    pub(crate) fn begin(&mut self, threads: &HashSet<u32>, processes: &HashSet<u32>) {
        self.left = MOST;
        self.said.retain(|tid, _| threads.contains(tid));
        self.readable.retain(|pid| processes.contains(pid));
        self.unreadable.retain(|pid| processes.contains(pid));
    }

    /// Whether the thread waits for something to do; `None`: its stack does not say.
    pub(crate) fn is_idle(&mut self, wait: &Waiting, stacks: &mut Stacks) -> Option<bool> {
        let Waiting { pid, tid, outside_requests, .. } = *wait;
        self.ask(wait, || stacks.is_idle(pid, tid, State::LockWait, !outside_requests))
    }

    fn ask(
        &mut self,
        wait: &Waiting,
        read: impl FnOnce() -> Result<Option<bool>, String>,
    ) -> Option<bool> {
        if let Some((_, said)) = self.said.get(&wait.tid).filter(|(since, _)| *since == wait.since)
        {
            return *said;
        }
        if wait.for_ns < LONG_NS || self.left == 0 || self.unreadable.contains(&wait.pid) {
            return None;
        }
        self.left = if self.readable.insert(wait.pid) { 0 } else { self.left - 1 };
        let said = read().unwrap_or_else(|_| {
            self.unreadable.insert(wait.pid);
            None
        });
        self.said.insert(wait.tid, (wait.since, said));
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(pid: u32, tid: u32, since: u64) -> Waiting {
        Waiting { pid, tid, since, for_ns: LONG_NS, outside_requests: true }
    }

    fn ids<const N: usize>(ids: [u32; N]) -> HashSet<u32> {
        ids.into_iter().collect()
    }

    #[test]
    fn a_wait_is_asked_about_once_and_few_are() {
        let mut asked = Asked::default();
        let yes = || Ok(Some(true));
        let not_again = || -> Result<Option<bool>, String> { panic!("it was asked about") };
        assert_eq!(asked.ask(&wait(1, 10, 5), not_again), None, "before the first interval");
        asked.begin(&ids([10]), &ids([1]));
        let short = Waiting { for_ns: LONG_NS - 1, ..wait(1, 10, 5) };
        assert_eq!(asked.ask(&short, not_again), None);
        assert_eq!(asked.ask(&wait(1, 10, 5), yes), Some(true));
        assert_eq!(asked.ask(&wait(1, 10, 5), not_again), Some(true));
        assert_eq!(asked.ask(&wait(1, 11, 5), not_again), None, "the process was new");
        asked.begin(&ids([10]), &ids([1]));
        assert_eq!(asked.ask(&wait(1, 10, 6), || Ok(Some(false))), Some(false), "another wait");
        for tid in 11..=17 {
            assert_eq!(asked.ask(&wait(1, tid, 5), yes), Some(true));
        }
        assert_eq!(asked.ask(&wait(1, 18, 5), not_again), None, "that is enough");
    }

    #[test]
    fn a_process_that_cannot_be_read_is_left_alone() {
        let mut asked = Asked::default();
        asked.begin(&ids([10]), &ids([1]));
        assert_eq!(asked.ask(&wait(1, 10, 5), || Err("no".to_owned())), None);
        asked.begin(&ids([10]), &ids([1]));
        assert_eq!(asked.ask(&wait(1, 10, 6), || panic!("it was asked again")), None);
        asked.begin(&ids([]), &ids([]));
        assert!(asked.said.is_empty() && asked.unreadable.is_empty() && asked.readable.is_empty());
    }
}
