//! What viewers with a time axis show.

use std::sync::Arc;

use underspan_model::State;

use crate::sample::{Sample, Thread};

/// Samples, waits and requests, each with its time.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// What it is of.
    pub title: String,
    /// Single samples, by time. Sums of samples have no time.
    pub samples: Vec<Sample>,
    /// Waits, by time.
    pub waits: Vec<WaitSpan>,
    /// Requests, by time.
    pub requests: Vec<RequestSpan>,
}

/// A thread in one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitSpan {
    /// The thread.
    pub thread: Arc<Thread>,
    /// When it began, in nanoseconds since the Unix epoch.
    pub start_time: u64,
    /// How long it took.
    pub duration_ns: u64,
    /// What the thread waited for.
    pub state: State,
    /// The thread that ended the wait, or empty.
    pub waker: String,
    /// The thread that held what was waited for, or empty.
    pub holder: String,
    /// The peer of the socket, or empty.
    pub peer: String,
}

/// A request on the thread that served it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestSpan {
    /// The thread.
    pub thread: Arc<Thread>,
    /// When the thread began to read it, in nanoseconds since the Unix epoch.
    pub start_time: u64,
    /// Until the last byte of its answer.
    pub duration_ns: u64,
    /// Method and path, or the peer.
    pub name: String,
    /// Its id.
    pub request_id: String,
    /// Its trace, or empty.
    pub trace_id: String,
    /// HTTP status, or 0.
    pub status: u16,
}

impl Timeline {
    /// When the first of it began; 0 if there is nothing.
    pub fn begin(&self) -> u64 {
        let samples = self.samples.iter().map(|sample| sample.start_time);
        let waits = self.waits.iter().map(|wait| wait.start_time);
        let requests = self.requests.iter().map(|request| request.start_time);
        samples.chain(waits).chain(requests).min().unwrap_or(0)
    }

    /// When the last of it ended; 0 if there is nothing.
    pub fn end(&self) -> u64 {
        let samples = self.samples.iter().map(|s| s.start_time.saturating_add(s.duration_ns));
        let waits = self.waits.iter().map(|w| w.start_time.saturating_add(w.duration_ns));
        let requests = self.requests.iter().map(|r| r.start_time.saturating_add(r.duration_ns));
        samples.chain(waits).chain(requests).max().unwrap_or(0)
    }

    /// Its threads, by process and id.
    pub fn threads(&self) -> Vec<Arc<Thread>> {
        let samples = self.samples.iter().map(|sample| &sample.thread);
        let waits = self.waits.iter().map(|wait| &wait.thread);
        let requests = self.requests.iter().map(|request| &request.thread);
        let mut threads: Vec<_> = samples.chain(waits).chain(requests).cloned().collect();
        threads.sort_by(|a, b| (a.pid, a.tid, a).cmp(&(b.pid, b.tid, b)));
        threads.dedup();
        threads
    }
}
