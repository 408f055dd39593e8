//! Stacks: kernel, native and Python frames in the order in which they called each other.

use serde::{Deserialize, Serialize};

/// Where a frame's code runs, or in which language it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FrameKind {
    /// A kernel function.
    Kernel,
    /// Machine code: C, C++, Rust, Go, or what a JIT compiler made.
    Native,
    /// A Python function.
    Python,
}

impl FrameKind {
    /// All of them, from the application's end to the machine's.
    pub const ALL: [FrameKind; 3] = [FrameKind::Python, FrameKind::Native, FrameKind::Kernel];

    /// As in the column `kinds`.
    pub const fn name(self) -> &'static str {
        match self {
            FrameKind::Kernel => "kernel",
            FrameKind::Native => "native",
            FrameKind::Python => "python",
        }
    }

    /// The kind with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// What it is.
    pub kind: FrameKind,
    /// Function: demangled, Python's qualified name, or `0x…` where there is no symbol.
    pub function: String,
    /// Source file, or empty.
    pub file: String,
    /// Line in it, or 0.
    pub line: u32,
    /// File name of the executable or library, `[kernel]`, a kernel module, `[vdso]`, `[jit]`; for
    /// Python empty.
    pub module: String,
}

/// A stack with names. The outermost caller is first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stack {
    /// Its frames, outermost first.
    pub frames: Vec<Frame>,
    /// Why outer frames are missing: names of [`StackEnd`], separated by `, `. Empty if complete.
    pub truncated: String,
}

/// Why the walk of a stack ended. One for each of its three parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StackEnd {
    /// At the outermost frame.
    #[default]
    Complete,
    /// There is nothing of this kind to walk.
    Absent,
    /// There are more frames than are recorded.
    TooDeep,
    /// An address in no mapping that is known (yet).
    NoMapping,
    /// A mapping without unwind tables, and the frame pointer leads nowhere.
    NoTable,
    /// A rule that only a DWARF expression can tell.
    NoRule,
    /// The stack's memory cannot be read: it is not there, or paged out.
    Unreadable,
    /// The thread has no Python thread state that could be found.
    NoThreadState,
    /// What was read cannot be: frames that go in circles or the wrong way.
    Inconsistent,
    /// The thread was told to tell its stack, and went on without.
    Missed,
}

impl StackEnd {
    /// All of them, in the order of `enum stack_end` in `stack.h`.
    pub const ALL: [StackEnd; 10] = [
        StackEnd::Complete,
        StackEnd::Absent,
        StackEnd::TooDeep,
        StackEnd::NoMapping,
        StackEnd::NoTable,
        StackEnd::NoRule,
        StackEnd::Unreadable,
        StackEnd::NoThreadState,
        StackEnd::Inconsistent,
        StackEnd::Missed,
    ];

    /// As in `stacks.truncated` and in `lost_events.reason`.
    pub const fn name(self) -> &'static str {
        match self {
            StackEnd::Complete => "complete",
            StackEnd::Absent => "absent",
            StackEnd::TooDeep => "too_deep",
            StackEnd::NoMapping => "no_mapping",
            StackEnd::NoTable => "no_table",
            StackEnd::NoRule => "no_rule",
            StackEnd::Unreadable => "unreadable",
            StackEnd::NoThreadState => "no_thread_state",
            StackEnd::Inconsistent => "inconsistent",
            StackEnd::Missed => "missed",
        }
    }

    /// What that means for a sample's stack, in words that go on from how many there were.
    pub const fn words(self) -> &'static str {
        match self {
            StackEnd::Complete => "whole",
            StackEnd::Absent => "with nothing of this kind to walk",
            StackEnd::TooDeep => "with more frames than are recorded",
            StackEnd::NoMapping => "through code whose unwind table was not read yet",
            StackEnd::NoTable => "through code without an unwind table",
            StackEnd::NoRule => "through a function of which no rule says where its caller is",
            StackEnd::Unreadable => "in memory that could not be read",
            StackEnd::NoThreadState => "without the Python frames: no thread state was found",
            StackEnd::Inconsistent => "in memory that can be no stack",
            StackEnd::Missed => "not taken: the thread had gone on",
        }
    }

    /// Whether outer frames may be missing.
    pub const fn is_truncated(self) -> bool {
        !matches!(self, StackEnd::Complete | StackEnd::Absent)
    }
}
