//! Where threads stand while a request has no answer yet.

use serde::Serialize;
use underspan_model::{Sample, State, idle};

use crate::case::Case;
use crate::place::{Place, place};

/// Threads beside the request's own that are told.
const OTHERS: usize = 8;

/// A thread in a wait that is not over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Its name.
    pub thread: String,
    /// What it waits for.
    pub state: State,
    /// For how long already, in nanoseconds.
    pub ns: u64,
    /// In which code, if that is known.
    pub place: Option<Place>,
}

/// The request's own thread first, then the others, longest first.
pub(crate) fn standing(case: &Case<'_>) -> Vec<Standing> {
    let request = case.request;
    let here = |wait: &&Sample| wait.host == request.host && wait.pid == request.pid;
    // Time outside of requests may be what this one waits for: only pools' own queues are left out.
    let waits_for_work = |wait: &Sample| idle(&wait.stack.frames, wait.state, true).is_some();
    let mut waits: Vec<_> = case.evidence.ongoing.iter().filter(here).collect();
    waits.retain(|wait| wait.tid == request.tid || !waits_for_work(wait));
    waits.sort_by_key(|wait| (wait.tid != request.tid, wait.start_time, wait.tid));
    let told = waits.into_iter().take(OTHERS + 1).map(|wait| Standing {
        pid: wait.pid,
        tid: wait.tid,
        thread: wait.thread.clone(),
        state: wait.state,
        ns: wait.duration_ns,
        place: place(&wait.stack),
    });
    told.collect()
}
