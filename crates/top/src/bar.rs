//! Bars, and numbers in few characters.

use std::time::Duration;

use crate::spent::{Share, Spent};

/// Cells of a bar of `width`, by share, in ledger order. They fill it, if there is anything.
pub(crate) fn cells(spent: &Spent, width: usize) -> Vec<(Share, usize)> {
    let total = u128::from(spent.ledger.total());
    if total == 0 {
        return Vec::new();
    }
    // Where each share ends is rounded, not how long it is: so the lengths sum.
    let end = |ns: u128| ((ns * width as u128 * 2 + total) / (total * 2)) as usize;
    let (mut so_far, mut cells) = (0, Vec::new());
    for (share, ns) in spent.shares() {
        let from = end(so_far);
        so_far += u128::from(ns);
        if end(so_far) > from {
            cells.push((share, end(so_far) - from));
        }
    }
    cells
}

/// Percent of an interval, in three characters.
pub(crate) fn percent(ns: u64, interval_ns: u64) -> String {
    if ns == 0 || interval_ns == 0 {
        return String::new();
    }
    match ns as f64 * 100.0 / interval_ns as f64 {
        share if share < 0.5 => "<1".to_owned(),
        // Of a process with a hundred threads: four characters are enough.
        share if share >= 9999.5 => format!("{:.0}k", share / 1e3),
        share => format!("{share:.0}"),
    }
}

/// `1 event`, `2 events`.
pub(crate) fn count(n: u64, one: &str, more: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { more })
}

/// A duration in at most six characters.
pub(crate) fn short(ns: u64) -> String {
    let seconds = Duration::from_nanos(ns).as_secs_f64();
    match seconds {
        _ if ns < 1_000_000 => format!("{}µs", ns / 1_000),
        s if s < 0.01 => format!("{:.1}ms", s * 1e3),
        s if s < 1.0 => format!("{:.0}ms", s * 1e3),
        s if s < 60.0 => format!("{s:.1}s"),
        s if s < 3600.0 => format!("{:.0}m{:02.0}s", (s / 60.0).floor(), (s % 60.0).floor()),
        s if s < 360_000.0 => {
            format!("{:.0}h{:02.0}m", (s / 3600.0).floor(), (s / 60.0 % 60.0).floor())
        }
        s => format!("{:.0}d", s / 86_400.0),
    }
}

/// The first `width` characters; if there are more, the last of them is `…`.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut kept: String = text.chars().take(width.saturating_sub(1)).collect();
    if width > 0 {
        kept.push('…');
    }
    kept
}

/// The same with the `…` in the middle: pools tell their threads apart at the end of the name.
pub(crate) fn cut_middle(text: &str, width: usize) -> String {
    let len = text.chars().count();
    if len <= width || width < 4 {
        return cut(text, width);
    }
    let tail = (width - 1) / 2;
    let head: String = text.chars().take(width - 1 - tail).collect();
    let tail: String = text.chars().skip(len - tail).collect();
    format!("{head}…{tail}")
}

/// A frame, `function (path:line)`, with the `…` where its path begins: the line says most.
pub(crate) fn cut_frame(frame: &str, width: usize) -> String {
    let len = frame.chars().count();
    let Some((function, path)) = frame.rsplit_once(" (").filter(|_| len > width) else {
        return cut(frame, width);
    };
    let head = function.chars().count() + 3;
    // Less than this of a path is none.
    if width < head + 12 {
        return cut_middle(frame, width);
    }
    let tail: String = path.chars().skip(path.chars().count() - (width - head)).collect();
    format!("{function} (…{tail}")
}

/// The time of day, UTC.
pub(crate) fn clock(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000 % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use underspan_model::{Ledger, State};

    use super::*;

    #[test]
    fn bars_are_filled_and_in_proportion() {
        let mut ledger = Ledger::default();
        ledger[State::Running] = 500;
        ledger[State::GilWait] = 250;
        ledger[State::Sleep] = 250;
        ledger[State::LockWait] = 1_000;
        let spent = Spent { ledger, idle_ns: 750 };
        let state = Share::State;
        let filled = [
            (state(State::Running), 4),
            (state(State::GilWait), 2),
            (state(State::LockWait), 2),
            (state(State::Sleep), 2),
            (Share::Idle, 6),
        ];
        assert_eq!(cells(&spent, 16), filled);
        for width in 0..40 {
            let sum: usize = cells(&spent, width).iter().map(|(_, cells)| cells).sum();
            assert_eq!(sum, width);
        }
        assert!(cells(&Spent::default(), 8).is_empty());
    }

    #[test]
    fn numbers_are_short() {
        let shown: Vec<_> =
            [999, 12_345_678, 1_500_000, 1_500_000_000, 61_000_000_000, 7_260_000_000_000]
                .map(short)
                .to_vec();
        assert_eq!(shown, ["0µs", "12ms", "1.5ms", "1.5s", "1m01s", "2h01m"]);
        assert_eq!([0, 1, 500, 1_000].map(|ns| percent(ns, 1_000)), ["", "<1", "50", "100"]);
        assert_eq!([99_990, 123_450].map(|ns| percent(ns, 1_000)), ["9999", "12k"]);
        assert_eq!(cut("ThreadPoolExecutor-0_3", 10), "ThreadPoo…");
        assert_eq!(cut_middle("ThreadPoolExecutor-0_3", 10), "Threa…-0_3");
        assert_eq!(cut_middle("ThreadPool", 10), "ThreadPool");
        let frame = "Handler.run (/srv/app/lib/python3.11/site-packages/web/handler.py:417)";
        assert_eq!(cut_frame(frame, 40), "Handler.run (…ckages/web/handler.py:417)");
        assert_eq!(cut_frame(frame, 100), frame);
        assert_eq!(cut_frame("take_gil [libpython3.11.so]", 12), "take_gil [l…");
        assert_eq!(clock(1_700_000_000_000_000_000), "22:13:20 UTC");
    }
}
