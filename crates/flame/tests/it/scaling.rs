//! Scaled samples sum to the ledger, and time is put where it was spent.

use std::sync::Arc;

use proptest::prelude::*;
use underspan_flame::{Place, Sample, Totals, scale};
use underspan_model::State;

use crate::story::{self, sample, stack, thread};
use crate::sums::samples;

const MS: u64 = 1_000_000;

fn sum<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> u64 {
    samples.into_iter().map(|sample| sample.weight_ns).sum()
}

proptest! {
    #[test]
    fn every_cell_sums_to_the_ledger(
        mut samples in samples(),
        totals in prop::collection::btree_map((1..4_u32, 0..17_u8), 0..1_u64 << 42, 0..20),
    ) {
        samples.retain(|sample| sample.place != Place::NotSampled);
        let totals: Totals = totals
            .into_iter()
            .map(|((tid, state), ns)| ((story::thread(tid, "worker"), State::from_index(state).unwrap()), ns))
            .collect();
        let sampled = sum(&samples);
        let scaling = scale(&mut samples, Vec::new(), &totals, story::T0);
        for ((thread, state), ns) in &totals {
            let cell = samples.iter().filter(|s| s.thread == *thread && s.state == *state);
            prop_assert_eq!(sum(cell), *ns);
        }
        prop_assert_eq!(sum(&samples), scaling.ledger_ns + scaling.without_ledger_ns);
        prop_assert_eq!(scaling.sampled_ns + scaling.without_ledger_ns, sampled);
        let not_sampled = samples.iter().filter(|sample| sample.place == Place::NotSampled);
        prop_assert_eq!(sum(not_sampled), scaling.not_sampled_ns);
    }
}

fn one_cell(weights: &[u64], state: State, total: u64) -> (Vec<Sample>, underspan_flame::Scaling) {
    let (worker, code) = (thread(7, "worker"), stack(&["python work f.py:1"]));
    let mut samples: Vec<_> =
        weights.iter().map(|ms| sample(&worker, 0, *ms, state, &code)).collect();
    let totals = Totals::from([((worker, state), total)]);
    let scaling = scale(&mut samples, Vec::new(), &totals, story::T0);
    (samples, scaling)
}

/// Of a worker: a second of waiting for a lock in its requests, and eight of waiting for one.
#[test]
fn what_is_coarse_makes_up_for_what_chance_left_out() {
    let worker = thread(7, "worker");
    let of = |weight, unsure_ns, line: &str| Sample {
        unsure_ns,
        ..sample(&worker, 0, weight, State::LockWait, &stack(&[line]))
    };
    let queue = || of(8_000, 900 * MS, "python worker thread.py:81");
    let lock = || of(1_000, 90 * MS, "python export reports.py:88");
    let scaled = |samples: [Sample; 2], total: u64| {
        let mut samples = samples.to_vec();
        let totals = Totals::from([((worker.clone(), State::LockWait), total * MS)]);
        let scaling = scale(&mut samples, Vec::new(), &totals, story::T0);
        assert_eq!(scaling.not_sampled_ns, 0);
        [samples[0].weight_ns, samples[1].weight_ns].map(|ns| ns as f64 / MS as f64)
    };
    for (total, error) in [(9_150, 150.0), (8_800, -200.0)] {
        let [idle, waited] = scaled([queue(), lock()], total);
        assert!((waited - 1_000.0).abs() < 2.5, "{waited} ms");
        assert!((idle - 8_000.0 - error).abs() < 2.5, "{idle} ms");
    }
    // Far more was sampled than there was: nothing can be taken for exact.
    let [idle, waited] = scaled([queue(), lock()], 500);
    assert!((idle / waited - 8.0).abs() < 0.001, "{idle} and {waited} ms");
}

#[test]
fn what_chance_left_out_is_spread_over_the_samples() {
    // A hundred looks at a running thread; three more would have been right.
    let (samples, scaling) = one_cell(&[10; 100], State::Running, 1030 * MS);
    assert_eq!(samples.len(), 100);
    assert_eq!(samples[0].weight_ns, 10_300_000);
    assert_eq!((scaling.not_sampled_ns, scaling.notable.len()), (0, 0));
    assert!((scaling.greatest_factor - 1.03).abs() < 1e-9);
}

