//! The states a thread can be in. This file is the only place where they are listed.
//!
//! BPF learns them from a header that the `trackers` crate generates from [`State::ALL`]; tables get
//! one `<state>_ns` column each; labels, colours and metrics are read from here. The order is the
//! order of the cells in a ledger and therefore of the bytes that BPF writes: append, never reorder.

use serde::{Deserialize, Serialize};

/// What a thread was doing or waiting for.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum State {
    /// On a CPU, in its own code or the kernel's.
    Running,
    /// On a CPU, collecting garbage itself.
    GcRun,
    /// Ready to run, waiting for a CPU.
    Runnable,
    /// Ready to run, held back by its cgroup's CPU quota.
    Throttled,
    /// Waiting for the global interpreter lock.
    GilWait,
    /// Waiting for the global interpreter lock while a sibling thread collects garbage.
    GcWait,
    /// Waiting on a futex that is no interpreter lock, or on a file lock.
    LockWait,
    /// Blocked reading from a socket.
    NetRead,
    /// Blocked writing to a socket.
    NetWrite,
    /// Blocked connecting a socket.
    NetConnect,
    /// Waiting for events: epoll, poll, select, accept.
    PollWait,
    /// Blocked on a file or block device.
    DiskIo,
    /// Waiting for a page to be faulted in.
    PageFault,
    /// Asleep because it asked to be.
    Sleep,
    /// Blocked on a pipe, eventfd, terminal or System V/POSIX queue.
    PipeIpc,
    /// Waiting for a child process.
    ChildWait,
    /// Blocked, and none of the above.
    #[default]
    Other,
}

/// How many states there are: the length of a ledger.
pub const STATES: usize = State::ALL.len();

/// The families into which pictures group states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Using a CPU.
    Cpu,
    /// Wanting a CPU and not getting it.
    CpuWait,
    /// Held up by another thread of the same program.
    Contention,
    /// Held up by a peer.
    Network,
    /// Held up by storage.
    Storage,
    /// Waiting for something to do, or because it asked to.
    Idle,
    /// Not known.
    Unknown,
}

impl State {
    /// Every state, in ledger order.
    pub const ALL: [State; 17] = [
        State::Running,
        State::GcRun,
        State::Runnable,
        State::Throttled,
        State::GilWait,
        State::GcWait,
        State::LockWait,
        State::NetRead,
        State::NetWrite,
        State::NetConnect,
        State::PollWait,
        State::DiskIo,
        State::PageFault,
        State::Sleep,
        State::PipeIpc,
        State::ChildWait,
        State::Other,
    ];

    /// The state's name in tables (`<name>_ns`), JSON, metrics and, in capitals, in C.
    pub const fn name(self) -> &'static str {
        match self {
            State::Running => "running",
            State::GcRun => "gc_run",
            State::Runnable => "runnable",
            State::Throttled => "throttled",
            State::GilWait => "gil_wait",
            State::GcWait => "gc_wait",
            State::LockWait => "lock_wait",
            State::NetRead => "net_read",
            State::NetWrite => "net_write",
            State::NetConnect => "net_connect",
            State::PollWait => "poll_wait",
            State::DiskIo => "disk_io",
            State::PageFault => "page_fault",
            State::Sleep => "sleep",
            State::PipeIpc => "pipe_ipc",
            State::ChildWait => "child_wait",
            State::Other => "other",
        }
    }

    /// A few words for people.
    pub const fn label(self) -> &'static str {
        match self {
            State::Running => "on CPU",
            State::GcRun => "on CPU, collecting garbage",
            State::Runnable => "waiting for a CPU (run queue)",
            State::Throttled => "throttled by the cgroup's CPU quota",
            State::GilWait => "waiting for the GIL",
            State::GcWait => "waiting for a sibling thread's garbage collection",
            State::LockWait => "waiting for a lock",
            State::NetRead => "reading from a socket",
            State::NetWrite => "writing to a socket",
            State::NetConnect => "connecting a socket",
            State::PollWait => "waiting for events (epoll, poll, select, accept)",
            State::DiskIo => "waiting for storage",
            State::PageFault => "waiting for a page fault",
            State::Sleep => "asleep (asked to)",
            State::PipeIpc => "waiting on a pipe or other IPC",
            State::ChildWait => "waiting for a child process",
            State::Other => "blocked, cause unknown",
        }
    }

    /// The family the state belongs to.
    pub const fn class(self) -> Class {
        match self {
            State::Running | State::GcRun => Class::Cpu,
            State::Runnable | State::Throttled => Class::CpuWait,
            State::GilWait | State::GcWait | State::LockWait => Class::Contention,
            State::NetRead | State::NetWrite | State::NetConnect => Class::Network,
            State::DiskIo | State::PageFault => Class::Storage,
            State::PollWait | State::Sleep | State::PipeIpc | State::ChildWait => Class::Idle,
            State::Other => Class::Unknown,
        }
    }

    /// The colour (24-bit RGB) that stands for the state wherever it is drawn.
    pub const fn colour(self) -> u32 {
        match self {
            State::Running => 0x4c_af_50,
            State::GcRun => 0xd8_1b_60,
            State::Runnable => 0xff_b3_00,
            State::Throttled => 0xf5_7c_00,
            State::GilWait => 0x8e_24_aa,
            State::GcWait => 0xe5_39_35,
            State::LockWait => 0x5e_35_b1,
            State::NetRead => 0x1e_88_e5,
            State::NetWrite => 0x03_9b_e5,
            State::NetConnect => 0x00_ac_c1,
            State::PollWait => 0xaf_b4_2b,
            State::DiskIo => 0x8d_4e_2a,
            State::PageFault => 0xc0_82_4f,
            State::Sleep => 0x26_a6_9a,
            State::PipeIpc => 0x3f_6f_a8,
            State::ChildWait => 0x5c_6b_c0,
            State::Other => 0x42_42_42,
        }
    }

    /// The state with this number, as BPF writes it.
    pub fn from_index(index: u8) -> Option<State> {
        State::ALL.get(usize::from(index)).copied()
    }

    /// The state with this name.
    pub fn from_name(name: &str) -> Option<State> {
        State::ALL.into_iter().find(|state| state.name() == name)
    }

    /// The state's cell in a ledger.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether the thread could not go on (not on a CPU, not ready for one).
    pub const fn is_blocked(self) -> bool {
        !matches!(self, State::Running | State::GcRun | State::Runnable | State::Throttled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_the_list() {
        for (index, state) in State::ALL.into_iter().enumerate() {
            assert_eq!(state.index(), index);
            assert_eq!(State::from_index(index as u8), Some(state));
            assert_eq!(State::from_name(state.name()), Some(state));
        }
        assert_eq!(State::from_index(STATES as u8), None);
        assert_eq!(State::from_name("idle"), None);
    }

    #[test]
    fn json_names_are_the_table_names() {
        for state in State::ALL {
            assert_eq!(serde_json::to_string(&state).unwrap(), format!("\"{}\"", state.name()));
        }
    }
}
