//! Who kept others waiting during an interval, and for how long together.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use underspan_model::State;
use underspan_trackers::WaitEnded;

use crate::view::Fault;

/// Somebody's share in others' waiting.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) blocked_ns: u64,
    victims: BTreeSet<u32>,
}

impl Share {
    pub(crate) fn victims(&self) -> usize {
        self.victims.len()
    }
}

/// By fault, process and thread.
#[derive(Debug, Default)]
pub(crate) struct Culprits(BTreeMap<(Fault, u32, u32), Share>);

impl Culprits {
    /// `victim` waited for `by` during `waited`; what lies in `interval` counts.
    pub(crate) fn add(
        &mut self,
        fault: Fault,
        by: (u32, u32),
        victim: u32,
        waited: Range<u64>,
        interval: &Range<u64>,
    ) {
        let from = waited.start.max(interval.start);
        let to = waited.end.min(interval.end);
        if by.1 == 0 || by.1 == victim || to <= from {
            return;
        }
        let share = self.0.entry((fault, by.0, by.1)).or_default();
        share.blocked_ns += to - from;
        share.victims.insert(victim);
    }

    /// A wait that is over.
    pub(crate) fn ended(&mut self, wait: &WaitEnded, interval: &Range<u64>) {
        let Some(fault) = fault(wait.state) else { return };
        let waited = wait.start..wait.start.saturating_add(wait.duration);
        self.add(fault, wait.by, wait.tid, waited, interval);
    }

    /// The worst first.
    pub(crate) fn worst_first(self) -> Vec<((Fault, u32, u32), Share)> {
        let mut shares: Vec<_> = self.0.into_iter().collect();
        shares.sort_by_key(|(who, share)| (std::cmp::Reverse(share.blocked_ns), *who));
        shares
    }
}

/// Whose fault a wait is.
fn fault(state: State) -> Option<Fault> {
    [Fault::Gil, Fault::Collection, Fault::Lock, Fault::Cpu]
        .into_iter()
        .find(|fault| fault.state() == state)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(tid: u32, state: State, start: u64, duration: u64) -> WaitEnded {
        WaitEnded { pid: 1, tid, start, duration, state, by: (1, 9) }
    }

    #[test]
    fn only_what_lies_in_the_interval_counts() {
        let mut culprits = Culprits::default();
        let interval = 100..200;
        culprits.ended(&wait(2, State::GilWait, 50, 100), &interval);
        culprits.ended(&wait(3, State::GilWait, 190, 100), &interval);
        culprits.ended(&wait(3, State::GilWait, 120, 10), &interval);
        culprits.ended(&wait(4, State::GilWait, 10, 20), &interval);
        culprits.ended(&wait(5, State::LockWait, 100, 5), &interval);
        let shares = culprits.worst_first();
        assert_eq!(shares[0].0, (Fault::Gil, 1, 9));
        assert_eq!((shares[0].1.blocked_ns, shares[0].1.victims()), (70, 2));
        assert_eq!((shares[1].0.0, shares[1].1.blocked_ns), (Fault::Lock, 5));
        assert_eq!(shares.len(), 2);
    }

    #[test]
    fn nobody_blocks_himself_and_sleep_is_nobodys_fault() {
        let mut culprits = Culprits::default();
        culprits.ended(&wait(9, State::GilWait, 100, 50), &(100..200));
        culprits.ended(&wait(2, State::Sleep, 100, 50), &(100..200));
        culprits.ended(&WaitEnded { by: (0, 0), ..wait(2, State::GilWait, 100, 50) }, &(100..200));
        assert!(culprits.worst_first().is_empty());
    }
}
