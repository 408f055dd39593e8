//! The rows of the store, as `explain`, the API and `--json` see them. Field names are column names.
//!
//! Times are nanoseconds: `start_time` since the Unix epoch, everything that ends in `_ns` a
//! duration. `pid` and `tid` are the host's; `ns_pid` and `ns_tid` are what the process itself sees.
//! A `0` pid, tid or address and an empty string mean "not known".

use serde::{Deserialize, Serialize};

use crate::{Ledger, StackEnd, State};

/// One request, from its first byte in the kernel to the last byte of its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// Unique: 16 hexadecimal digits.
    pub request_id: String,
    /// From the `traceparent` header, or empty.
    pub trace_id: String,
    /// The caller's span, from the `traceparent` header, or empty.
    pub parent_span_id: String,
    /// The watched host.
    pub host: String,
    /// The process that read the request.
    pub pid: u32,
    /// The thread that read the request.
    pub tid: u32,
    /// `pid` as the process sees it.
    pub ns_pid: u32,
    /// `tid` as the process sees it.
    pub ns_tid: u32,
    /// The reading thread's name.
    pub thread: String,
    /// The process's name.
    pub process: String,
    /// When its first byte was ready in the kernel (the edge `ready`).
    pub start_time: u64,
    /// `accept_queue_ns + handoff_ns + handler_ns`.
    pub duration_ns: u64,
    /// Ready, and the connection not yet accepted.
    pub accept_queue_ns: u64,
    /// Accepted and ready, and no thread has read it.
    pub handoff_ns: u64,
    /// From the first read to the last byte sent.
    pub handler_ns: u64,
    /// The raw time from `accept` to the first read; 0 on a kept-alive connection. It includes a
    /// client's silence, so it is no queue time.
    pub accept_to_read_ns: u64,
    /// Which request of its connection, from 0.
    pub conn_request: u32,
    /// HTTP method, or empty when the bytes were not HTTP/1.x.
    pub method: String,
    /// HTTP path without its query string.
    pub path: String,
    /// HTTP status of the answer, or 0.
    pub status: u16,
    /// The peer, `address:port`, or `unix`.
    pub peer: String,
    /// The server's own end, `address:port`, or the Unix socket's path.
    pub local: String,
    /// Bytes read.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// The thread that accepted the connection, or 0.
    pub accept_tid: u32,
    /// The thread that sent the last byte. Where it is not `tid`, another thread answered.
    pub sent_tid: u32,
    /// That thread's name.
    pub sent_thread: String,
    /// 1 when its thread served other requests meanwhile (an event loop): the ledger is the loop's.
    pub shared_thread: u8,
    /// How it ended: `sent`, `closed` (by the server, nothing sent), `peer_closed`, `reset`, `open`.
    pub end: String,
    /// The reading thread's time during the handler. Sums to `handler_ns`.
    #[serde(flatten)]
    pub ledger: Ledger,
}

/// One wait of at least the threshold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The watched host.
    pub host: String,
    /// The waiting thread's process.
    pub pid: u32,
    /// The waiting thread.
    pub tid: u32,
    /// `pid` as the process sees it.
    pub ns_pid: u32,
    /// `tid` as the process sees it.
    pub ns_tid: u32,
    /// The waiting thread's name.
    pub thread: String,
    /// When the wait began.
    pub start_time: u64,
    /// From leaving the CPU to coming back to it.
    pub duration_ns: u64,
    /// The part of it in which the thread was ready and had no CPU.
    pub runnable_ns: u64,
    /// What it waited for. `runnable` and `throttled` waits were never blocked.
    pub state: State,
    /// The process that ended the wait, 0 when an interrupt or timer did.
    pub waker_pid: u32,
    /// The thread that ended the wait.
    pub waker_tid: u32,
    /// Its name.
    pub waker_thread: String,
    /// The thread that held what was waited for: the GIL's holder; for a lock, the thread that
    /// released it; for a CPU, the thread that ran instead.
    pub holder_tid: u32,
    /// Its name.
    pub holder_thread: String,
    /// Its process. 0 in rows that are older than the column.
    #[serde(default)]
    pub holder_pid: u32,
    /// That process's name.
    #[serde(default)]
    pub holder_process: String,
    /// The futex, for lock and GIL waits.
    pub futex_addr: u64,
    /// The system call in progress, or -1.
    pub syscall: i32,
    /// The file descriptor it was about, or -1.
    pub fd: i32,
    /// The peer of that socket: `address:port`.
    pub peer: String,
    /// Its own end: `address:port`.
    #[serde(default)]
    pub local: String,
    /// How many sleeps it merges (a GIL wait is a loop of short ones).
    pub slices: u32,
}

