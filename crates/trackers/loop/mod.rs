//! Which event loop stalled, and on what?

mod decode;

use crate::rows::columns_with_ledger;
use crate::{Attach, Decoder, Hook, Program, Tracker};

/// Iterations of event loops that took too long.
pub struct LoopTracker;

const HOOKS: &[Hook] = &[
    Hook {
        what: "calls of epoll_wait",
        programs: &[Program { name: "loop_epoll", attach: Attach::PerProcess("uprobe in libc") }],
        required: false,
    },
    Hook {
        what: "ends of epoll instances",
        programs: &[Program {
            name: "loop_epoll_closed",
            attach: Attach::Fentry("ep_eventpoll_release"),
        }],
        required: false,
    },
    Hook {
        what: "calls of poll",
        programs: &[Program { name: "loop_poll", attach: Attach::PerProcess("uprobe in libc") }],
        required: false,
    },
    Hook {
        what: "calls of select",
        programs: &[Program { name: "loop_select", attach: Attach::PerProcess("uprobe in libc") }],
        required: false,
    },
];

/// The C library's functions that ask for events, and the program for each.
pub const FUNCTIONS: [(&str, &str); 7] = [
    ("epoll_wait", "loop_epoll"),
    ("epoll_pwait", "loop_epoll"),
    ("epoll_pwait2", "loop_epoll"),
    ("poll", "loop_poll"),
    ("ppoll", "loop_poll"),
    ("select", "loop_select"),
    ("pselect", "loop_select"),
];

impl Tracker for LoopTracker {
    fn name(&self) -> &'static str {
        "loop"
    }

    fn question(&self) -> &'static str {
        "Which event loop stalled, on what?"
    }

    fn hooks(&self) -> &'static [Hook] {
        HOOKS
    }

    fn sql(&self) -> &'static str {
        include_str!("table.sql")
    }

    fn tables(&self) -> Vec<(&'static str, Vec<String>)> {
        let own = ["kind", "culprit_tid", "culprit_thread", "culprit", "stack_id"];
        vec![("loop_stall", columns_with_ledger(&own))]
    }

    fn readme(&self) -> &'static str {
        include_str!("README.md")
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(decode::LoopDecoder::new(self.tables().remove(0).1))
    }
}

#[cfg(test)]
mod tests;
