//! Where sampling points lie: the arithmetic of `points.h`, called as a function. A thread's waits are made up, and
//! what their samples stand for is compared with how long they were.

use std::collections::BTreeMap;
use std::ffi::c_int;

use proptest::prelude::*;
use underspan_model::State;

use crate::record::thread;
use crate::tests::support::cases;

unsafe extern "C" {
    fn underspan_test_sample_weight(
        t: *mut thread,
        period: u64,
        idle_period: u64,
        state: u64,
        ns: u64,
    ) -> u64;
    fn underspan_test_would_sample(t: *mut thread, period: u64, state: u64, ns: u64) -> c_int;
}

const PERIOD: u64 = 10_000_000;
const IDLE_PERIOD: u64 = 100_000_000;
/// The longest that there may be.
const SECOND: u64 = 1_000_000_000;

/// So many periods of waiting: the denominator of a convergent of the golden ratio, for [`MOST_OFF`].
const PERIODS: u64 = 1_597;

/// Samples by which a share of [`PERIODS`] samples may be off, for each interval of a period that it consists of.
///
/// This is the inequality of Denjoy and Koksma. If p/q is a convergent of a, then of q points that are a apart on a
/// circle of length 1, any union of intervals has as many as its length times q, but for the variation of its indicator:
/// 2 for each interval. The step is a, and 987/1597 its convergent: so also of the golden ratio cut to whole nanoseconds,
/// which is less than 1/1597² from it. Points that are spread by chance are off by the square root of how many there are.
const MOST_OFF: u64 = 2;

/// A thread's waits, and what its samples stand for.
struct Sampled {
    thread: Box<thread>,
    period: u64,
    idle_period: u64,
}

impl Sampled {
    fn new(tid: u32) -> Self {
        Sampled::with(tid, PERIOD, IDLE_PERIOD)
    }

    fn with(tid: u32, period: u64, idle_period: u64) -> Self {
        let thread = Box::new(thread { tid, ..thread::default() });
        Sampled { thread, period, idle_period }
    }

    /// It has waited: how much that is the sample of, 0 if it is none.
    fn waits(&mut self, state: State, ns: u64) -> u64 {
        self.waits_for(false, state, ns)
    }

    fn waits_for(&mut self, request: bool, state: State, ns: u64) -> u64 {
        self.thread.serves = u8::from(request);
        let state = state.index() as u64;
        // SAFETY: the thread is whole, and nobody else's.
        unsafe {
            underspan_test_sample_weight(
                &raw mut *self.thread,
                self.period,
                self.idle_period,
                state,
                ns,
            )
        }
    }

    fn would_sample(&mut self, state: State, ns: u64) -> bool {
        let state = state.index() as u64;
        // SAFETY: as above.
        unsafe { underspan_test_would_sample(&raw mut *self.thread, self.period, state, ns) != 0 }
    }
}

/// Numbers by chance, the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A thread sleeps in several places by turns, always equally long in each, for [`PERIODS`] in all, and does something
/// else after each. How many samples each place has.
fn samples_by_place(
    thread: &mut Sampled,
    places: &[u64],
    mut between: impl FnMut(&mut Sampled),
) -> Vec<u64> {
    let mut samples = vec![0; places.len()];
    let turn: u64 = places.iter().sum();
    for _ in 0..PERIODS * PERIOD / turn {
        for (place, ns) in places.iter().enumerate() {
            samples[place] += thread.waits(State::Sleep, *ns) / PERIOD;
            between(thread);
        }
    }
    samples
}

#[track_caller]
fn assert_shares(what: &str, places: &[u64], samples: &[u64]) {
    let turn: u64 = places.iter().sum();
    assert!(PERIOD.is_multiple_of(turn), "a place is the same part of each period");
    assert_eq!(samples.iter().sum::<u64>(), PERIODS, "{what}: one sample a period");
    let intervals = PERIOD / turn;
    for (ns, found) in places.iter().zip(samples) {
        let injected = PERIODS as f64 * *ns as f64 / turn as f64;
        let off = (*found as f64 - injected).abs();
        let bound = (MOST_OFF * intervals) as f64;
        assert!(off <= bound, "{what}: {ns} ns of {turn}: {found}, not {injected} ± {bound}");
    }
}

/// Places of one state, by turns: each turn is a whole part of a period, so that all lie on the same string each time.
const PLACES: [&[u64]; 4] = [
    &[3_000_000, 2_000_000],
    &[6_000_000, 4_000_000],
    &[1_000_000, 1_500_000, 2_500_000],
    &[500_000, 7_000_000, 2_500_000],
];

#[test]
fn short_waits_by_turns_have_their_shares() {
    for places in PLACES {
        for tid in 1..=64 {
            let samples = samples_by_place(&mut Sampled::new(tid), places, |_| {});
            assert_shares(&format!("alone, thread {tid}"), places, &samples);
        }
    }
}

