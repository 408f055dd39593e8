//! Stacks on their way to names: each gets its id at once; its names are looked up by a thread of low
//! priority and come back as a row of `stacks`.
//!
//! ```text
//!  decoder ─ id() ─▶ bounded queue ─▶ thread "symbols" ─▶ named() ─▶ row of `stacks`
//! ```

use std::collections::HashMap;
use std::time::{Duration, Instant};

use underspan_model::{Stack, StackEnd};
use underspan_symbols::{Incarnation, Kallsyms};
use underspan_trackers::stack::{Ends, RawStack};

mod haste;
mod id;
mod known;
mod worker;

use id::Ids;
use known::Known;
use worker::{Job, Worker};

/// How long an ended process is remembered: its last stacks may still be on their way.
const REMEMBER: Duration = Duration::from_secs(60);

/// A stack that got its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// As other tables refer to it.
    pub(crate) id: u64,
    /// When it was seen, Unix ns.
    pub(crate) at: u64,
    /// What is at its addresses.
    pub(crate) stack: Stack,
}

/// How many walks of kernel, native or Python frames ended how.
pub(crate) type EndCounts = HashMap<(&'static str, StackEnd), u64>;

/// Gives stacks their ids, and has them named.
pub(crate) struct Stacks {
    ids: Ids,
    known: Known,
    processes: HashMap<u32, Process>,
    kernel: Option<Kallsyms>,
    worker: Option<Worker>,
    ends: EndCounts,
    lost: u64,
}

struct Process {
    incarnation: Incarnation,
    ended: Option<Instant>,
}

impl Stacks {
    /// Call it as root: the kernel's symbols are hidden from others. The thread starts with the first
    /// stack.
    pub(crate) fn new() -> Self {
        let kernel = Kallsyms::open();
        if let Err(error) = &kernel {
            tracing::warn!("kernel functions have no names: /proc/kallsyms: {error}");
        }
        Stacks {
            ids: Ids::default(),
            known: Known::default(),
            processes: HashMap::new(),
            kernel: kernel.ok(),
            worker: None,
            ends: EndCounts::new(),
            lost: 0,
        }
    }

    /// The id of a stack that was seen at `at` (Unix ns): the same for the same addresses of the same
    /// process while it runs the same program. 0: there is nothing in it.
    pub(crate) fn id(&mut self, stack: RawStack, at: u64) -> u64 {
        self.count(stack.ends);
        if stack.kernel.is_empty() && stack.native.is_empty() && stack.python.is_empty() {
            return 0;
        }
        let process = self.incarnation(stack.pid);
        let id = self.ids.of(process, &stack);
        if self.known.is_due(id) {
            // What cannot be queued now is asked for again when the stack is seen again.
            if self.worker().give(Job::Name { id, at, process, stack }) {
                self.known.asked(id);
            } else {
                self.lost += 1;
            }
        }
        id
    }

    /// A process is watched: what its addresses mean is read while it lives.
    pub(crate) fn watched(&mut self, pid: u32) {
        let process = self.incarnation(pid);
        self.worker().give(Job::Learn(process));
    }

    /// A watched process forked.
    pub(crate) fn forked(&mut self, parent: u32, child: u32) {
        let incarnation = Incarnation::of(child, 0);
        self.processes.insert(child, Process { incarnation, ended: None });
        let parent = self.incarnation(parent);
        self.tell(Job::Forked { parent, child: incarnation });
    }

    /// A process began another program: nothing is where it was.
    pub(crate) fn began_program(&mut self, pid: u32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            let before = process.incarnation;
            process.incarnation = Incarnation::of(pid, before.execs + 1);
            self.tell(Job::Ended(before));
        }
    }

    /// A process ended.
    pub(crate) fn ended(&mut self, pid: u32) {
        let now = Instant::now();
        if let Some(process) = self.processes.get_mut(&pid) {
            process.ended = Some(now);
            let before = process.incarnation;
            self.tell(Job::Ended(before));
        }
        let young = |ended: Instant| now.duration_since(ended) < REMEMBER;
        self.processes.retain(|_, process| process.ended.is_none_or(young));
    }

    /// Stacks that have their names now.
    pub(crate) fn named(&mut self) -> Vec<Named> {
        self.worker.as_ref().map(Worker::named).unwrap_or_default()
    }

    /// The last of them. What is not named `within` this time is lost, and counted.
    pub(crate) fn finish(&mut self, within: Duration) -> Vec<Named> {
        let Some(worker) = self.worker.take() else { return Vec::new() };
        let (named, left) = worker.finish(within);
        self.lost += left;
        named
    }

    /// Stacks that will have no row, since the last call.
    pub(crate) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    /// How walks ended, since the last call.
    pub(crate) fn take_ends(&mut self) -> EndCounts {
        std::mem::take(&mut self.ends)
    }

    fn incarnation(&mut self, pid: u32) -> Incarnation {
        let new = || Process { incarnation: Incarnation::of(pid, 0), ended: None };
        self.processes.entry(pid).or_insert_with(new).incarnation
    }

    fn worker(&mut self) -> &mut Worker {
        self.worker.get_or_insert_with(|| Worker::start(self.kernel.take()))
    }

    /// Of processes none of whose stacks was seen, nothing needs to be known.
    fn tell(&mut self, job: Job) {
        if let Some(worker) = &self.worker {
            worker.give(job);
        }
    }

    fn count(&mut self, ends: Ends) {
        for (part, end) in
            [("kernel", ends.kernel), ("native", ends.native), ("python", ends.python)]
        {
            if end != StackEnd::Absent {
                *self.ends.entry((part, end)).or_default() += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
