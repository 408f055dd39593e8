//! Python's frames: where they are in this process, checked.

mod check;
mod layout;
mod walk;

use crate::check::Addresses;
use crate::layout::Layout;

pub(crate) use check::{LONGEST_TABLE, check};
pub use layout::{CodeLayout, EntryMark, FrameLayout, Instruction};
pub(crate) use layout::{FrameWords, V3_8, V3_10, V3_11, V3_12, published};
pub use walk::{RawFrame, RawFrames};

/// What it takes to walk the Python frames of this process's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameFacts {
    /// The way to a thread's state.
    pub threads: ThreadList,
    /// Offsets.
    pub layout: FrameLayout,
    /// Address of `PyCode_Type`, which every code object points to.
    pub code_type: u64,
}

/// The lists of interpreters and of their threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadList {
    /// Address of `_PyRuntime.interpreters.head`: the newest interpreter.
    pub interpreters: u64,
    /// Address of the main interpreter, the last of the list.
    pub main: u64,
    /// Of an interpreter: the next one, in bytes.
    pub interp_next: u32,
    /// Of an interpreter: its newest thread state, in bytes.
    pub interp_threads: u32,
    /// Of a thread state: the next one, in bytes.
    pub tstate_next: u16,
    /// Of a thread state: its thread's `pthread_self()`, in bytes.
    pub tstate_thread_id: u16,
}

impl ThreadList {
    /// `None`: an offset is larger than any can be.
    pub(crate) fn new(layout: &Layout, at: Addresses) -> Option<Self> {
        Some(ThreadList {
            interpreters: at.runtime.checked_add(layout.interpreters_head)?,
            main: at.main,
            interp_next: layout.interp_next.try_into().ok()?,
            interp_threads: layout.interp_threads.try_into().ok()?,
            tstate_next: layout.tstate_next.try_into().ok()?,
            tstate_thread_id: layout.tstate_thread_id.try_into().ok()?,
        })
    }
}
