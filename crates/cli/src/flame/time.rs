//! Times on the command line.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// An instant: `10m` ago, `12:30`, `2026-03-02 12:30` (both UTC), `2026-03-02T12:30:00+01:00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instant {
    /// So many nanoseconds ago.
    Ago(u64),
    /// Nanoseconds since the Unix epoch.
    At(u64),
    /// Nanoseconds since midnight of today, UTC.
    Today(u64),
}

/// From one instant to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    from: Instant,
    until: Instant,
}

/// Nanoseconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

impl Instant {
    /// Reads one.
    pub(crate) fn parse(text: &str) -> Result<Instant, String> {
        let text = text.trim();
        if text == "now" {
            return Ok(Instant::Ago(0));
        }
        if let Ok(ago) = humantime::parse_duration(text) {
            return Ok(Instant::Ago(u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX)));
        }
        if let Ok(time) = text.parse::<Timestamp>() {
            return at(time);
        }
        // A bare date is the midnight that begins it.
        if let Ok(time) = text.parse::<DateTime>() {
            return time
                .to_zoned(TimeZone::UTC)
                .map_err(|e| e.to_string())
                .and_then(|t| at(t.timestamp()));
        }
        if let Ok(time) = text.parse::<Time>() {
            let since_midnight = time.duration_since(Time::midnight()).as_nanos();
            return Ok(Instant::Today(u64::try_from(since_midnight).unwrap_or(0)));
        }
        Err(String::from(
            "give a time such as 10m (ago), 12:30, '2026-03-02 12:30' or now; times are UTC unless they have an offset",
        ))
    }

    /// In nanoseconds since the Unix epoch.
    pub(crate) fn resolve(self, now: u64) -> u64 {
        match self {
            Instant::Ago(ns) => now.saturating_sub(ns),
            Instant::At(ns) => ns,
            Instant::Today(ns) => {
                let today = i64::try_from(now).ok().map(|ns| Timestamp::from_nanosecond(ns.into()));
                let midnight = today
                    .and_then(Result::ok)
                    .map(|time| time.to_zoned(TimeZone::UTC))
                    .and_then(|time: Zoned| time.start_of_day().ok());
                let midnight = midnight.map_or(0, |time| time.timestamp().as_nanosecond());
                u64::try_from(midnight).unwrap_or(0).saturating_add(ns)
            }
        }
    }
}

fn at(time: Timestamp) -> Result<Instant, String> {
    u64::try_from(time.as_nanosecond())
        .map(Instant::At)
        .map_err(|_| String::from("a time before 1970 cannot have been watched"))
}

impl Range {
    /// Reads `FROM..UNTIL`; without UNTIL it is now.
    pub(crate) fn parse(text: &str) -> Result<Range, String> {
        let (from, until) = text
            .split_once("..")
            .ok_or("give a range as FROM..UNTIL, such as 30m..15m or 12:00..12:10")?;
        let until = if until.trim().is_empty() { "now" } else { until };
        Ok(Range { from: Instant::parse(from)?, until: Instant::parse(until)? })
    }

    /// In nanoseconds since the Unix epoch, the first included.
    pub(crate) fn resolve(self, now: u64) -> (u64, u64) {
        (self.from.resolve(now), self.until.resolve(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    /// 2026-03-02 10:15:00 UTC.
    const NOW: u64 = 1_772_446_500 * SECOND;

    fn parse(text: &str) -> u64 {
        Instant::parse(text).unwrap().resolve(NOW)
    }

    #[test]
    fn every_way_to_say_a_time() {
        assert_eq!(parse("90s"), NOW - 90 * SECOND);
        assert_eq!(parse("now"), NOW);
        assert_eq!(parse("10:14"), NOW - 60 * SECOND);
        assert_eq!(parse("10:14:30.5"), NOW - 29_500_000_000);
        assert_eq!(parse("2026-03-02 10:00"), NOW - 900 * SECOND);
        assert_eq!(parse("2026-03-02T11:15:00+01:00"), NOW);
        assert_eq!(parse("2026-03-02"), NOW - (10 * 60 + 15) * 60 * SECOND);
        assert!(Instant::parse("yesterday").is_err());
        assert!(Instant::parse("1950-01-01").is_err());
    }

    #[test]
    fn ranges_end_now_unless_they_say_when() {
        assert_eq!(
            Range::parse("2m..1m").unwrap().resolve(NOW),
            (NOW - 120 * SECOND, NOW - 60 * SECOND)
        );
        assert_eq!(Range::parse("10:00..").unwrap().resolve(NOW), (NOW - 900 * SECOND, NOW));
        assert!(Range::parse("10:00").is_err());
        assert!(Range::parse("..10:00").is_err());
    }
}
