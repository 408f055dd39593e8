//! What decoders need from whoever runs them: names and clocks.

use std::sync::Arc;

use underspan_model::Ledger;

use crate::stack::RawStack;
use crate::{netstack, throttle};

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

    /// Whether this thread has no name of its own yet, and will have one in a moment: it has just started.
    /// Who has no names to wait for leaves it alone.
    fn is_soon_named(&self, _tid: u32) -> bool {
        false
    }

    /// The id under which this stack will be found in `stacks`. Returns at once; names are looked up
    /// later. The same stack of the same process has the same id. 0: there is nothing in it.
    fn stack(&mut self, stack: RawStack) -> u64;

    /// Counts events that a decoder had to give up.
    fn count_lost(&mut self, tracker: &'static str, reason: &'static str, count: u64);

    /// Counts in metrics what a row has just been written of. Who keeps none leaves it alone.
    fn measure(&mut self, _what: &Measure<'_>) {}
}

/// What metrics count. Durations are nanoseconds.
#[derive(Clone, Copy, Debug)]
pub enum Measure<'a> {
    /// What a thread did, since it was last told.
    ThreadTime {
        /// Its process's name.
        process: &'a str,
        /// By state.
        ledger: &'a Ledger,
    },
    /// A request is over.
    Request {
        /// Its process's name.
        process: &'a str,
        /// HTTP status; 0: none.
        status: u16,
        /// From its first byte to its last.
        duration: u64,
        /// From its connection's acceptance, or its first byte, to its being read.
        handoff: u64,
    },
    /// A wait, or something else that lasted.
    Lasted {
        /// What.
        what: Timing,
        /// The process's name.
        process: &'a str,
        /// How long.
        duration: u64,
    },
    /// Packets passed a point of the receive stack since it was last told.
    Packets(&'a netstack::Histogram),
    /// The host's counters were read.
    Host(&'a throttle::Round),
}

/// What lasts, and has a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timing {
    /// A connection waited to be accepted.
    AcceptQueue,
    /// A connection was being opened.
    Connect,
    /// A connection stood still, or was reset, in this way: a `kind` of `tcp_loss`.
    Loss(&'static str),
    /// A thread waited for the GIL.
    GilWait,
    /// A collection of garbage.
    GcPause,
}
