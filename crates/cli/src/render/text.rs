//! Small matters of text: wrapping, cutting, sizes, times.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Without control characters: what came over the network must not steer the terminal.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Breaks text at spaces so that no line is longer than `width`, unless a word is.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace().map(clean) {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}

/// Cut to `width`, with an ellipsis in place of the end.
pub(super) fn cut_end(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Cut to `width`, with an ellipsis in place of the start: a thread's number is at its end.
pub(super) fn cut_start(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let end = text.chars().skip(length + 1 - width.max(1));
    std::iter::once('…').chain(end).collect()
}

/// `412 B`, `1.8 kB`.
pub(super) fn bytes(n: u64) -> String {
    match n {
        0..1000 => format!("{n} B"),
        1000..1_000_000 => format!("{:.1} kB", n as f64 / 1e3),
        _ => format!("{:.1} MB", n as f64 / 1e6),
    }
}

/// `2026-03-02 10:15:00.001 UTC`.
pub(crate) fn instant(unix_ns: u64) -> String {
    strftime(unix_ns, "%Y-%m-%d %H:%M:%S%.3f UTC")
}

/// `10:15:00`, UTC.
pub(super) fn time_of_day(unix_ns: u64) -> String {
    strftime(unix_ns, "%H:%M:%S")
}

/// `10:15:00.123456789`, UTC: as the end of a row's `start_time` reads.
pub(super) fn exact_time_of_day(unix_ns: u64) -> String {
    strftime(unix_ns, "%H:%M:%S%.9f")
}

fn strftime(unix_ns: u64, format: &str) -> String {
    match Timestamp::from_nanosecond(i128::from(unix_ns)) {
        Ok(time) => time.to_zoned(TimeZone::UTC).strftime(format).to_string(),
        // Beyond the year 9999.
        Err(_) => format!("{unix_ns} ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_at_either_end() {
        assert_eq!(cut_end("/orders/list", 8), "/orders…");
        assert_eq!(cut_start("ThreadPoolExecutor-0_3", 8), "…tor-0_3");
        assert_eq!(cut_start("main", 8), "main");
    }

    #[test]
    fn times_that_cannot_be_are_still_printed() {
        assert_eq!(instant(1_772_446_500_001_000_000), "2026-03-02 10:15:00.001 UTC");
        assert_eq!(instant(u64::MAX), "2554-07-21 23:34:33.709 UTC");
    }

    #[test]
    fn control_characters_do_not_get_through() {
        assert_eq!(wrapped("GET /\u{1b}[31mred\u{7}", 40), ["GET /?[31mred?"]);
    }

    #[test]
    fn lines_break_at_spaces() {
        assert_eq!(wrapped("one two  three", 7), ["one two", "three"]);
        assert!(wrapped("", 7).is_empty());
    }
}
