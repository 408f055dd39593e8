//! Names and clocks for the trackers' decoders.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use underspan_trackers::stack::RawStack;
use underspan_trackers::{Context, Lifecycle, LifecycleKind, Measure, Thread, ThreadSnapshot};

use crate::names::Names;
use crate::stacks::Stacks;
use crate::{Clock, Metrics, Step};

/// What decoders ask of the agent.
pub(crate) struct Namer {
    host: String,
    clock: Clock,
    names: Names,
    stacks: Stacks,
    lost: BTreeMap<(&'static str, &'static str), u64>,
    metrics: Option<Metrics>,
}

impl Namer {
    pub(crate) fn new(host: String, metrics: Option<Metrics>) -> crate::Result<Self> {
        Ok(Namer {
            host,
            clock: Clock::new()?,
            names: Names::new(),
            stacks: Stacks::new(),
            lost: BTreeMap::new(),
            metrics,
        })
    }

    /// Reads the clocks again. A step of the wall clock is reported, once.
    pub(crate) fn refresh_clock(&mut self) -> crate::Result<Option<Step>> {
        self.clock.refresh()
    }

    /// Learns the names of all watched threads while they live: most are looked up only when they
    /// are in somebody's way.
    pub(crate) fn learn(&mut self, threads: &[ThreadSnapshot]) {
        for thread in threads {
            self.names.resolve(thread.pid, thread.tid, &thread.comm);
        }
    }

    /// A process or thread came, changed or went. To be told in turn with the other records: a thread may
    /// be gone by the time that they are read.
    pub(crate) fn happened(&mut self, event: &Lifecycle) {
        let Lifecycle { kind, pid, tid, comm, .. } = event;
        match kind {
            LifecycleKind::ThreadStart => self.names.started(*pid, *tid, comm),
            LifecycleKind::ThreadExit => self.names.ended(*tid),
            LifecycleKind::ProcessFork => {
                self.names.resolve(*pid, *tid, comm);
            }
            LifecycleKind::ProcessExec => self.names.began_program(*pid, comm),
            LifecycleKind::ProcessExit | LifecycleKind::Listen => {}
        }
    }

    /// This process's interpreter is up.
    pub(crate) fn runs_python(&mut self, pid: u32) {
        self.names.runs_python(pid);
    }

    /// Reads names that are due. Returns when to call this next.
    pub(crate) fn read_due(&mut self) -> Option<Instant> {
        self.names.read_due()
    }

    /// The stacks that decoders asked to be named.
    pub(crate) fn stacks(&mut self) -> &mut Stacks {
        &mut self.stacks
    }

    /// What decoders gave up since the last call, and stacks that will have no names.
    pub(crate) fn take_lost(&mut self) -> BTreeMap<(&'static str, &'static str), u64> {
        let mut lost = std::mem::take(&mut self.lost);
        lost.insert(("stack", "not_named"), self.stacks.take_lost());
        lost
    }
}

impl Context for Namer {
    fn host(&self) -> &str {
        &self.host
    }

    fn unix_ns(&self, monotonic_ns: u64) -> u64 {
        self.clock.to_unix(monotonic_ns)
    }

    fn thread(&mut self, pid: u32, tid: u32, comm: &str) -> Thread {
        let name = self.names.resolve(pid, tid, comm);
        let or = |known: u32, else_: u32| if known == 0 { else_ } else { known };
        Thread {
            pid: or(pid, name.pid),
            tid,
            ns_pid: or(name.ns_pid, pid),
            ns_tid: or(name.ns_tid, tid),
            name: Arc::clone(&name.thread),
            process: Arc::clone(&name.process),
        }
    }

    fn is_soon_named(&self, tid: u32) -> bool {
        self.names.is_soon_named(tid)
    }

    fn stack(&mut self, stack: RawStack) -> u64 {
        // The row's time says only how long it is kept.
        let now = crate::monotonic_ns().unwrap_or(0);
        self.stacks.id(stack, self.clock.to_unix(now))
    }

    fn count_lost(&mut self, tracker: &'static str, reason: &'static str, count: u64) {
        *self.lost.entry((tracker, reason)).or_default() += count;
    }

    fn measure(&mut self, what: &Measure<'_>) {
        if let Some(metrics) = &self.metrics {
            metrics.measure(what);
        }
    }
}
