//! What comes out of a rule.

use serde::Serialize;
use underspan_model::State;

use crate::{Place, words};

/// Time that nobody asked for (queues, collections, locks, CPU shortage) is a finding from here on.
/// Below ten milliseconds a client notices nothing, and below a twentieth removing it changes nothing.
pub const INTERFERENCE: Threshold = Threshold { ns: 10_000_000, fraction: 0.05 };

/// Work the handler asked for (computing, peers, storage, sleeping) is normal until it is much.
pub const WORK: Threshold = Threshold { ns: 50_000_000, fraction: 0.20 };

/// A culprit is named as the cause only if rows show it for at least this share of the time.
pub const PROOF: f64 = 0.80;

/// Both must be reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// Nanoseconds.
    pub ns: u64,
    /// Share of the request, from 0 to 1.
    pub fraction: f64,
}

impl Threshold {
    /// Whether `ns` out of a request of `whole` nanoseconds is worth a finding.
    pub fn reached(self, ns: u64, whole: u64) -> bool {
        ns >= self.ns && ns as f64 >= self.fraction * whole as f64
    }
}

/// What kind of cause it is. Kinds that a ledger state measures have the state's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The connection was ready and nobody accepted it.
    AcceptQueue,
    /// It was accepted and no thread read it.
    Handoff,
    /// The event loop came late to it.
    LoopLag,
    /// Another thread of the process collected garbage.
    GcWait,
    /// The thread itself collected garbage.
    GcRun,
    /// Another thread held the GIL.
    GilWait,
    /// Another lock.
    LockWait,
    /// Ready, and no CPU.
    Runnable,
    /// Ready, and the cgroup's CPU quota was used up.
    Throttled,
    /// The handler itself computed.
    Running,
    /// A peer was slow to send.
    NetRead,
    /// A peer was slow to receive.
    NetWrite,
    /// A peer was slow to accept a connection.
    NetConnect,
    /// Segments had to be sent again.
    Retransmission,
    /// The other end of a connection did not read.
    ZeroWindow,
    /// A peer's accept queue was full, so that it dropped attempts to connect.
    AcceptQueueFull,
    /// Connections were opened where there had been some a moment before.
    Unpooled,
    /// It waited for events on file descriptors.
    PollWait,
    /// Storage.
    DiskIo,
    /// Pages had to be brought in.
    PageFault,
    /// It slept because it asked to.
    Sleep,
    /// A pipe or other IPC.
    PipeIpc,
    /// A child process.
    ChildWait,
    /// Blocked, and nothing says on what.
    Other,
}

/// What the evidence says about the culprit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// Rows show the culprit for at least [`PROOF`] of the time, or the thread did it itself.
    Caused,
    /// The culprit was active meanwhile, and that is all the rows show.
    Coincided,
    /// The time is certain, the culprit is not known.
    Unknown,
}

/// One cause of a request's time. The findings of a request never share a nanosecond.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// What it is.
    pub kind: Kind,
    /// How sure the culprit is.
    pub relation: Relation,
    /// Nanoseconds of the request.
    pub ns: u64,
    /// `ns` as a share of the request, from 0 to 1.
    pub fraction: f64,
    /// How much of `ns` is known to lie where no child span is.
    pub hidden_ns: u64,
    /// How much of `ns` is known to lie inside child spans. Where the two do not sum to `ns`, rows
    /// do not tell when the rest was (waits below the threshold, time on the CPU).
    pub in_spans_ns: u64,
    /// Which parts of the request `ns` is made of: phases and ledger states.
    pub parts: Vec<Part>,
    /// A pattern that it is a case of, or empty: `queue_full` (the accept queue was), `convoy` (many threads want one lock, and get it in
    /// turns), `pool_exhausted` (every worker waits for the same thing), `blocking_call` (an event
    /// loop was held up by one).
    pub pattern: &'static str,
    /// Where the request's own thread was meanwhile, for most of what was sampled.
    pub place: Option<Place>,
    /// Who.
    pub culprit: Option<Culprit>,
    /// The rows that show it, most important first, at most [`Finding::MAX_ROWS`].
    pub evidence: Vec<RowRef>,
    /// How many rows show it.
    pub evidence_rows: usize,
    /// What happened, in words.
    pub text: String,
    /// What would help, in words.
    pub advice: String,
}

