//! How durations, shares and rates are written, everywhere.

/// `0.4 ms`, `3103.4 ms`, from ten seconds on `12.35 s`, from ten minutes on `12 min 5 s`.
pub fn duration(ns: u64) -> String {
    const SECOND: u64 = 1_000_000_000;
    match ns {
        0 => String::from("0.0 ms"),
        1..50_000 => String::from("<0.1 ms"),
        _ if ns < 10 * SECOND => format!("{:.1} ms", ns as f64 / 1e6),
        _ if ns < 600 * SECOND => format!("{:.2} s", ns as f64 / 1e9),
        _ => format!("{} min {} s", ns / SECOND / 60, ns / SECOND % 60),
    }
}

/// `93.9 %`. Only nothing is `0 %`, and only everything is `100 %`.
pub fn percent(part: u64, whole: u64) -> String {
    percent_of((fraction(part, whole) * 1000.0).round() as u64, part, whole)
}

/// The same of a share that is rounded already, to tenths of a percent: with others, so that they sum.
pub fn percent_of(tenths: u64, part: u64, whole: u64) -> String {
    match tenths {
        _ if part == 0 || whole == 0 => String::from("0 %"),
        _ if part >= whole => String::from("100 %"),
        0 => String::from("<0.1 %"),
        1000.. => String::from(">99.9 %"),
        _ => format!("{}.{} %", tenths / 10, tenths % 10),
    }
}

/// `part / whole`, from 0 to 1; 0 when there is no whole.
pub fn fraction(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) }
}

/// `1 request`, `2 requests`.
pub fn count(n: usize, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

/// `thread worker-1 (4711)`; of another process than the one that is told of, `thread tar of backup (pid 4711)`.
pub fn thread(name: &str, tid: u32, pid: u32, other_process: &str) -> String {
    match other_process {
        "" => format!("thread {name} ({tid})"),
        process => format!("thread {name} of {process} (pid {pid})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_keep_one_style_per_size() {
        assert_eq!(duration(0), "0.0 ms");
        assert_eq!(duration(400), "<0.1 ms");
        assert_eq!(duration(412_345), "0.4 ms");
        assert_eq!(duration(3_103_412_345), "3103.4 ms");
        assert_eq!(duration(12_345_678_901), "12.35 s");
        assert_eq!(duration(725_000_000_000), "12 min 5 s");
        assert!(!duration(u64::MAX).is_empty());
    }

    #[test]
    fn a_thread_of_another_process_is_named_with_it() {
        assert_eq!(thread("worker-1", 12, 10, ""), "thread worker-1 (12)");
        assert_eq!(thread("tar", 12, 10, "backup"), "thread tar of backup (pid 10)");
    }

    #[test]
    fn a_share_is_rounded_neither_away_nor_to_the_whole() {
        assert_eq!(percent(0, 10), "0 %");
        assert_eq!(percent(1, 1_000_000), "<0.1 %");
        assert_eq!(percent(999_999, 1_000_000), ">99.9 %");
        assert_eq!(percent(939, 1000), "93.9 %");
        assert_eq!(percent(7, 7), "100 %");
        assert_eq!(percent(7, 0), "0 %");
    }
}
