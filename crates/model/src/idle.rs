//! Idle is not blocked: which waits are merely waits for something to do.
//!
//! Decided when stacks are looked at, never when they are recorded, so that better patterns also apply
//! to what was recorded before. Flame graphs and explain ask here; `top`, which has the ledger's states, asks about
//! waits for a lock that go on.
//!
//! - A worker that waits in its own pool's queue is idle, whatever the rest of its process does.
//! - Outside any request a wait for events, time, or work is idle: an event loop's, a heartbeat's.
//! - A wait for a lock that someone holds, for an answer, for storage or for the GIL never is; nor is
//!   any wait of application code within a request.

use crate::{Frame, FrameKind, State};

mod go;
mod native;
mod python;

pub use go::idle_goroutine;
pub(crate) use native::is_way_to_wait;

/// A wait for something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Idle {
    /// Why it is taken for one, in words for people.
    pub reason: &'static str,
}

impl Idle {
    /// Whether it is a thread of Go's scheduler that waits: what its goroutines wait for is another question.
    #[must_use]
    pub fn is_go_scheduler(self) -> bool {
        self.reason == native::GO
    }
}

/// Whether a thread that was in `state` at `frames` (the outermost first; empty if nobody knows) was
/// idle, and why. `in_request`: it served one. Pass true as well for a program that serves no requests
/// at all: whatever it waits for is its work.
pub fn idle(frames: &[Frame], state: State, in_request: bool) -> Option<Idle> {
    let waits_for_others = match state {
        State::LockWait
        | State::PollWait
        | State::Sleep
        | State::PipeIpc
        | State::ChildWait
        | State::NetRead => true,
        State::NetWrite | State::NetConnect | State::Other => false,
        State::GilWait | State::GcWait | State::DiskIo | State::PageFault => false,
        State::Running | State::GcRun | State::Runnable | State::Throttled => false,
    };
    if !waits_for_others {
        return None;
    }
    let reason = python::own_queue(frames)
        .or_else(|| native::own_queue(frames))
        .or_else(|| if in_request { None } else { outside_requests(frames, state) })?;
    Some(Idle { reason })
}

fn outside_requests(frames: &[Frame], state: State) -> Option<&'static str> {
    match state {
        State::Sleep => Some("sleeps, outside any request"),
        State::PollWait => Some("waits for events, outside any request"),
        State::ChildWait => Some("waits for a child process, outside any request"),
        State::PipeIpc => Some("waits for another process, outside any request"),
        State::LockWait if frames.is_empty() => Some("waits, outside any request"),
        State::LockWait => python::waits_for_work(frames),
        State::NetRead => python::waits_for_request(frames),
        _ => None,
    }
}

/// The Python frames, the innermost first.
fn python_frames(frames: &[Frame]) -> impl Iterator<Item = &Frame> {
    frames.iter().rev().filter(|frame| frame.kind == FrameKind::Python)
}

#[cfg(test)]
mod tests;
