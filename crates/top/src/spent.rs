//! What an interval went into: the ledger, and which part of it was no work's fault.

use std::ops::AddAssign;

use serde::Serialize;
use underspan_model::{Class, Ledger, State};

/// A thread's time, or that of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spent {
    /// By state.
    #[serde(flatten)]
    pub ledger: Ledger,
    /// How much of `lock_wait` was a wait for something to do.
    pub idle_ns: u64,
}

/// A share of it, as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Share {
    /// A state of the ledger; of `lock_wait` what is left.
    State(State),
    /// Waiting for something to do where a lock is waited for.
    Idle,
}

impl Share {
    /// In one word.
    pub const fn name(self) -> &'static str {
        match self {
            Share::State(state) => state.name(),
            Share::Idle => "idle",
        }
    }

    /// In some words.
    pub const fn label(self) -> &'static str {
        match self {
            Share::State(state) => state.label(),
            Share::Idle => "waiting for something to do",
        }
    }

    /// The family that it belongs to.
    pub const fn class(self) -> Class {
        match self {
            Share::State(state) => state.class(),
            Share::Idle => Class::Idle,
        }
    }
}

impl Spent {
    /// All shares, in ledger order; they sum to the ledger.
    pub fn shares(&self) -> impl Iterator<Item = (Share, u64)> + '_ {
        let idle = self.idle_ns.min(self.ledger[State::LockWait]);
        let left = move |(state, ns)| match state {
            State::LockWait => (Share::State(state), ns - idle),
            state => (Share::State(state), ns),
        };
        self.ledger.iter().map(left).chain([(Share::Idle, idle)])
    }

    /// Those that took any time, longest first.
    pub fn largest_first(&self) -> Vec<(Share, u64)> {
        let mut shares: Vec<_> = self.shares().filter(|(_, ns)| *ns > 0).collect();
        shares.sort_by_key(|(share, ns)| (std::cmp::Reverse(*ns), *share));
        shares
    }
}

impl AddAssign for Spent {
    fn add_assign(&mut self, other: Spent) {
        self.ledger += other.ledger;
        self.idle_ns += other.idle_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_idle_is_taken_from_lock_waits_and_nothing_is_lost() {
        let mut ledger = Ledger::default();
        ledger[State::LockWait] = 700;
        ledger[State::Running] = 300;
        let spent = Spent { ledger, idle_ns: 500 };
        let shares = [
            (Share::Idle, 500),
            (Share::State(State::Running), 300),
            (Share::State(State::LockWait), 200),
        ];
        assert_eq!(spent.largest_first(), shares);
        assert_eq!(Spent { idle_ns: 900, ..spent }.shares().map(|(_, ns)| ns).sum::<u64>(), 1_000);
        let json = serde_json::to_value(spent).unwrap();
        assert_eq!((&json["lock_wait_ns"], &json["idle_ns"]), (&700.into(), &500.into()));
    }
}
