//! What a sample stands for when the clock ticks late: the program itself, called as a function.

use proptest::prelude::*;

use crate::tests::support::cases;

unsafe extern "C" {
    fn underspan_test_begin_ticks(watched: u32);
    fn underspan_test_tick(time: u64, tid: u32, period: u64) -> u64;
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
        self.ticks += periods;
        // SAFETY: it has no pointers.
        let weight = unsafe { underspan_test_tick(self.ticks * PERIOD + late, finds, PERIOD) };
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

/// A virtual CPU that sleeps is given its ticks late: nobody ran while they were due.
#[test]
fn after_an_idle_tick_the_time_since_is_not_known() {
    let mut clock = Clock::start();
    clock.ticks(1, 0, WATCHED);
    assert_eq!(clock.ticks(1, 0, NOBODY), 0);
    assert_eq!(clock.ticks(50, PERIOD / 2, WATCHED), 1);
    assert_eq!(clock.ticks(3, 0, WATCHED), 3, "from here on it is");
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
