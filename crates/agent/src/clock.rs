//! The kernel's monotonic clock → Unix time.
//!
//! BPF stamps events with `CLOCK_MONOTONIC`; tables hold Unix time. The offset between the two is
//! read as a bracket (monotonic, real, monotonic): the real time lies between two monotonic ones, so
//! half the bracket bounds the error. The tightest of several brackets is kept, because a bracket in
//! which the thread was interrupted is wide.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::error::{Error, Result};

/// How many brackets are read to keep the tightest.
const BRACKETS: usize = 16;

/// A change of the offset between two readings above which the clock was stepped.
const STEP_NS: u64 = 1_000_000;

/// The kernel slews a clock by at most 500 ppm, so a longer pause between readings allows more.
const SLEW_PPM: u64 = 500;

/// One reading of the offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    /// Unix time minus monotonic time, in ns.
    offset_ns: i64,
    /// The bracket's width in ns: the offset is right to half of it.
    width_ns: u64,
    /// When it was read, monotonic ns.
    at_ns: u64,
}

/// A jump of the wall clock (someone set it, or NTP stepped it). Rows written before it keep the
/// times they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// By how much Unix time jumped, in ns; negative when it went back.
    pub by_ns: i64,
    /// How long before now it happened at most.
    pub within: Duration,
}

/// Converts monotonic times to Unix times with the offset last read.
#[derive(Clone, Debug)]
pub struct Clock {
    last: Reading,
}

impl Clock {
    /// Reads the offset.
    ///
    /// # Errors
    /// If the kernel has no such clocks.
    pub fn new() -> Result<Self> {
        Ok(Clock { last: read()? })
    }

    /// Reads the offset again, which takes some microseconds: call it before times are converted.
    /// Returns the step if the wall clock was set since the last reading. From now on events are
    /// converted with the new offset.
    ///
    /// # Errors
    /// If the clocks cannot be read. The old offset stays in force.
    pub fn refresh(&mut self) -> Result<Option<Step>> {
        let now = read()?;
        Ok(self.apply(now))
    }

    /// Unix time in ns of a monotonic time in ns.
    pub fn to_unix(&self, mono_ns: u64) -> u64 {
        mono_ns.saturating_add_signed(self.last.offset_ns)
    }

    /// The bracket's width: a converted time is right to half of it.
    pub fn width_ns(&self) -> u64 {
        self.last.width_ns
    }

    fn apply(&mut self, now: Reading) -> Option<Step> {
        let before = std::mem::replace(&mut self.last, now);
        let by_ns = now.offset_ns.saturating_sub(before.offset_ns);
        let elapsed_ns = now.at_ns.saturating_sub(before.at_ns);
        let slew_ns = elapsed_ns.saturating_mul(SLEW_PPM) / 1_000_000;
        (by_ns.unsigned_abs() > STEP_NS.max(slew_ns))
            .then(|| Step { by_ns, within: Duration::from_nanos(elapsed_ns) })
    }
}

/// Monotonic time now, in ns, on the clock that BPF stamps events with.
///
/// # Errors
/// If the kernel has no such clock.
pub fn monotonic_ns() -> Result<u64> {
    clock_ns(ClockId::CLOCK_MONOTONIC)
}

/// Unix time now, in ns.
///
/// # Errors
/// If the kernel has no such clock.
pub fn unix_ns() -> Result<u64> {
    clock_ns(ClockId::CLOCK_REALTIME)
}

fn clock_ns(id: ClockId) -> Result<u64> {
    let time = clock_gettime(id).map_err(Error::system("clock_gettime"))?;
    Ok(Duration::from(time).as_nanos() as u64)
}

fn read() -> Result<Reading> {
    let mut best = bracket()?;
    for _ in 1..BRACKETS {
        let next = bracket()?;
        if next.width_ns < best.width_ns {
            best = next;
        }
    }
    Ok(best)
}

fn bracket() -> Result<Reading> {
    let before = monotonic_ns()?;
    let real = unix_ns()?;
    let after = monotonic_ns()?;
    let width_ns = after.saturating_sub(before);
    let at_ns = before + width_ns / 2;
    Ok(Reading { offset_ns: real.wrapping_sub(at_ns) as i64, width_ns, at_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn clock(offset_ns: i64) -> Clock {
        Clock { last: Reading { offset_ns, width_ns: 40, at_ns: SECOND } }
    }

    fn reading(offset_ns: i64, at_ns: u64) -> Reading {
        Reading { offset_ns, width_ns: 40, at_ns }
    }

    #[test]
    fn now_converts_to_now() {
        let clock = Clock::new().unwrap();
        let mono = monotonic_ns().unwrap();
        let real = unix_ns().unwrap();
        assert!(clock.to_unix(mono).abs_diff(real) < 1_000_000, "{clock:?}");
        assert!(clock.width_ns() < 1_000_000, "{clock:?}");
    }

    #[test]
    fn an_undisturbed_clock_reports_no_step() {
        let mut clock = Clock::new().unwrap();
        for _ in 0..100 {
            assert_eq!(clock.refresh().unwrap(), None);
        }
    }

    #[test]
    fn slewing_is_no_step_even_after_a_pause() {
        let mut clock = clock(5);
        assert_eq!(clock.apply(reading(5 + 500_000, 2 * SECOND)), None);
        // Ten seconds without a reading: 5 ms of slew.
        assert_eq!(clock.apply(reading(5 + 500_000 + 4_900_000, 12 * SECOND)), None);
    }

    #[test]
    fn a_step_is_reported_once_and_then_in_force() {
        let mut clock = clock(5 * SECOND as i64);
        let step = clock.apply(reading(3 * SECOND as i64, 2 * SECOND)).unwrap();
        assert_eq!(step, Step { by_ns: -2 * SECOND as i64, within: Duration::from_secs(1) });
        assert_eq!(clock.to_unix(SECOND), 4 * SECOND);
        assert_eq!(clock.apply(reading(3 * SECOND as i64, 3 * SECOND)), None);
    }

    #[test]
    fn a_time_before_the_epoch_is_the_epoch() {
        assert_eq!(clock(-5).to_unix(3), 0);
    }
}
