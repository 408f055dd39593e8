//! What a busy machine does to the threads on it, by the kernel's own accounts: by so much may they be late.

use crate::watcher::monotonic;
use crate::workload::Workload;

/// What interrupts and a hypervisor have taken from all CPUs: the kernel may leave it out of the
/// accounts of the threads that were on them, to which it is time on a CPU as any other.
pub(crate) fn taken() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").expect("it is mounted");
    let all = text.lines().next().expect("all CPUs come first");
    // The line's sixth to eighth times; in ticks, of which a second has a hundred everywhere.
    let ticks = all.split_whitespace().skip(6).take(3).map(|ticks| ticks.parse::<u64>());
    ticks.sum::<Result<u64, _>>().expect("they are numbers") * 10_000_000
}

/// For how long the kernel has let this thread wait for a CPU.
fn own_runnable() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("it has schedstat");
    let waited = text.split_whitespace().nth(1).and_then(|waited| waited.parse().ok());
    waited.expect("three numbers")
}

/// A moment from which this thread looks at the clock.
pub(crate) struct Since {
    start: u64,
    runnable: u64,
    taken: u64,
}

/// How long something took, as this thread saw it. It may not have been there when it was over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Took {
    pub(crate) ns: u64,
    /// For how long it waited for a CPU, and what was taken from the CPUs.
    pub(crate) late: u64,
}

impl Since {
    pub(crate) fn now() -> Self {
        Since { taken: taken(), runnable: own_runnable(), start: monotonic() }
    }

    pub(crate) fn took(&self) -> Took {
        let ns = monotonic() - self.start;
        Took { ns, late: own_runnable() - self.runnable + taken() - self.taken }
    }
}

/// The same of a workload's threads: by so much may what they do be late.
pub(crate) struct SinceOf {
    runnable: u64,
    taken: u64,
}

impl SinceOf {
    pub(crate) fn now(workload: &Workload) -> Self {
        SinceOf { runnable: runnable(workload), taken: taken() }
    }

    pub(crate) fn late(&self, workload: &Workload) -> u64 {
        runnable(workload) - self.runnable + taken() - self.taken
    }
}

/// For how long its threads have waited for a CPU. They live as long as it does.
fn runnable(workload: &Workload) -> u64 {
    workload.tids().into_iter().map(|tid| workload.schedstat(tid)[1]).sum()
}
