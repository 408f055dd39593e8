//! Samples, scaled to what the ledger knows exactly.
//!
//! Samples are an estimate; the ledger is not. For every thread and state both have a sum. Where
//! they differ by no more than chance makes them differ, the samples' weights are scaled so that
//! they sum to the ledger's: those most that chance moves most, such as the coarse ones of waits for a
//! request, so that what is known well stays as it is. Where the ledger has more than that, samples are missing for a reason
//! (a wait that still goes on, events that were lost): stretching the others would put that time
//! into code where it was not spent. Where it is known where a wait that goes on stands, the time is
//! there, as far as that wait can account for it; the rest becomes a sample of its own, `not sampled`. Where the
//! samples have more, they are scaled down. So the picture always sums to the ledger. Only threads of
//! which the ledger has no row at all keep what was sampled; their sum is told apart.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use underspan_model::State;

use crate::sample::{Place, Sample, Thread};

/// By what a sample stands for at most, if nothing is known: the default period of both samplers.
pub const PERIOD_NS: u64 = 10_000_000;
/// A factor further from 1 than this is worth telling.
const NOTABLE: f64 = 2.0;
/// So many cells are told in full.
const TOLD: usize = 20;

/// Exact totals: nanoseconds by thread and state.
pub type Totals = BTreeMap<(Arc<Thread>, State), u64>;

/// What scaling did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Scaling {
    /// Nanoseconds that the samples summed to.
    pub sampled_ns: u64,
    /// Nanoseconds that the ledger knows of: what they sum to now.
    pub ledger_ns: u64,
    /// The part of `ledger_ns` for which there is no sample.
    pub not_sampled_ns: u64,
    /// The part of `ledger_ns` that waits which are not over account for.
    pub ongoing_ns: u64,
    /// Nanoseconds of samples whose thread the ledger does not have; they are in no other sum.
    pub without_ledger_ns: u64,
    /// How many cells (a thread in a state) had samples.
    pub cells: u64,
    /// The least factor of a cell; 1 without cells.
    pub least_factor: f64,
    /// The greatest factor of a cell; 1 without cells.
    pub greatest_factor: f64,
    /// Cells that were scaled by less than a half or more than two, those with most time first.
    pub notable: Vec<Cell>,
}

/// A thread in a state.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Its name.
    pub thread: String,
    /// The state.
    pub state: State,
    /// How many samples it had.
    pub samples: u64,
    /// What they summed to.
    pub sampled_ns: u64,
    /// What the ledger says.
    pub ledger_ns: u64,
    /// What their weights were multiplied with.
    pub factor: f64,
}

/// Scales the samples' weights in place and adds what is not sampled, starting at `start_time`.
///
/// `ongoing` are waits that are not over, each with the most that it can account for as its weight.
pub fn scale(
    samples: &mut Vec<Sample>,
    ongoing: Vec<Sample>,
    totals: &Totals,
    start_time: u64,
) -> Scaling {
    let mut ongoing = Ongoing::new(ongoing);
    let mut cells: BTreeMap<(Arc<Thread>, State), Vec<usize>> = BTreeMap::new();
    for (index, sample) in samples.iter().enumerate() {
        cells.entry((Arc::clone(&sample.thread), sample.state)).or_default().push(index);
    }
    let mut scaling = Scaling { least_factor: 1.0, greatest_factor: 1.0, ..Scaling::default() };
    let known: BTreeSet<&Arc<Thread>> = totals.keys().map(|(thread, _)| thread).collect();
    let mut factors: Option<(f64, f64)> = None;
    for ((thread, state), indices) in &cells {
        let sampled: u64 =
            indices.iter().fold(0, |sum, i| sum.saturating_add(samples[*i].weight_ns));
        let total = totals.get(&(Arc::clone(thread), *state)).copied().unwrap_or(0);
        if !known.contains(thread) {
            scaling.without_ledger_ns = scaling.without_ledger_ns.saturating_add(sampled);
            continue;
        }
        scaling.sampled_ns = scaling.sampled_ns.saturating_add(sampled);
        if sampled == 0 {
            continue;
        }
        let count = indices.iter().fold(0, |sum: u64, i| sum.saturating_add(samples[*i].count));
        // What a wait that goes on accounts for is not for the others to make up.
        let known = ongoing.most(thread, *state).min(total.saturating_sub(sampled));
        let variance = indices.iter().map(|i| variance(&samples[*i])).sum();
        let target = target(sampled, total - known, count, variance);
        spread(samples, indices, sampled, target);
        let factor = target as f64 / sampled as f64;
        let (least, greatest) = factors.unwrap_or((factor, factor));
        factors = Some((least.min(factor), greatest.max(factor)));
        scaling.cells += 1;
        if !(NOTABLE.recip()..=NOTABLE).contains(&factor) {
            scaling.notable.push(Cell {
                pid: thread.pid,
                tid: thread.tid,
                thread: thread.name.clone(),
                state: *state,
                samples: count,
                sampled_ns: sampled,
                ledger_ns: total,
                factor,
            });
        }
    }
    if let Some((least, greatest)) = factors {
        (scaling.least_factor, scaling.greatest_factor) = (least, greatest);
    }
    scaling.notable.sort_by_key(|cell| std::cmp::Reverse(cell.ledger_ns.max(cell.sampled_ns)));
    scaling.notable.truncate(TOLD);
    add_missing(samples, &mut ongoing, &cells, totals, start_time, &mut scaling);
    samples.retain(|sample| sample.weight_ns > 0);
    scaling
}

