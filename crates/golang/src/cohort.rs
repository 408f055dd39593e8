//! Which goroutines a round looks at, so that a hundred thousand cost no more than a few hundred.
//!
//! For a second the same ones are looked at: every k-th, beginning at random. So each has the chance
//! 1/k, and what is seen of it counts k times. Those that lived when all were last looked at, and the
//! others (dead then, or new), are chosen from apart: a list that is mostly dead wastes no places.

use std::hash::{BuildHasher as _, RandomState};

/// Goroutines per round, of those that were alive.
pub(crate) const PLACES: u64 = 1000;
/// And of the others.
const OTHER_PLACES: u64 = 250;

/// One part of the choice: indexes, and how many each stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) indexes: Vec<u64>,
    pub(crate) each_stands_for: u64,
}

/// Whether all can be looked at, so that nothing needs to be chosen.
pub(crate) fn all_fit(length: u64) -> bool {
    length <= PLACES
}

/// All of them.
pub(crate) fn all(length: u64) -> Part {
    Part { indexes: (0..length).collect(), each_stands_for: 1 }
}

/// A choice from `length` goroutines, of which `alive` says who lived a while ago.
pub(crate) fn choose(alive: &[bool], length: u64) -> [Part; 2] {
    let lived = |index: &u64| alive.get(*index as usize).copied().unwrap_or(false);
    let (living, others): (Vec<u64>, Vec<u64>) = (0..length).partition(lived);
    [every_kth(&living, PLACES), every_kth(&others, OTHER_PLACES)]
}

fn every_kth(indexes: &[u64], places: u64) -> Part {
    let step = (indexes.len() as u64).div_ceil(places).max(1);
    let start = random() % step;
    let chosen = indexes.iter().skip(start as usize).step_by(step as usize);
    Part { indexes: chosen.copied().collect(), each_stands_for: step }
}

/// A number without a pattern; each state that the standard library makes has its own.
fn random() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_goroutine_has_the_same_chance() {
        // 3,000 live ones: one in three, whichever they are.
        let alive = vec![true; 3000];
        let mut seen = vec![0u32; 3000];
        const TURNS: u32 = 900;
        for _ in 0..TURNS {
            let [living, others] = choose(&alive, 3000);
            assert_eq!((living.each_stands_for, others.indexes.len()), (3, 0));
            living.indexes.iter().for_each(|index| seen[*index as usize] += 1);
        }
        // 300 expected, standard deviation 14: seven of them.
        assert!(seen.iter().all(|times| (200..=400).contains(times)));
    }

    #[test]
    fn the_dead_take_no_place_of_the_living() {
        let alive: Vec<bool> = (0..100_000).map(|index| index % 100 == 0).collect();
        let [living, others] = choose(&alive, 100_040);
        assert_eq!((living.indexes.len(), living.each_stands_for), (1000, 1));
        assert!(others.indexes.len() <= 251 && others.each_stands_for > 300);
        let in_all = others.indexes.len() as u64 * others.each_stands_for;
        assert!(in_all.abs_diff(99_040) <= others.each_stands_for);
    }

    #[test]
    fn a_few_are_all_looked_at() {
        assert!(all_fit(1000) && !all_fit(1001));
        assert_eq!(all(3).indexes, [0, 1, 2]);
    }
}