#[test]
fn a_wait_that_goes_on_is_no_part_of_those_that_ended() {
    // Ten sleeps of a second were seen to end; the eleventh has lasted half of one.
    let (samples, scaling) = one_cell(&[1000; 10], State::Sleep, 10_500 * MS);
    assert_eq!(sum(samples.iter().filter(|s| s.stack().is_some())), 10_000 * MS);
    assert_eq!(scaling.not_sampled_ns, 500 * MS);
    assert_eq!(samples.last().map(|s| &s.place), Some(&Place::NotSampled));
    assert!((scaling.greatest_factor - 1.0).abs() < f64::EPSILON);
}

#[test]
fn a_wait_that_goes_on_has_the_time_that_has_no_sample() {
    // A thread slept for a second ten times; since half a second it is somewhere else.
    let (sleeper, code, now) = (thread(7, "worker"), stack(&["python f"]), stack(&["python g"]));
    let sleep = |start, ms, at| sample(&sleeper, start, ms, State::Sleep, at);
    let totals = Totals::from([((Arc::clone(&sleeper), State::Sleep), 10_500 * MS)]);
    let mut samples: Vec<_> = (0..10).map(|i| sleep(i * 1000, 1000, &code)).collect();
    // Where it may end is not known: the ledger knows better.
    let scaling = scale(&mut samples, vec![sleep(10_000, 60_000, &now)], &totals, story::T0);
    let at = |stack| sum(samples.iter().filter(|s| s.stack() == Some(stack)));
    assert_eq!((at(&code), at(&now), sum(&samples)), (10_000 * MS, 500 * MS, 10_500 * MS));
    assert_eq!((scaling.ongoing_ns, scaling.not_sampled_ns), (500 * MS, 0));

    // Not even if it is so short that it could be chance.
    let totals = Totals::from([((Arc::clone(&sleeper), State::Sleep), 10_050 * MS)]);
    let mut samples: Vec<_> = (0..10).map(|i| sleep(i * 1000, 1000, &code)).collect();
    scale(&mut samples, vec![sleep(10_000, 50, &now)], &totals, story::T0);
    assert_eq!(sum(samples.iter().filter(|s| s.stack() == Some(&now))), 50 * MS);
}

#[test]
fn it_accounts_for_no_more_than_it_lasts_and_for_no_other_state() {
    let (worker, code) = (thread(7, "worker"), stack(&["python f"]));
    let totals = Totals::from([
        ((Arc::clone(&worker), State::LockWait), 900 * MS),
        ((Arc::clone(&worker), State::Sleep), 100 * MS),
    ]);
    let mut samples = Vec::new();
    let ongoing = vec![sample(&worker, 0, 600, State::LockWait, &code)];
    let scaling = scale(&mut samples, ongoing, &totals, story::T0);
    assert_eq!((scaling.ongoing_ns, scaling.not_sampled_ns), (600 * MS, 400 * MS));
    assert_eq!(sum(&samples), 1000 * MS);

    // Of a thread that the ledger does not have nothing is known.
    let ongoing = vec![sample(&thread(9, "gone"), 0, 600, State::LockWait, &code)];
    let mut samples = Vec::new();
    scale(&mut samples, ongoing, &Totals::new(), story::T0);
    assert!(samples.is_empty());
}

#[test]
fn samples_that_claim_too_much_are_told() {
    let (samples, scaling) = one_cell(&[10, 10, 10], State::LockWait, 3 * MS);
    assert_eq!(sum(&samples), 3 * MS);
    let cell = &scaling.notable[0];
    assert_eq!((cell.samples, cell.sampled_ns, cell.ledger_ns), (3, 30 * MS, 3 * MS));
    assert!((cell.factor - 0.1).abs() < 1e-9);
}

#[test]
fn a_thread_without_a_ledger_keeps_what_was_sampled() {
    let code = stack(&["native work"]);
    let mut samples = vec![sample(&thread(9, "gone"), 0, 30, State::Running, &code)];
    let scaling = scale(&mut samples, Vec::new(), &Totals::new(), story::T0);
    assert_eq!(
        (sum(&samples), scaling.without_ledger_ns, scaling.ledger_ns),
        (30 * MS, 30 * MS, 0)
    );
    assert!(Arc::ptr_eq(samples[0].stack().unwrap(), &code));
}
