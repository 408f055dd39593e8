//! Which waits for a lock were merely waits for something to do: those of a thread that serves requests,
//! outside of these.
//!
//! A thread's ledger is told when it reads a request and when that is answered. So each request covers a
//! stretch of its thread's time in `lock_wait`, to the nanosecond, and the thread was free in what none covers.

use std::collections::HashMap;
use std::ops::Range;

use underspan_model::{Ledger, State};
use underspan_trackers::RequestRead;

/// More requests than this are not followed.
const MOST: usize = 65_536;
/// A stretch whose end is not known lasts until somebody looks.
const UNKNOWN: u64 = u64::MAX;

/// Threads that have read a request.
#[derive(Debug, Default)]
pub(crate) struct Servers {
    threads: HashMap<u32, Server>,
    /// Who reads a request that is open, or was answered last by its thread.
    readers: HashMap<u64, u32>,
}

/// One of them. Times are those that it had spent in `lock_wait`.
#[derive(Debug, Default)]
struct Server {
    /// When it read the requests that have no answer yet, by id.
    open: HashMap<u64, u64>,
    /// The request that was answered last, and when it was read: more of the answer may follow.
    answered: Option<(u64, u64)>,
    covered: Vec<Range<u64>>,
    /// It was at a request of which nobody was told, when last looked at.
    unseen: bool,
}

impl Servers {
    pub(crate) fn read(&mut self, request: &RequestRead) {
        if self.readers.len() >= MOST {
            // Answers were lost. A thread without a request that is known is not taken for free.
            *self = Servers::default();
        }
        let server = self.threads.entry(request.tid).or_default();
        server.open.insert(request.id, lock_wait(request.ledger.as_ref()).unwrap_or(0));
        self.readers.insert(request.id, request.tid);
    }

    /// A request was answered, or more of its answer was sent. `ledger`: since it was read.
    pub(crate) fn answered(&mut self, id: u64, ledger: Option<&Ledger>) {
        let Some(server) = self.readers.get(&id).and_then(|tid| self.threads.get_mut(tid)) else {
            return;
        };
        let again = || server.answered.filter(|(last, _)| *last == id).map(|(_, read)| read);
        let Some(read) = server.open.remove(&id).or_else(again) else { return };
        let end = lock_wait(ledger).map_or(UNKNOWN, |ns| read.saturating_add(ns));
        server.covered.push(read..end);
        if let Some((last, _)) = server.answered.replace((id, read)).filter(|(last, _)| *last != id)
        {
            self.readers.remove(&last);
        }
    }

    /// How much of `lock_wait` no request covers, and begins anew from its end. `None`: the thread has not
    /// read any request. `in_request`: it is at one now, as the kernel's side knows it.
    pub(crate) fn free(
        &mut self,
        tid: u32,
        lock_wait: &Range<u64>,
        in_request: bool,
    ) -> Option<u64> {
        let server = self.threads.get_mut(&tid)?;
        let unseen = in_request && server.open.is_empty();
        let was_unseen = std::mem::replace(&mut server.unseen, unseen);
        let open = server.open.values().map(|read| *read..UNKNOWN);
        let covered = server.covered.drain(..).chain(open).collect();
        let total = lock_wait.end.saturating_sub(lock_wait.start);
        let free = total.saturating_sub(overlap(covered, lock_wait));
        Some(if unseen || was_unseen { 0 } else { free })
    }

    /// Whether the thread has served requests, and is at none now.
    pub(crate) fn is_free(&self, tid: u32, in_request: bool) -> bool {
        !in_request && self.threads.get(&tid).is_some_and(|server| server.open.is_empty())
    }

    /// Forgets threads that are gone.
    pub(crate) fn retain(&mut self, is_there: impl Fn(u32) -> bool) {
        self.threads.retain(|tid, _| is_there(*tid));
        self.readers.retain(|_, tid| is_there(*tid));
    }
}

