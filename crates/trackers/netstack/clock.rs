//! The distances of the kernel's clocks, for programs that only have the monotonic one.

use nix::time::{ClockId, clock_gettime};

use crate::record::netstack_clock;

/// A distance that changes by more was changed by somebody: setting, stepping, a leap second.
const STEP_NS: u64 = 10_000;
/// Readings of which the best is taken.
const READINGS: usize = 16;

fn ns(clock: ClockId) -> nix::Result<u64> {
    let time = clock_gettime(clock)?;
    Ok((time.tv_sec() as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec() as u64))
}

/// A clock's distance from the monotonic one: of several readings the one that took least time.
fn offset(clock: ClockId) -> nix::Result<u64> {
    let mut best = (u64::MAX, 0);
    for _ in 0..READINGS {
        let before = ns(ClockId::CLOCK_MONOTONIC)?;
        let there = ns(clock)?;
        let width = ns(ClockId::CLOCK_MONOTONIC)?.saturating_sub(before);
        best = best.min((width, there.wrapping_sub(before + width / 2)));
    }
    Ok(best.1)
}

/// What is to be written for the programs now, if anything: `last` is what was written before, and
/// `paused` whether a program found it wrong.
pub(super) fn refreshed(
    last: Option<&netstack_clock>,
    paused: bool,
) -> nix::Result<Option<netstack_clock>> {
    let real_offset = offset(ClockId::CLOCK_REALTIME)?;
    let tai_offset = offset(ClockId::CLOCK_TAI)?;
    let Some(last) = last else {
        return Ok(Some(netstack_clock { real_offset, tai_offset, valid_from: 0, paused: 0 }));
    };
    let moved = |now: u64, then: u64| (now.wrapping_sub(then) as i64).unsigned_abs() > STEP_NS;
    let real_moved = moved(real_offset, last.real_offset);
    if !paused && !real_moved && !moved(tai_offset, last.tai_offset) {
        return Ok(None);
    }
    // Stamps of another clock cannot be told from those of this one, but by being older than it.
    let valid_from = if real_moved { ns(ClockId::CLOCK_REALTIME)? } else { last.valid_from };
    Ok(Some(netstack_clock { real_offset, tai_offset, valid_from, paused: 0 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_nobody_sets_are_written_once() {
        let first = refreshed(None, false).unwrap().unwrap();
        assert!(refreshed(Some(&first), false).unwrap().is_none());
        // A program that was interrupted in between may have been wrong about it.
        let again = refreshed(Some(&first), true).unwrap().unwrap();
        assert_eq!(again.valid_from, 0);
    }

    #[test]
    fn stamps_from_before_a_step_are_not_believed() {
        let mut first = refreshed(None, false).unwrap().unwrap();
        first.real_offset = first.real_offset.wrapping_sub(1_000_000_000);
        let after = refreshed(Some(&first), false).unwrap().unwrap();
        let now = ns(ClockId::CLOCK_REALTIME).unwrap();
        assert!(now - after.valid_from < 1_000_000_000, "{after:?}");
        assert_ne!(after.real_offset, first.real_offset);
    }

    #[test]
    fn another_tai_offset_is_no_step_of_the_wall_clock() {
        let mut first = refreshed(None, false).unwrap().unwrap();
        first.tai_offset = first.tai_offset.wrapping_add(37_000_000_000);
        let after = refreshed(Some(&first), false).unwrap().unwrap();
        assert_eq!(after.valid_from, 0);
        assert_ne!(after.tai_offset, first.tai_offset);
    }
}
