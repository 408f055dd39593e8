//! What decoders need from whoever runs them: names and clocks.

use std::sync::Arc;

use crate::stack::RawStack;

/// A thread, as rows name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Process, as the host sees it.
    pub pid: u32,
    /// Thread, as the host sees it.
    pub tid: u32,
    /// Process, as it sees itself.
    pub ns_pid: u32,
    /// Thread, as its process sees it.
    pub ns_tid: u32,
    /// The thread's name: Python's, where it has one.
    pub name: Arc<str>,
    /// The process's name.
    pub process: Arc<str>,
}

/// Names and clocks.
pub trait Context {
    /// This host's name.
    fn host(&self) -> &str;

    /// Nanoseconds since the Unix epoch for a monotonic time.
    fn unix_ns(&self, monotonic_ns: u64) -> u64;

    /// The thread with this id. `comm` is the name that the event carried, if any: it names a
    /// thread that is gone and was never seen alive.
    fn thread(&mut self, pid: u32, tid: u32, comm: &str) -> Thread;

    /// The id under which this stack will be found in `stacks`. Returns at once; names are looked up
    /// later. The same stack of the same process has the same id. 0: there is nothing in it.
    fn stack(&mut self, stack: RawStack) -> u64;

    /// Counts events that a decoder had to give up.
    fn count_lost(&mut self, tracker: &'static str, reason: &'static str, count: u64);
}
