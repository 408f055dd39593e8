//! A sample comes in pieces: the record, the kernel's part of the stack, the part in user mode, and
//! where its waker was. They are put together by thread and sequence.

use std::collections::{BTreeMap, HashMap};

use crate::record::off_cpu_event;
use crate::stack::RawStack;

/// So long, in nanoseconds, a sample waits for what is missing. A thread may go on waiting in the
/// kernel for several times before it is back in its own code.
const PATIENCE: u64 = 3_000_000_000;
/// So many samples wait at the same time.
const ROOM: usize = 16_384;

/// A stack in user mode.
#[derive(Clone, Debug)]
pub(super) struct UserStack {
    pub(super) stack: RawStack,
    /// What the futex that was waited on guards, if that is known. 0: not known.
    pub(super) lock: u64,
}

/// A sample, as far as it has come.
#[derive(Debug, Default)]
pub(super) struct Sample {
    arrived: u64,
    pub(super) event: Option<off_cpu_event>,
    /// Known with the record.
    pub(super) kernel: Option<RawStack>,
    pub(super) user: Option<UserStack>,
}

/// Where a waker was.
#[derive(Debug)]
struct Waker {
    arrived: u64,
    stack: RawStack,
}

type Key = (u32, u64);

#[derive(Debug, Default)]
pub(super) struct Join {
    samples: BTreeMap<Key, Sample>,
    /// Where in the kernel each thread slept when it was last told, and of which sample. Later ones
    /// refer to it.
    asleep: HashMap<u32, (u64, RawStack)>,
    /// By the sleeper and the low half of its sample's sequence.
    wakers: HashMap<(u32, u32), Waker>,
    now: u64,
}

impl Join {
    fn sample(&mut self, key: Key) -> &mut Sample {
        let arrived = self.now;
        self.samples.entry(key).or_insert_with(|| Sample { arrived, ..Sample::default() })
    }

    /// The record. Returned if it need not wait.
    pub(super) fn event(&mut self, event: off_cpu_event) -> Option<Sample> {
        let tid = event.h.tid;
        let key = (tid, event.sequence);
        let told = self.asleep.get(&tid).filter(|(sequence, _)| *sequence == event.asleep_as);
        let kernel = told.map(|(_, stack)| stack.clone());
        let sample = self.sample(key);
        sample.event = Some(event);
        sample.kernel = kernel;
        if sample.user.is_some() { self.samples.remove(&key) } else { None }
    }

    /// The kernel's part. It comes before the record.
    pub(super) fn kernel(&mut self, tid: u32, sequence: u64, stack: RawStack) {
        self.asleep.insert(tid, (sequence, stack));
    }

    /// The part in user mode, of all waits since the thread was there before. Returns those that are
    /// complete.
    pub(super) fn user(
        &mut self,
        tid: u32,
        oldest: u64,
        newest: u64,
        user: &UserStack,
    ) -> Vec<Sample> {
        self.sample((tid, newest));
        let mut complete = Vec::new();
        for (key, sample) in self.samples.range_mut((tid, oldest.min(newest))..=(tid, newest)) {
            sample.user = Some(user.clone());
            if sample.event.is_some() {
                complete.push(*key);
            }
        }
        complete.iter().filter_map(|key| self.samples.remove(key)).collect()
    }

    /// Where a waker was.
    pub(super) fn waker(&mut self, tid: u32, sequence: u32, stack: RawStack) {
        if self.wakers.len() < ROOM {
            self.wakers.insert((tid, sequence), Waker { arrived: self.now, stack });
        }
    }

    /// Where the waker of a sample was.
    pub(super) fn take_waker(&mut self, tid: u32, sequence: u64) -> Option<RawStack> {
        self.wakers.remove(&(tid, sequence as u32)).map(|waker| waker.stack)
    }

    /// The samples of a thread that is gone.
    pub(super) fn ended(&mut self, tid: u32) -> Vec<Sample> {
        self.asleep.remove(&tid);
        let keys: Vec<_> =
            self.samples.range((tid, 0)..=(tid, u64::MAX)).map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| self.samples.remove(key)).collect()
    }

    /// Time passes. Returns samples that have waited for long enough; if there are too many, all.
    pub(super) fn tick(&mut self, now: u64) -> Vec<Sample> {
        self.now = now;
        let late = |arrived: u64| now.saturating_sub(arrived) >= PATIENCE;
        self.wakers.retain(|_, waker| !late(waker.arrived));
        let full = self.samples.len() > ROOM;
        let due: Vec<_> = self
            .samples
            .iter()
            .filter(|(_, sample)| full || late(sample.arrived))
            .map(|(key, _)| *key)
            .collect();
        due.iter().filter_map(|key| self.samples.remove(key)).collect()
    }
}
