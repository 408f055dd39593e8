//! How long an interval of what is shown live may be.

use std::time::Duration;

/// For options of `top` and `netstack`.
///
/// # Errors
/// If it is no duration, or one that is too short or too long.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let bounds = Duration::from_millis(100)..=Duration::from_secs(3600);
    if bounds.contains(&interval) {
        Ok(interval)
    } else {
        Err("an interval is 100 ms to an hour".to_owned())
    }
}
