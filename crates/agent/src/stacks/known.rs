//! Which stacks have a row already. Rows go with time, so each is written again once an hour.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A row is written again after this long, so that it never goes before what refers to it.
const AGAIN: Duration = Duration::from_secs(3600);
/// Ids that are remembered, some 40 bytes each.
const MOST: usize = 200_000;

/// When each stack's row was asked for.
#[derive(Debug, Default)]
pub(super) struct Known(HashMap<u64, Instant>);

impl Known {
    /// Whether its row is to be asked for.
    pub(super) fn is_due(&self, id: u64) -> bool {
        self.0.get(&id).is_none_or(|asked| asked.elapsed() >= AGAIN)
    }

    /// Its row was asked for.
    pub(super) fn asked(&mut self, id: u64) {
        if self.0.len() >= MOST {
            self.forget_half();
        }
        self.0.insert(id, Instant::now());
    }

    /// The older half. Those that are seen again get another row.
    fn forget_half(&mut self) {
        let mut times: Vec<_> = self.0.values().copied().collect();
        let half = times.len() / 2;
        let (_, median, _) = times.select_nth_unstable(half);
        let median = *median;
        self.0.retain(|_, asked| *asked > median);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_asked_for_once_an_hour() {
        let mut known = Known::default();
        assert!(known.is_due(7));
        known.asked(7);
        assert!(!known.is_due(7));
        known.0.insert(7, Instant::now().checked_sub(AGAIN).unwrap());
        assert!(known.is_due(7));
    }

    #[test]
    fn the_older_half_goes_when_there_are_too_many() {
        let mut known = Known::default();
        for id in 0..=MOST as u64 {
            known.asked(id);
        }
        assert!(known.0.len() <= MOST / 2 + 1);
        assert!(!known.is_due(MOST as u64));
    }
}
