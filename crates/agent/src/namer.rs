//! Names and clocks for the trackers' decoders.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use underspan_cpython::pthread_tid;
use underspan_trackers::{Context, Thread, ThreadSnapshot};

use crate::names::Names;
use crate::{Clock, Step};

/// What decoders ask of the agent.
pub(crate) struct Namer {
    host: String,
    clock: Clock,
    names: Names,
    pthreads: HashMap<(u32, u64), u32>,
    lost: BTreeMap<(&'static str, &'static str), u64>,
}

impl Namer {
    pub(crate) fn new(host: String) -> crate::Result<Self> {
        Ok(Namer {
            host,
            clock: Clock::new()?,
            names: Names::new(),
            pthreads: HashMap::new(),
            lost: BTreeMap::new(),
        })
    }

    /// Reads the clocks again. A step of the wall clock is reported, once.
    pub(crate) fn refresh_clock(&mut self) -> crate::Result<Option<Step>> {
        self.clock.refresh()
    }

    /// Learns which thread has which `pthread_self()`.
    pub(crate) fn learn(&mut self, threads: &[ThreadSnapshot]) {
        self.pthreads.clear();
        self.pthreads.extend(threads.iter().map(|t| ((t.pid, t.pthread), t.tid)));
        // Asked for while they live: most are looked up only when they are in somebody's way.
        for thread in threads {
            self.names.resolve(thread.pid, thread.tid, &thread.comm);
        }
    }

    /// A thread has ended.
    pub(crate) fn ended(&mut self, tid: u32) {
        self.names.ended(tid);
    }

    /// What decoders gave up since the last call.
    pub(crate) fn take_lost(&mut self) -> BTreeMap<(&'static str, &'static str), u64> {
        std::mem::take(&mut self.lost)
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
            name: Arc::from(name.thread.as_str()),
            process: Arc::from(name.process.as_str()),
        }
    }

    fn by_pthread(&mut self, pid: u32, pthread: u64) -> Option<Thread> {
        let tid = match self.pthreads.get(&(pid, pthread)) {
            Some(tid) => *tid,
            // Younger than the last look at all threads: ask the process.
            None => {
                let tid = pthread_tid(i32::try_from(pid).ok()?, pthread)?;
                self.pthreads.insert((pid, pthread), tid);
                tid
            }
        };
        Some(self.thread(pid, tid, ""))
    }

    fn count_lost(&mut self, tracker: &'static str, reason: &'static str, count: u64) {
        *self.lost.entry((tracker, reason)).or_default() += count;
    }
}
