//! The kinds of pictures.

use std::fmt;

use serde::Serialize;
use underspan_model::State;

/// Which time a picture shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// On a CPU.
    Cpu,
    /// Not on a CPU, for whatever reason.
    OffCpu,
    /// Both.
    Wall,
    /// Waiting for the interpreter lock.
    Gil,
    /// Waiting for another lock.
    Lock,
    /// Collecting garbage, or waiting for a sibling that does.
    Gc,
    /// Iterations of event loops that took too long.
    Loop,
    /// Go's goroutines.
    Goroutine,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 8] = [
        Kind::Cpu,
        Kind::OffCpu,
        Kind::Wall,
        Kind::Gil,
        Kind::Lock,
        Kind::Gc,
        Kind::Loop,
        Kind::Goroutine,
    ];

    /// As on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Cpu => "cpu",
            Kind::OffCpu => "off-cpu",
            Kind::Wall => "wall",
            Kind::Gil => "gil",
            Kind::Lock => "lock",
            Kind::Gc => "gc",
            Kind::Loop => "loop",
            Kind::Goroutine => "goroutine",
        }
    }

    /// For people.
    pub const fn title(self) -> &'static str {
        match self {
            Kind::Cpu => "Time on a CPU",
            Kind::OffCpu => "Time off the CPU",
            Kind::Wall => "Wall-clock time",
            Kind::Gil => "Waiting for the GIL",
            Kind::Lock => "Waiting for locks",
            Kind::Gc => "Garbage collection",
            Kind::Loop => "Stalls of event loops",
            Kind::Goroutine => "Goroutines",
        }
    }

    /// Whether a thread in this state is in the picture.
    pub const fn has(self, state: State) -> bool {
        match self {
            Kind::Cpu => is_on_cpu(state),
            Kind::OffCpu => !is_on_cpu(state),
            Kind::Wall | Kind::Loop | Kind::Goroutine => true,
            Kind::Gil => matches!(state, State::GilWait | State::GcWait),
            Kind::Lock => matches!(state, State::LockWait),
            Kind::Gc => matches!(state, State::GcRun | State::GcWait),
        }
    }

    /// The states in the picture, in ledger order.
    pub fn states(self) -> impl Iterator<Item = State> {
        State::ALL.into_iter().filter(move |state| self.has(*state))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether the thread used a CPU.
pub const fn is_on_cpu(state: State) -> bool {
    matches!(state, State::Running | State::GcRun)
}
