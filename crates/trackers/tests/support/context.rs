//! Names and clocks without an agent.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::super::api::stack::RawStack;
use super::super::api::{Context, Thread};

/// Knows the threads it was told of; its wall clock is a fixed distance from the monotonic one.
#[derive(Default)]
pub(crate) struct FakeContext {
    pub(crate) offset: u64,
    pub(crate) threads: HashMap<u32, Thread>,
    /// Those of them that will be named soon.
    pub(crate) unnamed: HashSet<u32>,
    pub(crate) stacks: Vec<RawStack>,
    /// Their ids. There are thousands, and a slow machine must look them up faster than they come.
    pub(crate) stack_ids: HashMap<RawStack, u64>,
    pub(crate) lost: BTreeMap<(&'static str, &'static str), u64>,
}

impl FakeContext {
    pub(crate) const HOST: &str = "test-host";
    pub(crate) const OFFSET: u64 = 1_700_000_000_000_000_000;

    pub(crate) fn new() -> Self {
        FakeContext { offset: Self::OFFSET, ..FakeContext::default() }
    }

    /// Makes a thread known under a name, in a namespace where its ids are 1,000 less.
    pub(crate) fn know(mut self, pid: u32, tid: u32, name: &str) -> Self {
        let thread = Thread {
            pid,
            tid,
            ns_pid: pid - 1_000,
            ns_tid: tid - 1_000,
            name: name.into(),
            process: "service".into(),
        };
        self.threads.insert(tid, thread);
        self
    }
}

impl Context for FakeContext {
    fn host(&self) -> &str {
        Self::HOST
    }

    fn unix_ns(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns.saturating_add(self.offset)
    }

    fn thread(&mut self, pid: u32, tid: u32, comm: &str) -> Thread {
        self.threads.get(&tid).cloned().unwrap_or_else(|| Thread {
            pid,
            tid,
            ns_pid: pid,
            ns_tid: tid,
            name: comm.into(),
            process: comm.into(),
        })
    }

    fn is_soon_named(&self, tid: u32) -> bool {
        self.unnamed.contains(&tid)
    }

    fn stack(&mut self, stack: RawStack) -> u64 {
        if stack == (RawStack { pid: stack.pid, ends: stack.ends, ..RawStack::default() }) {
            return 0;
        }
        *self.stack_ids.entry(stack).or_insert_with_key(|stack| {
            self.stacks.push(stack.clone());
            self.stacks.len() as u64
        })
    }

    fn count_lost(&mut self, tracker: &'static str, reason: &'static str, count: u64) {
        *self.lost.entry((tracker, reason)).or_default() += count;
    }
}
