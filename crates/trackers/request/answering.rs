//! Answers that pause: do they go on?
//!
//! Most say themselves where they end. One that does not looks, on a kept-alive connection that says nothing more,
//! like an answer that pauses. What tells them apart is what the thread does meanwhile: one that has answered waits
//! for work, or reads another request.

use std::collections::{HashMap, HashSet};

use underspan_model::State;

use super::assemble::{Asked, Assembler, Progress, Told};
use crate::record::ThreadSnapshot;

/// Longer than this no answer pauses, in nanoseconds.
pub(super) const LONGEST_PAUSE_NS: u64 = 30_000_000_000;

/// The same of one that said that there is more: a server that sends events says that it is alive four times a minute.
pub(super) const LONGEST_SAID_PAUSE_NS: u64 = 60_000_000_000;

/// In these it may wait for work, or for what it needs for its answer: nobody can tell.
const FOR_WORK: [State; 4] = [State::LockWait, State::PollWait, State::NetRead, State::Other];

/// As much of the time since the last write, one part of so many, may be waits for work.
const LITTLE: u64 = 10;

/// What threads do that have answered.
#[derive(Default)]
pub(super) struct Answering {
    /// When each thread last read a request, if that is not long ago.
    read: HashMap<u32, u64>,
    /// Requests whose answers go on, as far as is known.
    going_on: HashSet<u64>,
}

impl Answering {
    /// A thread has read a request.
    pub(super) fn read(&mut self, tid: u32, time: u64) {
        self.read.insert(tid, time);
    }

    /// What the threads do now.
    pub(super) fn look(&mut self, assembler: &Assembler, threads: &[ThreadSnapshot], now: u64) {
        self.read.retain(|_, read| now.saturating_sub(*read) < LONGEST_PAUSE_NS);
        self.going_on.clear();
        let mut answered = assembler.answered().peekable();
        if answered.peek().is_none() {
            return;
        }
        let threads: HashMap<u32, &ThreadSnapshot> =
            threads.iter().map(|thread| (thread.tid, thread)).collect();
        for (asked, told) in answered {
            let thread = threads.get(&asked.tid).filter(|thread| thread.born == asked.born);
            let serves_another = self.read.get(&asked.tid).is_some_and(|read| *read > told.until);
            if !serves_another && thread.is_some_and(|thread| is_at_it(asked, told, thread, now)) {
                self.going_on.insert(asked.id);
            }
        }
    }

    /// Whether an answer whose last byte was sent a while before `now` merely pauses.
    pub(super) fn pauses(&self, id: u64, told: &Told, now: u64) -> bool {
        let silent = now.saturating_sub(told.until);
        match told.progress {
            Progress::GoesOn => silent < LONGEST_SAID_PAUSE_NS,
            Progress::Whole => false,
            Progress::Unknown => silent < LONGEST_PAUSE_NS && self.going_on.contains(&id),
        }
    }
}

/// Whether the thread that read the request, and answers it, has done something else than wait for work since its
/// last write.
fn is_at_it(asked: &Asked, told: &Told, thread: &ThreadSnapshot, now: u64) -> bool {
    if told.shared_thread || told.sent_tid != asked.tid {
        return false;
    }
    let Some(done) = thread.at(now).since(&(asked.at_read + told.ledger)) else { return false };
    let waited: u64 = FOR_WORK.iter().map(|state| done[*state]).sum();
    waited.saturating_mul(LITTLE) <= now.saturating_sub(told.until)
}