/// What the samples of a cell are to sum to.
///
/// A cell's sum comes out of draws that each weigh up to a period, so chance moves it by about a
/// period times the root of their number, or by as much as they say themselves. Four times that, and a
/// period for the edges, is chance; more is a cause.
fn target(sampled: u64, total: u64, samples: u64, variance: f64) -> u64 {
    let period = PERIOD_NS as f64;
    let chance = 4.0 * (period * (samples as f64).sqrt()).max(variance.sqrt()) + period;
    if total > sampled && (total - sampled) as f64 > chance { sampled } else { total }
}

fn variance(sample: &Sample) -> f64 {
    (sample.unsure_ns as f64).powi(2)
}

/// Changes the weights so that their sum is `target` to the nanosecond.
fn spread(samples: &mut [Sample], indices: &[usize], sampled: u64, target: u64) {
    let change = target as f64 - sampled as f64;
    let variance = |samples: &[Sample], index: &usize| variance(&samples[*index]);
    let total: f64 = indices.iter().map(|index| variance(samples, index)).sum();
    let stays_positive = |index: &usize| {
        samples[*index].weight_ns as f64 + change * variance(samples, index) / total >= 1.0
    };
    if total == 0.0 || !indices.iter().all(stays_positive) {
        return multiply(samples, indices, sampled, target);
    }
    // What the sum of changes grows by at each, so that they sum to the whole of it.
    let (mut before, mut given) = (0.0, 0_i64);
    for index in indices {
        before += variance(samples, index);
        let until = (change * (before / total)) as i64;
        let sample = &mut samples[*index];
        sample.weight_ns = sample.weight_ns.saturating_add_signed(until - given);
        given = until;
    }
}

/// All by the same factor: each sample gets what the scaled sum grows by at it.
fn multiply(samples: &mut [Sample], indices: &[usize], sampled: u64, target: u64) {
    let (mut before, mut given) = (0_u128, 0_u64);
    for index in indices {
        let sample = &mut samples[*index];
        before += u128::from(sample.weight_ns);
        let until = before * u128::from(target) / u128::from(sampled);
        let until = u64::try_from(until).unwrap_or(u64::MAX);
        sample.weight_ns = until - given;
        given = until;
    }
}

/// Waits that are not over, by thread and state, the latest last.
struct Ongoing(BTreeMap<(Arc<Thread>, State), Vec<Sample>>);

impl Ongoing {
    fn new(samples: Vec<Sample>) -> Self {
        let mut cells: BTreeMap<_, Vec<Sample>> = BTreeMap::new();
        for sample in samples {
            cells.entry((Arc::clone(&sample.thread), sample.state)).or_default().push(sample);
        }
        cells.values_mut().for_each(|waits| waits.sort_by_key(|wait| wait.start_time));
        Ongoing(cells)
    }

    /// What they can account for.
    fn most(&self, thread: &Arc<Thread>, state: State) -> u64 {
        let waits = self.0.get(&(Arc::clone(thread), state));
        waits.into_iter().flatten().fold(0, |sum, wait| sum.saturating_add(wait.weight_ns))
    }

    /// Puts this much time, or as much as they can account for, where they stand.
    fn account(
        &mut self,
        thread: &Arc<Thread>,
        state: State,
        missing: u64,
        samples: &mut Vec<Sample>,
    ) -> u64 {
        let mut left = missing;
        let waits = self.0.remove(&(Arc::clone(thread), state));
        for mut wait in waits.into_iter().flatten().rev() {
            wait.weight_ns = wait.weight_ns.min(left);
            left -= wait.weight_ns;
            samples.push(wait);
        }
        missing - left
    }
}

fn add_missing(
    samples: &mut Vec<Sample>,
    ongoing: &mut Ongoing,
    cells: &BTreeMap<(Arc<Thread>, State), Vec<usize>>,
    totals: &Totals,
    start_time: u64,
    scaling: &mut Scaling,
) {
    for ((thread, state), total) in totals {
        scaling.ledger_ns = scaling.ledger_ns.saturating_add(*total);
        let indices = cells.get(&(Arc::clone(thread), *state));
        let sampled = indices.into_iter().flatten().map(|i| samples[*i].weight_ns).sum::<u64>();
        let missing = total.saturating_sub(sampled);
        let accounted = ongoing.account(thread, *state, missing, samples);
        scaling.ongoing_ns = scaling.ongoing_ns.saturating_add(accounted);
        let missing = missing - accounted;
        if missing == 0 {
            continue;
        }
        scaling.not_sampled_ns = scaling.not_sampled_ns.saturating_add(missing);
        samples.push(Sample {
            thread: Arc::clone(thread),
            start_time,
            duration_ns: missing,
            weight_ns: missing,
            unsure_ns: 0,
            count: 0,
            state: *state,
            wait: None,
            place: Place::NotSampled,
            idle: false,
            request: None,
            counters: None,
        });
    }
}
