//! Who collected garbage, which generation, for how long?

mod decode;
mod watchpoint;

use crate::rows::columns;
use crate::{Attach, Decoder, Hook, Program, Tracker};

pub(crate) use watchpoint::watchpoint;

/// Garbage collections of CPython.
pub struct GcTracker;

/// How a process's collections are seen, best first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Rung {
    /// They are not seen.
    #[default]
    None = crate::record::gc_rung::GC_RUNG_NONE,
    /// The interpreter's own probes.
    Usdt = crate::record::gc_rung::GC_RUNG_USDT,
    /// A uprobe on the collector's function.
    Symbol = crate::record::gc_rung::GC_RUNG_SYMBOL,
    /// A hardware watchpoint on the collector's flag.
    Watchpoint = crate::record::gc_rung::GC_RUNG_WATCHPOINT,
}

impl Rung {
    /// As `gc_pause.rung` has it.
    pub fn name(self) -> &'static str {
        match self {
            Rung::None => "none",
            Rung::Usdt => "usdt",
            Rung::Symbol => "symbol",
            Rung::Watchpoint => "watchpoint",
        }
    }

    fn from_raw(raw: u32) -> Option<Self> {
        [Rung::None, Rung::Usdt, Rung::Symbol, Rung::Watchpoint]
            .into_iter()
            .find(|rung| *rung as u32 == raw)
    }
}

const HOOKS: &[Hook] = &[Hook {
    what: "collections",
    programs: &[
        Program { name: "gc_usdt_start", attach: Attach::PerProcess("USDT python:gc__start") },
        Program { name: "gc_symbol_start", attach: Attach::PerProcess("uprobe on the collector") },
        Program { name: "gc_watchpoint", attach: Attach::PerProcess("hardware watchpoint") },
    ],
    required: false,
}];

impl Tracker for GcTracker {
    fn name(&self) -> &'static str {
        "gc"
    }

    fn question(&self) -> &'static str {
        "Who collected garbage, which generation, how long, how many objects?"
    }

    fn hooks(&self) -> &'static [Hook] {
        HOOKS
    }

    fn sql(&self) -> &'static str {
        include_str!("table.sql")
    }

    fn tables(&self) -> Vec<(&'static str, Vec<String>)> {
        vec![("gc_pause", columns(&["generation", "collected", "cpu_ns", "rung"]))]
    }

    fn readme(&self) -> &'static str {
        include_str!("README.md")
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(decode::GcDecoder::new(self.tables().remove(0).1))
    }
}

#[cfg(test)]
mod tests;
