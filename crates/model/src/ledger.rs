//! A ledger: nanoseconds by state. Its cells sum to the wall time it covers.

use std::fmt;
use std::ops::{Add, AddAssign, Index, IndexMut};

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{STATES, State};

/// Nanoseconds spent in each state.
///
/// In JSON a ledger is an object with one `<state>_ns` field per state, in ledger order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger([u64; STATES]);

impl Ledger {
    /// A ledger from its cells, in the order of [`State::ALL`].
    pub const fn new(cells: [u64; STATES]) -> Self {
        Ledger(cells)
    }

    /// The cells, in the order of [`State::ALL`].
    pub const fn cells(&self) -> &[u64; STATES] {
        &self.0
    }

    /// The wall time the ledger covers. Cells that no thread can have lived through saturate.
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |total, ns| total.saturating_add(*ns))
    }

    /// What was added since `earlier`, or `None` if some cell went backwards, which means that the
    /// two were not read from the same thread in that order.
    pub fn since(&self, earlier: &Ledger) -> Option<Ledger> {
        let mut cells = [0; STATES];
        for ((cell, now), then) in cells.iter_mut().zip(self.0).zip(earlier.0) {
            *cell = now.checked_sub(then)?;
        }
        Some(Ledger(cells))
    }

    /// States with their nanoseconds, in ledger order.
    pub fn iter(&self) -> impl Iterator<Item = (State, u64)> + '_ {
        State::ALL.into_iter().zip(self.0)
    }

    /// The states that took any time, longest first.
    pub fn largest_first(&self) -> Vec<(State, u64)> {
        let mut cells: Vec<_> = self.iter().filter(|&(_, ns)| ns > 0).collect();
        cells.sort_by_key(|&(state, ns)| (std::cmp::Reverse(ns), state));
        cells
    }
}

impl Index<State> for Ledger {
    type Output = u64;

    fn index(&self, state: State) -> &u64 {
        &self.0[state.index()]
    }
}

impl IndexMut<State> for Ledger {
    fn index_mut(&mut self, state: State) -> &mut u64 {
        &mut self.0[state.index()]
    }
}

impl Add for Ledger {
    type Output = Ledger;

    fn add(mut self, other: Ledger) -> Ledger {
        self += other;
        self
    }
}

impl AddAssign for Ledger {
    fn add_assign(&mut self, other: Ledger) {
        for (cell, more) in self.0.iter_mut().zip(other.0) {
            *cell += more;
        }
    }
}

/// The name of a state's column and JSON field.
pub fn column(state: State) -> String {
    format!("{}_ns", state.name())
}

impl Serialize for Ledger {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(state, ns)| (column(state), ns)))
    }
}

/// A missing state counts as no time.
impl<'de> Deserialize<'de> for Ledger {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Cells)
    }
}

/// Reads the `<state>_ns` fields and ignores the rest, so that a ledger can be flattened into a row.
struct Cells;

impl<'de> Visitor<'de> for Cells {
    type Value = Ledger;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one <state>_ns field per state")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Ledger, M::Error> {
        let mut ledger = Ledger::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.strip_suffix("_ns").and_then(State::from_name) {
                Some(state) => ledger[state] = map.next_value()?,
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(ledger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_difference_sums_to_the_time_between(
            then in proptest::array::uniform17(0u64..1 << 50),
            more in proptest::array::uniform17(0u64..1 << 50),
        ) {
            let (then, more) = (Ledger::new(then), Ledger::new(more));
            let now = then + more;
            prop_assert_eq!(now.since(&then), Some(more));
            prop_assert_eq!(now.total() - then.total(), more.total());
        }

        #[test]
        fn json_keeps_every_cell(cells in proptest::array::uniform17(any::<u64>())) {
            let ledger = Ledger::new(cells);
            let json = serde_json::to_string(&ledger).unwrap();
            prop_assert_eq!(serde_json::from_str::<Ledger>(&json).unwrap(), ledger);
        }
    }

    #[test]
    fn a_cell_that_went_backwards_is_refused() {
        let mut earlier = Ledger::default();
        earlier[State::Sleep] = 1;
        assert_eq!(Ledger::default().since(&earlier), None);
    }

    #[test]
    fn largest_first_leaves_out_what_took_no_time() {
        let mut ledger = Ledger::default();
        ledger[State::Sleep] = 5;
        ledger[State::GcWait] = 9;
        assert_eq!(ledger.largest_first(), [(State::GcWait, 9), (State::Sleep, 5)]);
    }
}
