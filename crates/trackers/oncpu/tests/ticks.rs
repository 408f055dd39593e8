//! What a sample stands for when the clock ticks late: the program itself, called as a function.

use proptest::prelude::*;

use crate::tests::support::cases;

unsafe extern "C" {
    fn underspan_test_begin_ticks(watched: u32);
    fn underspan_test_tick(time: u64, tid: u32, since: u64, waits: bool, period: u64) -> u64;
}

const PERIOD: u64 = 10_101_010;
const WATCHED: u32 = 5_007;
const OTHER: u32 = 600;
const NOBODY: u32 = 0;

/// A CPU's clock. Its ticks are whole periods apart, however late one of them comes.
struct Clock {
    ticks: u64,
}

impl Clock {
    fn start() -> Self {
        // SAFETY: it only forgets what this thread's tests before have left.
        unsafe { underspan_test_begin_ticks(WATCHED) };
        Clock { ticks: 1_000 }
    }

    /// So many periods are over, and the clock ticks so many nanoseconds late. How many periods the sample of the
    /// thread that it finds stands for; 0: it is none.
    fn ticks(&mut self, periods: u64, late: u64, finds: u32) -> u64 {
        self.finds(finds, periods, late, u64::MAX, false)
    }

    /// The same, of a thread that has `run` for so long when the tick is due, or by its ledger `waits` for so long.
    fn finds(&mut self, tid: u32, periods: u64, late: u64, run: u64, waits: bool) -> u64 {
        self.ticks += periods;
        let due = self.ticks * PERIOD;
        let since = due.saturating_sub(run);
        // SAFETY: it has no pointers.
        let weight = unsafe { underspan_test_tick(due + late, tid, since, waits, PERIOD) };
        assert!(weight.is_multiple_of(PERIOD), "{weight} ns");
        weight / PERIOD
    }
}

#[test]
fn each_tick_stands_for_a_period() {
    let mut clock = Clock::start();
    // Nobody knows what was before the first.
    assert_eq!(clock.ticks(1, 0, WATCHED), 1);
    assert_eq!(clock.ticks(1, 0, WATCHED), 1);
    assert_eq!(clock.ticks(1, 0, WATCHED), 1);
}

/// A hypervisor had the CPU: nothing else ran there meanwhile.
#[test]
fn a_tick_that_was_held_back_stands_for_all_periods_since_the_last() {
    let mut clock = Clock::start();
    clock.ticks(1, 0, WATCHED);
    assert_eq!(clock.ticks(3, 0, WATCHED), 3);
    assert_eq!(clock.ticks(1, 0, WATCHED), 1, "they are not given twice");
    assert_eq!(clock.ticks(7, PERIOD / 4, WATCHED), 7);
    assert_eq!(clock.ticks(1, 0, WATCHED), 1);
}

/// Also if it was another thread that ran, watched or not: whom a tick finds is as much by chance as ever.
#[test]
fn it_does_not_matter_whom_the_last_tick_found() {
    let mut clock = Clock::start();
    clock.ticks(1, 0, WATCHED);
    assert_eq!(clock.ticks(1, 0, OTHER), 0, "who is not watched has no sample");
    assert_eq!(clock.ticks(4, 0, WATCHED), 4);
    assert_eq!(clock.ticks(4, 0, OTHER), 0);
    assert_eq!(clock.ticks(1, 0, WATCHED), 1);
}

/// A virtual CPU that sleeps is not given its ticks, whether the last one found somebody or not: nobody ran while they
/// were due.
#[test]
fn ticks_of_a_cpu_that_slept_are_nobodys() {
    for before in [WATCHED, OTHER, NOBODY] {
        let mut clock = Clock::start();
        clock.ticks(1, 0, before);
        assert_eq!(clock.finds(WATCHED, 50, 0, PERIOD / 10, false), 1);
        assert_eq!(clock.ticks(1, 0, before), u64::from(before == WATCHED));
        assert_eq!(
            clock.finds(WATCHED, 20, PERIOD / 4, 0, false),
            1,
            "it came when the tick was due"
        );
        assert_eq!(clock.finds(WATCHED, 50, 0, PERIOD * 5 / 2, false), 3, "it ran at two before");
        assert_eq!(clock.ticks(3, 0, WATCHED), 3);
    }
}

/// The kernel did not tell that it came: since when it runs is not known.
#[test]
fn who_waits_by_the_ledger_has_the_tick_that_found_it() {
    let mut clock = Clock::start();
    clock.ticks(1, 0, WATCHED);
    assert_eq!(clock.finds(WATCHED, 5, 0, PERIOD * 5, true), 1);
}

/// What a tick is late by is less than the next one lacks.
#[test]
fn a_tick_that_is_a_little_late_is_no_more_than_one() {
    let mut clock = Clock::start();
    clock.ticks(1, 0, WATCHED);
    for _ in 0..100 {
        assert_eq!(clock.ticks(1, PERIOD / 2 - 1, WATCHED), 1);
        assert_eq!(clock.ticks(1, 0, WATCHED), 1);
    }
}

/// The clock goes on in its own time: the next tick comes that much sooner, and the time is not given twice.
#[test]
fn a_tick_that_is_very_late_has_the_next_ones_time() {
    let mut clock = Clock::start();
    clock.ticks(1, 0, WATCHED);
    assert_eq!(clock.ticks(1, PERIOD * 6 / 10, WATCHED), 2);
    assert_eq!(clock.ticks(1, 0, WATCHED), 0);
    assert_eq!(clock.ticks(1, 0, WATCHED), 1);
    assert_eq!(clock.ticks(3, PERIOD * 9 / 10, WATCHED), 4);
    assert_eq!(clock.ticks(2, PERIOD / 10, WATCHED), 1);
}

/// The kernel may stop the clock for a moment, and then it ticks at other times: again one for each period.
#[test]
fn a_clock_that_began_anew_ticks_once_a_period() {
    let mut clock = Clock::start();
    clock.ticks(1, 0, WATCHED);
    // First half a period later, then a little more and a little less, as clocks do.
    let late = |tick: u64| PERIOD / 2 + if tick.is_multiple_of(2) { 100 } else { 0 } - 50;
    let told: u64 = (0..1000).map(|tick| clock.finds(WATCHED, 1, late(tick), 0, false)).sum();
    assert!((998..=1001).contains(&told), "{told}");
}

proptest! {
    #![proptest_config(cases(200))]

    /// Of a CPU that is never idle, samples stand for as many periods as there were: those that were held back, and
    /// each once, however early or late in its half period a tick comes.
    #[test]
    fn a_busy_cpus_samples_are_its_time(
        ticks in proptest::collection::vec(
            (prop_oneof![4 => Just(1), 1 => 2..20u64], 0..PERIOD / 2), 1..300
        ),
    ) {
        let mut clock = Clock::start();
        clock.ticks(1, 0, WATCHED);
        let (mut periods, mut told) = (0, 0);
        for (since, late) in ticks {
            periods += since;
            told += clock.ticks(since, late, WATCHED);
            prop_assert_eq!(told, periods);
        }
    }
}
