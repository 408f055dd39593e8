//! Where does each thread's time go?

mod decode;

use crate::rows::{columns, columns_with_ledger};
use crate::{Attach, Decoder, Hook, Program, Tracker};

/// The ledger: exact states of every thread, and the waits worth a row of their own.
pub struct LedgerTracker;

const HOOKS: &[Hook] = &[
    Hook {
        what: "context switches",
        programs: &[Program {
            name: "ledger_switch",
            attach: Attach::BtfTracepoint("sched_switch"),
        }],
        required: true,
    },
    Hook {
        what: "wake-ups",
        programs: &[Program {
            name: "ledger_waking",
            attach: Attach::BtfTracepoint("sched_waking"),
        }],
        required: true,
    },
    Hook {
        what: "new threads and processes",
        programs: &[Program {
            name: "ledger_fork",
            attach: Attach::BtfTracepoint("sched_process_fork"),
        }],
        required: true,
    },
    Hook {
        what: "programs started",
        programs: &[Program {
            name: "ledger_exec",
            attach: Attach::BtfTracepoint("sched_process_exec"),
        }],
        required: true,
    },
    Hook {
        what: "threads ended",
        programs: &[Program {
            name: "ledger_exit",
            attach: Attach::BtfTracepoint("sched_process_exit"),
        }],
        required: true,
    },
    Hook {
        what: "processes ended",
        programs: &[Program {
            name: "ledger_free",
            attach: Attach::BtfTracepoint("sched_process_free"),
        }],
        required: true,
    },
    Hook {
        what: "threads that were there before",
        programs: &[Program { name: "ledger_adopt", attach: Attach::Iterator("task") }],
        required: true,
    },
];

const WAIT_COLUMNS: [&str; 15] = [
    "state",
    "runnable_ns",
    "waker_pid",
    "waker_tid",
    "waker_thread",
    "holder_tid",
    "holder_thread",
    "futex_addr",
    "syscall",
    "fd",
    "peer",
    "slices",
    "local",
    "holder_pid",
    "holder_process",
];

/// Columns of `waits`; the gil tracker writes to it too.
pub(crate) fn wait_columns() -> Vec<String> {
    columns(&WAIT_COLUMNS)
}

fn thread_states_columns() -> Vec<String> {
    columns_with_ledger(&["process"])
}

impl Tracker for LedgerTracker {
    fn name(&self) -> &'static str {
        "ledger"
    }

    fn question(&self) -> &'static str {
        "Where does each thread's time go?"
    }

    fn hooks(&self) -> &'static [Hook] {
        HOOKS
    }

    fn sql(&self) -> &'static str {
        include_str!("table.sql")
    }

    fn tables(&self) -> Vec<(&'static str, Vec<String>)> {
        vec![("waits", wait_columns()), ("thread_states", thread_states_columns())]
    }

    fn readme(&self) -> &'static str {
        include_str!("README.md")
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(decode::LedgerDecoder::new())
    }
}

#[cfg(test)]
mod tests;