/// One garbage collection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcPause {
    /// The watched host.
    pub host: String,
    /// The collecting thread's process.
    pub pid: u32,
    /// The collecting thread.
    pub tid: u32,
    /// `pid` as the process sees it.
    pub ns_pid: u32,
    /// `tid` as the process sees it.
    pub ns_tid: u32,
    /// Its name.
    pub thread: String,
    /// When it began.
    pub start_time: u64,
    /// How long it took.
    pub duration_ns: u64,
    /// The generation, or -1 where it cannot be had.
    pub generation: i8,
    /// Objects collected, or -1 where it cannot be had.
    pub collected: i64,
    /// The part of it that the thread was on a CPU.
    pub cpu_ns: u64,
    /// How it was seen: `usdt`, `symbol` or `watchpoint`.
    pub rung: String,
}

/// One wait for the GIL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GilWait {
    /// The watched host.
    pub host: String,
    /// The waiting thread's process.
    pub pid: u32,
    /// The waiting thread.
    pub tid: u32,
    /// `pid` as the process sees it.
    pub ns_pid: u32,
    /// `tid` as the process sees it.
    pub ns_tid: u32,
    /// Its name.
    pub thread: String,
    /// When it began.
    pub start_time: u64,
    /// How long it took.
    pub duration_ns: u64,
    /// The thread that held the GIL for most of it, 0 if not known.
    pub holder_tid: u32,
    /// Its name.
    pub holder_thread: String,
    /// How long that thread was seen to hold it.
    pub holder_ns: u64,
    /// The part of the wait in which a sibling collected garbage.
    pub gc_ns: u64,
    /// How many sleeps it merges.
    pub slices: u32,
}

/// What one thread did in about one second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadStates {
    /// The watched host.
    pub host: String,
    /// The thread's process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// `pid` as the process sees it.
    pub ns_pid: u32,
    /// `tid` as the process sees it.
    pub ns_tid: u32,
    /// Its name.
    pub thread: String,
    /// The process's name.
    pub process: String,
    /// When the row begins.
    pub start_time: u64,
    /// How long it covers.
    pub duration_ns: u64,
    /// Sums to `duration_ns`.
    #[serde(flatten)]
    pub ledger: Ledger,
}

/// Events that could not be recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostEvents {
    /// The watched host.
    pub host: String,
    /// When the counting began.
    pub start_time: u64,
    /// How long it covers.
    pub duration_ns: u64,
    /// Whose events: a tracker's name, or `agent`.
    pub tracker: String,
    /// Why.
    pub reason: String,
    /// How many.
    pub count: u64,
}

impl LostEvents {
    /// The `tracker` of losses on the way to stacks.
    pub const STACK: &str = "stack";

    /// Whether it counts stacks that are not whole, as [`StackEnd`] says why: something is known of
    /// each, and each says so itself.
    pub fn is_stack_end(&self) -> bool {
        self.stack_end().is_some()
    }

    /// Why the stacks that it counts are not whole. `None`: it counts no stacks.
    pub fn stack_end(&self) -> Option<StackEnd> {
        let of_stacks = [Self::STACK, "offcpu"].contains(&self.tracker.as_str());
        let end = StackEnd::ALL.into_iter().find(|end| end.name() == self.reason);
        end.filter(|_| of_stacks)
    }

    /// Whether no row is missing for it: a stack is not whole and says so, or the kernel did not tell
    /// that a thread came on a CPU, and the ledger has made up for it.
    pub fn leaves_no_gap(&self) -> bool {
        self.is_stack_end() || self.reason == "untold"
    }
}

/// A span as OpenTelemetry reported it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// 32 hexadecimal digits.
    pub trace_id: String,
    /// 16 hexadecimal digits.
    pub span_id: String,
    /// 16 hexadecimal digits; empty for a root.
    pub parent_span_id: String,
    /// Its name.
    pub name: String,
    /// `SPAN_KIND_SERVER` and so on become `server` and so on.
    pub kind: String,
    /// The service that reported it.
    pub service: String,
    /// When it began.
    pub start_time: u64,
    /// How long it took.
    pub duration_ns: u64,
    /// The process, if the span was stamped (`underspan.pid`), in the process's own namespace.
    pub pid: u32,
    /// The thread, if the span was stamped (`underspan.tid`), in the process's own namespace.
    pub tid: u32,
    /// `ok`, `error` or empty.
    pub status: String,
}
