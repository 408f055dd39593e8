//! Durations on the command line.

use std::time::Duration;

/// Any. What the parser says of a wrong one is of its own inside.
///
/// # Errors
/// If it is no duration.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| "give a duration such as 250ms, 90s, 15m, 2h or 1d".to_owned())
}

/// For options of `top` and `netstack`.
///
/// # Errors
/// If it is no duration, or one that is too short or too long.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    let bounds = Duration::from_millis(100)..=Duration::from_secs(3600);
    if bounds.contains(&interval) {
        Ok(interval)
    } else {
        Err("an interval is 100 ms to an hour".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_duration_is_told_what_is_one() {
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        for text in ["abc", "", "5", "-1s", "99999999999999999999d"] {
            assert!(duration(text).unwrap_err().contains("90s, 15m"), "{text}");
            assert!(interval(text).unwrap_err().contains("90s, 15m"), "{text}");
        }
    }
}
