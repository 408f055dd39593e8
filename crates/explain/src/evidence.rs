//! What goes in.

use serde::{Deserialize, Serialize};
use underspan_model::{
    GcPause, GilWait, HostCounter, LoopStall, LostEvents, PacketAges, PathStep, Request, Sample,
    Span, TcpAccept, TcpConnect, TcpListener, TcpLoss, ThreadStates, Wait,
};

/// Everything known about one request. Rows may come in any order, and too many do no harm: what
/// does not concern the request is ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Evidence {
    /// The request. Without it only the spans can be told.
    pub request: Option<Request>,
    /// The spans of its trace, or those stamped with its thread.
    pub spans: Vec<Span>,
    /// Waits that overlap it: of the thread that read it, of the thread that accepted its
    /// connection, of other threads on the same futexes, and of the threads that served requests
    /// while it waited for one of them.
    pub waits: Vec<Wait>,
    /// Stacks taken meanwhile, of its own thread and of threads that may be to blame.
    pub samples: Vec<Sample>,
    /// Of a request that has no answer yet: waits of its process that went on at its end, from their beginning
    /// to that end.
    pub ongoing: Vec<Sample>,
    /// Iterations that took too long, of the event loop that served it.
    pub stalls: Vec<LoopStall>,
    /// Its critical path, in order.
    pub path: Vec<PathStep>,
    /// Collections in its process that overlap it.
    pub gc_pauses: Vec<GcPause>,
    /// GIL waits that overlap it, of the thread that read it and of the one that accepted it.
    pub gil_waits: Vec<GilWait>,
    /// Other requests of its process that overlap it or came in the seconds before: they tell which
    /// threads serve requests, what these were doing meanwhile, and how many requests arrived.
    pub siblings: Vec<Request>,
    /// What the threads of its process did, second by second.
    pub thread_states: Vec<ThreadStates>,
    /// Its process, if it is known.
    pub process: Option<Process>,
    /// Stalls on the connections that its thread waited on, as seen from either end.
    pub losses: Vec<TcpLoss>,
    /// Connections that its thread opened.
    pub connects: Vec<TcpConnect>,
    /// How the request's own connection was accepted, and those that it opened, if their other end is
    /// watched.
    pub accepts: Vec<TcpAccept>,
    /// Listening sockets at its own address and at its peers'.
    pub listeners: Vec<TcpListener>,
    /// What its peers, if they are watched, served on the connections that its thread waited on.
    pub peers: Vec<Request>,
    /// Requests of other processes of its host within it: of the same trace, or with the same method and path and
    /// ended shortly before it.
    pub upstreams: Vec<Request>,
    /// What threads of other processes served that ended its thread's waits for events.
    pub wakers: Vec<Request>,
    /// Waits of threads at the other end that did not read in time.
    pub reader_waits: Vec<Wait>,
    /// What was counted on its host.
    pub counters: Vec<HostCounter>,
    /// How old packets were in its host's receive stack.
    pub packets: Vec<PacketAges>,
    /// Events that could not be recorded while it ran.
    pub lost: Vec<LostEvents>,
}

/// A watched process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    /// Its name.
    pub process: String,
    /// When it was started, in nanoseconds since the Unix epoch, to a hundredth of a second; 0 if not known.
    pub started: u64,
    /// Its command line.
    pub cmdline: String,
    /// Its cgroup.
    pub cgroup: String,
    /// The version of the Python it runs, or empty.
    pub python: String,
    /// How its collections are seen: `usdt`, `symbol`, `watchpoint`, or why they are not.
    pub gc_rung: String,
}
