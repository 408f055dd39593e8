//! Which code burned CPU?

mod clock;
mod counters;
mod decode;

use crate::rows::columns;
use crate::{Attach, Decoder, Hook, Program, Tracker};

pub(crate) use clock::{clock, online_cpus, period_ns};
pub(crate) use counters::{Counters, PER_CPU};

/// Stacks of running threads, by a clock on each CPU.
pub struct OnCpuTracker;

/// The hook whose way is the clock.
pub(crate) const SAMPLES: &str = "samples of running threads";
/// The hook whose way is the processor's own counters.
pub(crate) const COUNTS: &str = "cycles, instructions, misses";
/// The program of both.
pub(crate) const PROGRAM: &str = "oncpu_sample";

const HOOKS: &[Hook] = &[
    Hook {
        what: SAMPLES,
        programs: &[Program { name: PROGRAM, attach: Attach::CpuClock }],
        required: false,
    },
    Hook {
        what: COUNTS,
        programs: &[Program { name: PROGRAM, attach: Attach::HardwareCounters }],
        required: false,
    },
];

impl Tracker for OnCpuTracker {
    fn name(&self) -> &'static str {
        "oncpu"
    }

    fn question(&self) -> &'static str {
        "Which code burned CPU?"
    }

    fn hooks(&self) -> &'static [Hook] {
        HOOKS
    }

    fn sql(&self) -> &'static str {
        include_str!("table.sql")
    }

    fn tables(&self) -> Vec<(&'static str, Vec<String>)> {
        let own = ["state", "stack_id", "cycles", "instructions", "cache_misses", "branch_misses"];
        vec![("on_cpu", columns(&own))]
    }

    fn readme(&self) -> &'static str {
        include_str!("README.md")
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(decode::OnCpuDecoder::new(self.tables().remove(0).1))
    }
}

#[cfg(test)]
mod tests;
