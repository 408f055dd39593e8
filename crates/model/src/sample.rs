//! Rows that say in which code a thread was.

use serde::{Deserialize, Serialize};

use crate::{Ledger, Stack, State};

/// A wait that goes on is told again after this long, in nanoseconds, so that nobody need look for it in
/// the rows of days. Who reads them looks back a little further: they have to be written first.
pub const ONGOING_AGAIN_NS: u64 = 300_000_000_000;

/// A wait whose stack was taken, or a moment on the CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// The watched host.
    pub host: String,
    /// The thread's process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Its name.
    pub thread: String,
    /// When the wait began; for a moment on the CPU, that moment.
    pub start_time: u64,
    /// How long it waited; for a moment on the CPU, the time the sample stands for.
    pub duration_ns: u64,
    /// What it did.
    pub state: State,
    /// Nanoseconds of this state that the sample stands for. Short waits are carried until they
    /// are worth a sample, so this may be more than the wait itself.
    pub weight_ns: u64,
    /// Where.
    pub stack: Stack,
    /// The process that ended the wait, or 0.
    pub waker_pid: u32,
    /// The thread that ended the wait, or 0.
    pub waker_tid: u32,
    /// Its name.
    pub waker_thread: String,
    /// Where that thread was just then: where it released the lock.
    pub waker_stack: Stack,
    /// The lock's address, or 0.
    pub lock_addr: u64,
    /// The peer of the socket, or empty.
    pub peer: String,
}

/// One iteration of an event loop that took too long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoopStall {
    /// The watched host.
    pub host: String,
    /// The loop's process.
    pub pid: u32,
    /// The loop's thread.
    pub tid: u32,
    /// Its name.
    pub thread: String,
    /// When the loop had events to serve.
    pub start_time: u64,
    /// Until it asked for events again.
    pub duration_ns: u64,
    /// How it asks: `epoll`, `poll` or `select`.
    pub kind: String,
    /// What it did meanwhile; sums to `duration_ns`.
    #[serde(flatten)]
    pub ledger: Ledger,
    /// Who held it up, or 0.
    pub culprit_tid: u32,
    /// That thread's name.
    pub culprit_thread: String,
    /// Where it was for most of the time.
    pub stack: Stack,
}

/// One step of a slow request's critical path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathStep {
    /// The process that is on the path.
    pub pid: u32,
    /// The thread that is on the path.
    pub tid: u32,
    /// Its name.
    pub thread: String,
    /// The name of its process; empty if that is the request's own, or not known.
    #[serde(default)]
    pub process: String,
    /// When the step begins.
    pub start_time: u64,
    /// How long it takes.
    pub duration_ns: u64,
    /// From 0, in order of time.
    pub step: u16,
    /// How many wakers away from the request's own thread.
    pub depth: u16,
    /// `run`, `runnable` or `wait`.
    pub kind: String,
    /// The state of the ledger.
    pub state: State,
}