impl Finding {
    /// How many rows a finding cites at most.
    pub const MAX_ROWS: usize = 8;
}

impl Kind {
    /// Whether it is work the handler asked for, as opposed to something that got in its way.
    pub const fn is_work(self) -> bool {
        use Kind::*;
        matches!(
            self,
            Running
                | NetRead
                | NetWrite
                | NetConnect
                | PollWait
                | DiskIo
                | Sleep
                | PipeIpc
                | ChildWait
        )
    }

    /// Its name in JSON.
    pub const fn name(self) -> &'static str {
        use Kind::*;
        match self {
            AcceptQueue => "accept_queue",
            Handoff => "handoff",
            LoopLag => "loop_lag",
            GcWait => State::GcWait.name(),
            GcRun => State::GcRun.name(),
            GilWait => State::GilWait.name(),
            LockWait => State::LockWait.name(),
            Runnable => State::Runnable.name(),
            Throttled => State::Throttled.name(),
            Running => State::Running.name(),
            NetRead => State::NetRead.name(),
            NetWrite => State::NetWrite.name(),
            NetConnect => State::NetConnect.name(),
            Retransmission => "retransmission",
            ZeroWindow => "zero_window",
            AcceptQueueFull => "accept_queue_full",
            Unpooled => "unpooled",
            PollWait => State::PollWait.name(),
            DiskIo => State::DiskIo.name(),
            PageFault => State::PageFault.name(),
            Sleep => State::Sleep.name(),
            PipeIpc => State::PipeIpc.name(),
            ChildWait => State::ChildWait.name(),
            Other => State::Other.name(),
        }
    }

    /// From when on it is a finding.
    pub const fn threshold(self) -> Threshold {
        if self.is_work() { WORK } else { INTERFERENCE }
    }
}

/// A named part of a request's time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// `accept_queue`, `handoff`, a ledger state, `handler` (an event loop's, not split), or
    /// `unaccounted`.
    pub part: &'static str,
    /// Nanoseconds.
    pub ns: u64,
    /// Share of the request, from 0 to 1.
    pub fraction: f64,
}

/// Who is to blame. Fields that do not apply are empty or 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Culprit {
    /// The host.
    pub host: String,
    /// The process, as the host sees it.
    pub pid: u32,
    /// The thread, as the host sees it; 0 when it is more than one.
    pub tid: u32,
    /// The thread's name, or words for several.
    pub thread: String,
    /// The name of its process, if that is another than the request's.
    pub process: String,
    /// The request that thread was serving.
    pub request_id: String,
    /// That request's method and path.
    pub route: String,
    /// In which code that thread was meanwhile, for most of what was sampled.
    pub place: Option<Place>,
    /// The peer, `address:port`.
    pub peer: String,
    /// The cgroup.
    pub cgroup: String,
    /// For how many of the finding's nanoseconds rows show it.
    pub ns: u64,
    /// The generation collected, or -1.
    pub generation: i8,
    /// The objects collected, or -1.
    pub collected: i64,
}

impl Culprit {
    /// A culprit of which nothing is known yet.
    pub(crate) fn new(ns: u64) -> Self {
        Culprit { ns, generation: -1, collected: -1, ..Culprit::default() }
    }

    /// `thread worker-1 (4711)`, `thread tar of backup (pid 4711)`, or the words for several.
    pub fn named(&self) -> String {
        match self.tid {
            0 => self.thread.clone(),
            tid => words::thread(&self.thread, tid, self.pid, &self.process),
        }
    }
}

/// Points at a row of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RowRef {
    /// The table.
    pub table: &'static str,
    /// The row's host.
    pub host: String,
    /// The row's process.
    pub pid: u32,
    /// The row's thread.
    pub tid: u32,
    /// When the row begins: with the three above, its key.
    pub start_time: u64,
    /// How long it lasted.
    pub duration_ns: u64,
    /// For a row of `requests`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub request_id: String,
}
