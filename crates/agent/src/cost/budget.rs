//! Hard limits of the agent's own use, and when they count as exceeded.
//!
//! The meter says that load must be shed; what to shed is for the caller. It waits a little before it
//! says so and longer before it takes it back, so that load is not shed and taken up by turns.

use std::fmt;
use std::time::{Duration, Instant};

use super::Usage;

/// Readings above the budget in a row before it counts as exceeded.
const RISE: u32 = 3;
/// Readings in a row below …
const FALL: u32 = 10;
/// … this share of the budget, before it counts as kept again.
const CALM: f64 = 0.8;

/// What the agent may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// CPU time over wall time: 0.02 is 2 % of one CPU.
    pub cpu_share: f64,
    /// Resident memory in bytes.
    pub rss_bytes: u64,
}

impl Default for Budget {
    /// 5 % of one CPU and 256 MiB: far above normal use, to stop a runaway.
    fn default() -> Self {
        Budget { cpu_share: 0.05, rss_bytes: 256 << 20 }
    }
}

/// By how much the budget is exceeded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Excess {
    /// CPU share over the last reading's interval.
    pub cpu_share: f64,
    /// Resident memory in bytes.
    pub rss_bytes: u64,
    /// What was allowed.
    pub budget: Budget,
}

/// The message to print when load is shed.
impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the agent uses {:.1} % of one CPU and {} MiB; its budget is {:.1} % and {} MiB",
            self.cpu_share * 100.0,
            self.rss_bytes >> 20,
            self.budget.cpu_share * 100.0,
            self.budget.rss_bytes >> 20,
        )
    }
}

/// What a reading means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Within the budget; nothing changed.
    Within,
    /// The budget is exceeded since this reading: shed load and say so.
    Exceeded(Excess),
    /// It still is, though load was shed: shed more.
    StillExceeded(Excess),
    /// It no longer is: take up again what was shed.
    Recovered,
}

/// Compares readings with the budget.
#[derive(Clone, Debug)]
pub struct Meter {
    budget: Budget,
    last: (Instant, Usage),
    exceeded: bool,
    above: u32,
    calm: u32,
    readings_exceeded: u64,
    cpu_share: f64,
}

impl Meter {
    /// Begins with a reading taken now.
    pub fn new(budget: Budget, usage: Usage) -> Self {
        Meter {
            budget,
            last: (Instant::now(), usage),
            exceeded: false,
            above: 0,
            calm: 0,
            readings_exceeded: 0,
            cpu_share: 0.0,
        }
    }

    /// Judges a reading; take one about every second.
    pub fn judge(&mut self, usage: Usage) -> Verdict {
        self.judge_at(usage, Instant::now())
    }

    fn judge_at(&mut self, usage: Usage, now: Instant) -> Verdict {
        let (then, before) = self.last;
        let wall = now.duration_since(then).max(Duration::from_millis(1));
        self.last = (now, usage);
        self.cpu_share = usage.cpu.saturating_sub(before.cpu).as_secs_f64() / wall.as_secs_f64();

        let excess =
            Excess { cpu_share: self.cpu_share, rss_bytes: usage.rss_bytes, budget: self.budget };
        let used = (self.cpu_share / self.budget.cpu_share)
            .max(usage.rss_bytes as f64 / self.budget.rss_bytes as f64);
        self.above = if used > 1.0 { self.above + 1 } else { 0 };
        self.calm = if used < CALM { self.calm + 1 } else { 0 };
        self.readings_exceeded += u64::from(used > 1.0);

        if self.above >= RISE {
            // Counts anew, so that what was shed has time to show.
            self.above = 0;
            let first = !std::mem::replace(&mut self.exceeded, true);
            return if first { Verdict::Exceeded(excess) } else { Verdict::StillExceeded(excess) };
        }
        if self.exceeded && self.calm >= FALL {
            self.exceeded = false;
            return Verdict::Recovered;
        }
        Verdict::Within
    }

    /// Whether load should be shed now.
    pub fn is_exceeded(&self) -> bool {
        self.exceeded
    }

    /// How many readings were above the budget, in all.
    pub fn readings_exceeded(&self) -> u64 {
        self.readings_exceeded
    }

    /// The CPU share at the last reading.
    pub fn cpu_share(&self) -> f64 {
        self.cpu_share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Budget = Budget { cpu_share: 0.1, rss_bytes: 100 << 20 };

    /// A meter fed with one reading a second.
    struct Feed {
        meter: Meter,
        usage: Usage,
        now: Instant,
    }

    impl Feed {
        fn new() -> Self {
            let meter = Meter::new(BUDGET, Usage::default());
            let now = meter.last.0;
            Feed { meter, usage: Usage::default(), now }
        }

        fn second(&mut self, cpu_share: f64, rss_mib: u64) -> Verdict {
            self.now += Duration::from_secs(1);
            self.usage.cpu += Duration::from_secs_f64(cpu_share);
            self.usage.rss_bytes = rss_mib << 20;
            self.meter.judge_at(self.usage, self.now)
        }
    }

    #[test]
    fn a_single_spike_sheds_nothing() {
        let mut feed = Feed::new();
        for share in [0.05, 0.9, 0.9, 0.05, 0.9] {
            assert_eq!(feed.second(share, 10), Verdict::Within);
        }
        assert_eq!(feed.meter.readings_exceeded(), 3);
    }

    #[test]
    fn lasting_excess_is_told_with_figures_until_it_has_been_calm_for_a_while() {
        let mut feed = Feed::new();
        for rss in [101, 200] {
            assert_eq!(feed.second(0.0, rss), Verdict::Within);
        }
        let Verdict::Exceeded(excess) = feed.second(0.5, 30) else { panic!("not exceeded") };
        assert_eq!(
            excess.to_string(),
            "the agent uses 50.0 % of one CPU and 30 MiB; its budget is 10.0 % and 100 MiB"
        );
        let again: Vec<_> = (0..3).map(|_| feed.second(0.5, 30)).collect();
        assert!(matches!(again[..], [Verdict::Within, Verdict::Within, Verdict::StillExceeded(_)]));
        // Just below the budget is not calm: load taken up again would exceed it.
        for _ in 0..30 {
            assert_eq!(feed.second(0.09, 30), Verdict::Within);
        }
        assert!(feed.meter.is_exceeded());
        let after: Vec<_> = (0..10).map(|_| feed.second(0.02, 30)).collect();
        assert_eq!(after.last(), Some(&Verdict::Recovered));
        assert!(!feed.meter.is_exceeded());
    }
}