fn lock_wait(ledger: Option<&Ledger>) -> Option<u64> {
    ledger.map(|ledger| ledger[State::LockWait])
}

/// How much of `within` is in one of the stretches, or in several.
fn overlap(mut stretches: Vec<Range<u64>>, within: &Range<u64>) -> u64 {
    stretches.sort_by_key(|stretch| stretch.start);
    let (mut covered, mut so_far) = (0, within.start);
    for stretch in stretches {
        let from = stretch.start.max(so_far);
        let to = stretch.end.min(within.end);
        covered += to.saturating_sub(from);
        so_far = so_far.max(to);
    }
    covered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waited(ns: u64) -> Ledger {
        let mut ledger = Ledger::default();
        ledger[State::LockWait] = ns;
        ledger
    }

    fn read(servers: &mut Servers, id: u64, ledger: Option<Ledger>) {
        servers.read(&RequestRead {
            id,
            pid: 1,
            tid: 10,
            ready: 0,
            read: 0,
            method: String::new(),
            path: String::new(),
            peer: String::new(),
            ledger,
        });
    }

    #[test]
    fn who_never_served_a_request_is_not_known_to_be_free() {
        let mut servers = Servers::default();
        assert_eq!(servers.free(10, &(0..100), false), None);
        assert!(!servers.is_free(10, false));
    }

    #[test]
    fn waits_outside_requests_are_free_and_those_within_are_not() {
        let mut servers = Servers::default();
        read(&mut servers, 1, Some(waited(100)));
        assert!(!servers.is_free(10, true) && !servers.is_free(10, false));
        // 60 before it was read, 40 in it; the next interval has the other 30 of it.
        assert_eq!(servers.free(10, &(40..140), true), Some(60));
        servers.answered(1, Some(&waited(70)));
        assert!(servers.is_free(10, false) && !servers.is_free(10, true));
        assert_eq!(servers.free(10, &(140..240), false), Some(70));
        assert_eq!(servers.free(10, &(240..340), false), Some(100));
    }

    #[test]
    fn what_lies_between_two_parts_of_an_answer_is_within_the_request() {
        let mut servers = Servers::default();
        read(&mut servers, 1, Some(waited(0)));
        servers.answered(1, Some(&waited(10)));
        servers.answered(1, Some(&waited(60)));
        assert_eq!(servers.free(10, &(0..100), false), Some(40));
        read(&mut servers, 2, Some(waited(100)));
        servers.answered(2, Some(&waited(20)));
        // Nothing of it can follow any more.
        servers.answered(1, Some(&waited(200)));
        assert_eq!(servers.free(10, &(100..200), false), Some(80));
    }

    #[test]
    fn requests_of_one_thread_at_the_same_time_count_once() {
        let mut servers = Servers::default();
        read(&mut servers, 1, Some(waited(10)));
        read(&mut servers, 2, Some(waited(20)));
        servers.answered(1, Some(&waited(40)));
        servers.answered(2, Some(&waited(20)));
        assert_eq!(servers.free(10, &(0..100), false), Some(60));
    }

    #[test]
    fn nothing_is_free_beside_a_request_whose_edges_are_not_known() {
        let mut servers = Servers::default();
        read(&mut servers, 1, None);
        servers.answered(1, None);
        assert_eq!(servers.free(10, &(0..100), false), Some(0));
        assert_eq!(servers.free(10, &(100..200), false), Some(100));
        // One that was read before anybody looked.
        assert_eq!(servers.free(10, &(200..300), true), Some(0));
        assert_eq!(servers.free(10, &(300..400), false), Some(0));
        assert_eq!(servers.free(10, &(400..500), false), Some(100));
    }

    #[test]
    fn threads_that_are_gone_are_forgotten() {
        let mut servers = Servers::default();
        read(&mut servers, 1, None);
        servers.retain(|tid| tid != 10);
        servers.answered(1, None);
        assert!(servers.threads.is_empty() && servers.readers.is_empty());
    }
}
