//! What rules about single sockets take of the ledger's cells, so that no other rule tells it again.

use std::collections::BTreeMap;

use underspan_model::State;

use crate::case::Case;
use crate::interval::Cover;

/// Time of states that findings have already.
#[derive(Default)]
pub(super) struct Claims(BTreeMap<State, (Cover, u64)>);

/// What a rule is after: instants, by state.
pub(super) type Wanted = BTreeMap<State, Cover>;

impl Claims {
    /// When a state's time is told already.
    pub(super) fn cover(&self, state: State) -> Cover {
        self.0.get(&state).map(|(cover, _)| cover.clone()).unwrap_or_default()
    }

    /// How much of a state's cell is left.
    pub(super) fn left(&self, case: &Case<'_>, state: State) -> u64 {
        let taken = self.0.get(&state).map_or(0, |(_, ns)| *ns);
        case.window.ledger[state].saturating_sub(taken)
    }

    /// What is left of these instants, as the parts of a finding. Rows can never have more than the
    /// ledger.
    pub(super) fn parts(&self, case: &Case<'_>, wanted: &Wanted) -> Vec<(&'static str, u64)> {
        let part = |(state, at): (&State, &Cover)| {
            let ns = at.subtract(&self.cover(*state)).total();
            (state.name(), ns.min(self.left(case, *state)))
        };
        wanted.iter().map(part).collect()
    }

    /// Takes them.
    pub(super) fn take(&mut self, case: &Case<'_>, wanted: &Wanted) {
        for (state, at) in wanted {
            let ns = at.subtract(&self.cover(*state)).total().min(self.left(case, *state));
            let (cover, taken) = self.0.entry(*state).or_default();
            *cover = cover.union(at);
            *taken = taken.saturating_add(ns);
        }
    }

    /// Takes time that is known by its length only.
    pub(super) fn take_ns(&mut self, case: &Case<'_>, state: State, ns: u64) {
        let ns = ns.min(self.left(case, state));
        let (_, taken) = self.0.entry(state).or_default();
        *taken = taken.saturating_add(ns);
    }
}
