//! Where do the goroutines of a Go service stand, and what do they wait for?
//!
//! The only tracker without BPF: goroutines that wait are on no thread, so the kernel knows nothing of
//! them. Whoever runs the trackers samples them from outside and hands the rounds to
//! [`Decoder::goroutines`](crate::Decoder::goroutines).

mod decode;

use std::sync::Arc;

use underspan_model::StackEnd;

use crate::rows::columns;
use crate::{Decoder, Hook, Tracker};

/// The tracker.
pub struct GoroutineTracker;

/// How often a process's goroutines are looked at by default, a second.
pub const HZ: u32 = 10;

/// One look at a process's goroutines.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// The process.
    pub pid: u32,
    /// Monotonic time of the look before, and of this one: what the round stands for.
    pub since: u64,
    /// See `since`.
    pub at: u64,
    /// What was seen.
    pub samples: Vec<Sample>,
    /// Goroutines that changed while they were read.
    pub torn: u64,
}

/// A goroutine in one look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Its id.
    pub goid: u64,
    /// `runnable`, `running`, `syscall`, `waiting` or `preempted`.
    pub status: &'static str,
    /// What it waits for, in the runtime's words.
    pub wait_reason: Arc<str>,
    /// For how long it has been like this, in nanoseconds.
    pub wait_ns: u64,
    /// Nanoseconds of goroutine time that it stands for.
    pub weight_ns: u64,
    /// The thread it is on, or 0.
    pub tid: u32,
    /// Code addresses, innermost first. Equal stacks may share an allocation: they are compared faster.
    pub stack: Arc<[u64]>,
    /// Why the stack ends.
    pub end: StackEnd,
    /// The function it was started with.
    pub function: Arc<str>,
}

impl Tracker for GoroutineTracker {
    fn name(&self) -> &'static str {
        "goroutine"
    }

    fn question(&self) -> &'static str {
        "Where do the goroutines of a Go service stand, and what do they wait for?"
    }

    fn hooks(&self) -> &'static [Hook] {
        &[]
    }

    fn sql(&self) -> &'static str {
        include_str!("table.sql")
    }

    fn tables(&self) -> Vec<(&'static str, Vec<String>)> {
        vec![("goroutine", columns(&["goid", "status", "wait_reason", "wait_ns", "stack_id"]))]
    }

    fn readme(&self) -> &'static str {
        include_str!("README.md")
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(decode::GoroutineDecoder::new(self.tables().remove(0).1))
    }
}

#[cfg(test)]
mod tests;
