//! From one reading of a counter to the next: what was added, or that nothing can be said.

use std::collections::HashMap;
use std::sync::Arc;

use super::metric::{Kind, Metric};
use super::{Reading, Subject};

/// What became of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing is known of before: it is new, or belongs to another thing of the same name.
    First,
    /// So much was added.
    Added(u64),
    /// It is less than it was, and not because it wrapped: it began again from zero.
    Reset,
}

/// The last readings.
#[derive(Debug, Default)]
pub(super) struct Counters(HashMap<(&'static str, Subject), Last>);

#[derive(Clone, Copy, Debug)]
struct Last {
    value: u64,
    identity: u64,
    round: u64,
}

impl Counters {
    /// What a reading says. `round` counts the rounds.
    pub(super) fn change(&mut self, reading: &Reading, round: u64) -> Change {
        let now = Last { value: reading.value, identity: reading.identity, round };
        let key = (reading.metric.name, reading.subject.clone());
        match self.0.insert(key, now) {
            Some(last) if last.identity == now.identity => {
                added(reading.metric, last.value, now.value)
            }
            _ => Change::First,
        }
    }

    /// Forgets what was not read in this round, and says what it was.
    pub(super) fn vanished(&mut self, round: u64) -> Vec<(&'static str, Subject)> {
        let gone = self.0.extract_if(|_, last| last.round != round);
        gone.map(|(key, _)| key).collect()
    }
}

fn added(metric: &Metric, before: u64, now: u64) -> Change {
    if metric.kind == Kind::Gauge {
        return Change::Added(0);
    }
    if let Some(added) = now.checked_sub(before) {
        return Change::Added(added);
    }
    // A narrow counter that was near its end and is near its beginning went round. 64 bits last longer
    // than machines do.
    if metric.bits < 64 {
        let (range, half) = (1u64 << metric.bits, 1u64 << (metric.bits - 1));
        if before >= half && before < range && now < half && range - before + now < half {
            return Change::Added(range - before + now);
        }
    }
    Change::Reset
}

impl Subject {
    /// A thing of the host.
    pub(super) fn new(name: &str) -> Self {
        Subject { name: Arc::from(name), netns: 0 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::metric::named;
    use super::*;

    fn reading(name: &str, identity: u64, value: u64) -> Reading {
        let metric = named(name).unwrap();
        Reading { metric, subject: Subject::new("eth0"), identity, value }
    }

    fn changes(name: &str, readings: &[(u64, u64)]) -> Vec<Change> {
        let mut counters = Counters::default();
        let readings = readings.iter().zip(0..);
        readings
            .map(|((identity, value), round)| {
                counters.change(&reading(name, *identity, *value), round)
            })
            .collect()
    }

    const DROPS: &str = "node_network_receive_drop_total";
    const SQUEEZED: &str = "node_softnet_times_squeezed_total";

    #[test]
    fn the_first_reading_of_a_thing_is_not_what_happened_in_this_second() {
        use Change::{Added, First};
        assert_eq!(changes(DROPS, &[(1, 700), (1, 700), (1, 709)]), [First, Added(0), Added(9)]);
        // Made anew under the same name: 900 may be from another time.
        assert_eq!(changes(DROPS, &[(1, 700), (2, 900), (2, 901)]), [First, First, Added(1)]);
    }

    #[test]
    fn a_narrow_counter_wraps_and_a_wide_one_was_reset() {
        use Change::{Added, First, Reset};
        let end = u64::from(u32::MAX);
        assert_eq!(changes(SQUEEZED, &[(0, end - 1), (0, 3)]), [First, Added(5)]);
        assert_eq!(changes(SQUEEZED, &[(0, 1_000), (0, 3), (0, 4)]), [First, Reset, Added(1)]);
        assert_eq!(changes(DROPS, &[(0, end - 1), (0, 3)]), [First, Reset]);
        assert_eq!(changes(DROPS, &[(0, u64::MAX), (0, 0)]), [First, Reset]);
    }

    #[test]
    fn a_level_has_no_difference() {
        let available = "node_ethtool_conntrack_allowance_available";
        let changes = changes(available, &[(0, 90), (0, 10), (0, 95)]);
        assert_eq!(changes, [Change::First, Change::Added(0), Change::Added(0)]);
    }

    #[test]
    fn what_is_not_read_any_more_has_vanished_once() {
        let mut counters = Counters::default();
        counters.change(&reading(DROPS, 0, 1), 1);
        counters.change(&reading(SQUEEZED, 0, 1), 2);
        assert_eq!(counters.vanished(2), [(DROPS, Subject::new("eth0"))]);
        assert_eq!(counters.vanished(2), []);
    }

    proptest! {
        #[test]
        fn never_more_than_half_a_range_in_one_go_backwards(before: u64, now: u64, narrow: bool) {
            let metric = named(if narrow { SQUEEZED } else { DROPS }).unwrap();
            match added(metric, before, now) {
                Change::Added(added) if now >= before => prop_assert_eq!(added, now - before),
                Change::Added(added) => prop_assert!(narrow && added < 1 << 31),
                Change::Reset => prop_assert!(now < before),
                Change::First => prop_assert!(false),
            }
        }
    }
}