/// The same where the thread waits for a CPU in between, and for events: those have samples of their own, and must not
/// take numbers from the sequence of the sleeps.
#[test]
fn short_waits_by_turns_have_their_shares_among_waits_of_other_kinds() {
    for places in PLACES {
        for tid in 1..=64 {
            let samples = samples_by_place(&mut Sampled::new(tid), places, |thread| {
                thread.waits(State::PollWait, 2_000_000);
            });
            assert_shares(&format!("with polls, thread {tid}"), places, &samples);

            let mut dice = Dice(u64::from(tid));
            let samples = samples_by_place(&mut Sampled::new(tid), places, |thread| {
                thread.waits(State::Runnable, dice.below(PERIOD));
                thread.waits(State::PollWait, dice.below(PERIOD / 2));
            });
            assert_shares(&format!("with others by chance, thread {tid}"), places, &samples);
        }
    }
}

/// Where waits are as long as chance has it, so is how many of the points fall on each: no sequence does better. The
/// shares are right on average, so many threads together are right to less than one in a hundred.
#[test]
fn waits_of_random_lengths_have_their_shares_on_average() {
    const THREADS: u32 = 64;
    let (mut waited, mut weight) = ([0; 3], [0; 3]);
    for tid in 1..=THREADS {
        let mut thread = Sampled::new(tid);
        let mut dice = Dice(u64::from(tid));
        let end = waited.iter().sum::<u64>() + PERIODS * PERIOD;
        while waited.iter().sum::<u64>() < end {
            for (place, longest) in [2_000_000, 3_000_000, 5_000_000].into_iter().enumerate() {
                let ns = dice.below(longest);
                waited[place] += ns;
                weight[place] += thread.waits(State::Sleep, ns);
                thread.waits(State::Runnable, dice.below(PERIOD));
            }
        }
    }
    let all = waited.iter().sum::<u64>() as f64;
    for (waited, weight) in waited.into_iter().zip(weight) {
        let share = waited as f64 / all;
        // Four standard deviations of a share of as many points as there were.
        let points = all / PERIOD as f64;
        let bound = 4.0 * (share * (1.0 - share) / points).sqrt();
        assert!(bound < 0.01);
        let found = weight as f64 / all;
        assert!((found - share).abs() < bound, "{found}, not {share} ± {bound}");
    }
}

const STATES: [State; 3] = [State::Sleep, State::PollWait, State::Runnable];

/// State, whether it is for a request, and millionths of its period.
fn stretches() -> impl Strategy<Value = Vec<(usize, bool, u64)>> {
    proptest::collection::vec((0..STATES.len(), any::<bool>(), 0..1_300_000u64), 0..400)
}

proptest! {
    #![proptest_config(cases(200))]

    /// What is still carried is less than a period of the string, however it was put together.
    #[test]
    fn weights_are_the_time_but_for_less_than_a_period(
        tid in 1..1u32 << 22,
        periods in prop_oneof![
            Just((PERIOD, IDLE_PERIOD)), Just((SECOND, SECOND)), Just((1_000, 10_000))
        ],
        stretches in stretches(),
    ) {
        let mut thread = Sampled::with(tid, periods.0, periods.1);
        let mut strings = BTreeMap::<_, (u64, u64)>::new();
        for (state, request, millionths) in stretches {
            let period = if request { periods.1 } else { periods.0 };
            let ns = period * millionths / 1_000_000;
            let (waited, weight) = strings.entry((state, request)).or_default();
            *waited += ns;
            *weight += thread.waits_for(request, STATES[state], ns);
            prop_assert!(weight.abs_diff(*waited) < period, "{weight} of {waited}");
        }
    }

    /// Which of a state's stretches are samples is decided by these alone.
    #[test]
    fn no_state_takes_another_ones_points(tid in 1..1u32 << 22, stretches in stretches()) {
        let mut together = Sampled::new(tid);
        let mut alone = BTreeMap::new();
        for (state, request, millionths) in stretches {
            let ns = PERIOD * millionths / 1_000_000;
            let alone = alone.entry((state, request)).or_insert_with(|| Sampled::new(tid));
            prop_assert_eq!(
                together.waits_for(request, STATES[state], ns),
                alone.waits_for(request, STATES[state], ns)
            );
        }
    }

    /// Who asks beforehand whether a wait will be a sample is told the truth, and changes nothing.
    #[test]
    fn what_would_be_a_sample_is_one(tid in 1..1u32 << 22, stretches in stretches()) {
        let (mut asked, mut not_asked) = (Sampled::new(tid), Sampled::new(tid));
        for (state, _, millionths) in stretches {
            let (state, ns) = (STATES[state], PERIOD * millionths / 1_000_000);
            let would = asked.would_sample(state, ns);
            let weight = asked.waits(state, ns);
            prop_assert_eq!(would, weight > 0, "{} ns", ns);
            prop_assert_eq!(weight, not_asked.waits(state, ns));
        }
    }
}
