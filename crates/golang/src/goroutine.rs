//! One goroutine, as its `g` says.

use underspan_remote::word;

use crate::layout::{G_SIZE, Layout};

/// Set while the garbage collector scans the goroutine's stack.
const SCANNING: u32 = 0x1000;

/// What a goroutine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// It could run, and waits for a processor of the Go scheduler.
    Runnable,
    /// It runs Go code on a thread (which need not be on a CPU).
    Running,
    /// It is in a system call, or in C code.
    Syscall,
    /// It waits.
    Waiting,
    /// It stopped itself because the garbage collector asked it to.
    Preempted,
}

impl Status {
    /// All of them.
    pub const ALL: [Status; 5] =
        [Status::Runnable, Status::Running, Status::Syscall, Status::Waiting, Status::Preempted];

    /// As in the column `status`.
    pub const fn name(self) -> &'static str {
        match self {
            Status::Runnable => "runnable",
            Status::Running => "running",
            Status::Syscall => "syscall",
            Status::Waiting => "waiting",
            Status::Preempted => "preempted",
        }
    }
}

/// `atomicstatus`, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// It lives and does this.
    Alive(Status),
    /// Not yet, no longer, or just being moved to a larger stack.
    Not,
    /// No number that the runtime knows.
    Unknown,
}

impl Life {
    pub(crate) fn of(status: u32) -> Self {
        match status & !SCANNING {
            1 => Life::Alive(Status::Runnable),
            2 => Life::Alive(Status::Running),
            3 => Life::Alive(Status::Syscall),
            // 10: waits for what nothing can reach any more (1.26 on).
            4 | 10 => Life::Alive(Status::Waiting),
            9 => Life::Alive(Status::Preempted),
            // Idle, dead, and being moved; 11: kept for C threads that call Go.
            0 | 6 | 8 | 11 => Life::Not,
            _ => Life::Unknown,
        }
    }
}

/// The fields that are read of a `g`. Equal: it has not run in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fields {
    pub(crate) status: u32,
    pub(crate) goid: u64,
    pub(crate) stack: (u64, u64),
    pub(crate) m: u64,
    pub(crate) pc: u64,
    pub(crate) sp: u64,
    pub(crate) wait_since: u64,
    pub(crate) wait_reason: u8,
    pub(crate) seq: u8,
    pub(crate) start_pc: u64,
}

impl Fields {
    pub(crate) fn read(g: &[u8; G_SIZE], layout: &Layout) -> Self {
        let at = |offset| word(g, offset);
        let status = at(layout.status) as u32;
        let in_call = matches!(Life::of(status), Life::Alive(Status::Syscall));
        let (pc, sp) = if in_call {
            (at(layout.syscall_pc), at(layout.syscall_sp))
        } else {
            (at(layout.sched_pc), at(layout.sched_sp))
        };
        Fields {
            status: status & !SCANNING,
            goid: at(layout.goid),
            stack: (at(layout.stack), at(layout.stack + 8)),
            m: at(layout.m),
            pc,
            sp,
            wait_since: at(layout.wait_since),
            wait_reason: at(layout.wait_reason) as u8,
            seq: at(layout.tracking_seq) as u8,
            start_pc: at(layout.start_pc),
        }
    }

    pub(crate) fn life(&self) -> Life {
        Life::of(self.status)
    }

    /// Whether its stack lies still: it has one, and does not run on it.
    pub(crate) fn has_still_stack(&self) -> bool {
        let (low, high) = self.stack;
        let still = matches!(self.life(), Life::Alive(status) if status != Status::Running);
        still && low < self.sp && self.sp < high && self.pc != 0
    }

    /// Whether nothing has happened to it between two reads. The garbage collector may have noted
    /// since when it waits.
    pub(crate) fn is_same_stop(&self, other: &Fields) -> bool {
        Fields { wait_since: 0, m: 0, ..*self } == Fields { wait_since: 0, m: 0, ..*other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scanned_goroutines_are_what_they_were() {
        assert_eq!(Life::of(0x1004), Life::Alive(Status::Waiting));
        assert_eq!(Life::of(4), Life::Alive(Status::Waiting));
        assert_eq!(Life::of(6), Life::Not);
        assert_eq!(Life::of(0xdead), Life::Unknown);
    }
}
