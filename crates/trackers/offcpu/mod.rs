//! Why, and in which code, was a thread asleep?

mod decode;
mod join;
mod ongoing;

use crate::rows::columns;
use crate::{Attach, Decoder, Hook, Program, Tracker};

pub use ongoing::OngoingWait;

/// Waits with their stacks. Which waits become samples is decided in the ledger's program
/// (`sample.bpf.c`); a program of its own takes the stack in user mode. Waits that go on are looked at
/// from outside.
pub struct OffCpuTracker;

const HOOKS: &[Hook] = &[
    Hook {
        what: "threads back from a wait",
        programs: &[Program {
            name: "offcpu_resume",
            attach: Attach::BtfTracepoint("rseq_update"),
        }],
        required: false,
    },
    Hook {
        what: "threads back from a wait, without restartable sequences",
        programs: &[Program { name: "ledger_switch", attach: Attach::TaskWork }],
        required: false,
    },
    Hook {
        what: "threads whose wait goes on",
        programs: &[Program { name: "offcpu_ongoing", attach: Attach::Iterator("task") }],
        required: false,
    },
];

const COLUMNS: [&str; 17] = [
    "state",
    "weight_ns",
    "stack_id",
    "waker_pid",
    "waker_tid",
    "waker_thread",
    "waker_stack_id",
    "lock_addr",
    "lock_kind",
    "holder_pid",
    "holder_tid",
    "holder_thread",
    "holder_reason",
    "in_request",
    "runnable_ns",
    "syscall",
    "peer",
];

impl Tracker for OffCpuTracker {
    fn name(&self) -> &'static str {
        "offcpu"
    }

    fn question(&self) -> &'static str {
        "Why, and in which code, was a thread asleep?"
    }

    fn hooks(&self) -> &'static [Hook] {
        HOOKS
    }

    fn sql(&self) -> &'static str {
        include_str!("table.sql")
    }

    fn tables(&self) -> Vec<(&'static str, Vec<String>)> {
        vec![("off_cpu", columns(&COLUMNS)), ("off_cpu_ongoing", ongoing::columns_of_ongoing())]
    }

    fn readme(&self) -> &'static str {
        include_str!("README.md")
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(decode::OffCpuDecoder::new(columns(&COLUMNS)))
    }
}

#[cfg(test)]
mod tests;
