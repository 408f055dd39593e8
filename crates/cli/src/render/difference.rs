//! `underspan diff`: two time ranges, side by side.

use underspan_explain::words::{count, duration};
use underspan_explain::{CauseChange, RouteChange, Summary};

use super::Ink;
use super::text::{clean, cut_end, instant};
use crate::diff::{Difference, Side};

/// Routes that are shown; `--json` has all.
const ROUTES: usize = 10;
/// Causes that are shown of each route.
const CAUSES: usize = 3;
/// Less than this of the mean is not worth a line.
const SMALL: f64 = 0.001;

/// The whole difference.
pub(crate) fn difference(difference: &Difference, ink: Ink) -> String {
    let Difference { before, after, causes, routes } = difference;
    let mut text = format!("{}\n", ink.bold("After against before"));
    text += &format!("  before  {}\n  after   {}\n\n", side(before), side(after));
    text += &ink
        .dim(&format!("  {:<24}{:>14}{:>14}{:>14}", "ALL REQUESTS", "BEFORE", "AFTER", "CHANGE"));
    text.push('\n');
    text += &summary_lines(&before.summary, &after.summary, ink);
    text += &format!("\n{}\n", ink.dim("  CAUSE, PER REQUEST"));
    let mean = before.summary.mean_ns.max(after.summary.mean_ns);
    for change in causes.iter().filter(|change| is_worth_a_line(change, mean)) {
        text += &line(change.cause, change.before_ns, change.after_ns, ink);
    }
    if routes.len() > 1 {
        for change in routes.iter().take(ROUTES) {
            text += &route(change, ink);
        }
        if routes.len() > ROUTES {
            let more = count(routes.len() - ROUTES, "more route");
            text += &format!("\n  {more}: --json has them\n");
        }
    }
    for (name, side) in [("before", before), ("after", after)] {
        if side.lost_events > 0 {
            text += &format!("\n  {name}: {} lost meanwhile\n", were(side.lost_events, "event"));
        }
    }
    text
}

/// `1 event was`, `2 events were`.
fn were(n: u64, noun: &str) -> String {
    let were = if n == 1 { "was" } else { "were" };
    format!("{} {were}", count(usize::try_from(n).unwrap_or(usize::MAX), noun))
}

fn side(side: &Side) -> String {
    let rate = match side.requests_per_second {
        Some(rate) => format!("{}, {rate:.1} a second", count(side.summary.requests, "request")),
        None => format!("more than {} requests: the latest", side.summary.requests),
    };
    format!("{} to {}: {rate}", instant(side.since), instant(side.until))
}

fn summary_lines(before: &Summary, after: &Summary, ink: Ink) -> String {
    let rows = [
        ("mean", before.mean_ns, after.mean_ns),
        ("half took at most", before.p50_ns, after.p50_ns),
        ("95 % took at most", before.p95_ns, after.p95_ns),
        ("99 % took at most", before.p99_ns, after.p99_ns),
        ("the slowest", before.max_ns, after.max_ns),
    ];
    rows.into_iter().map(|(name, before, after)| line(name, before, after, ink)).collect()
}

fn is_worth_a_line(change: &CauseChange, mean: u64) -> bool {
    change.before_ns.max(change.after_ns) as f64 >= mean as f64 * SMALL
}

fn route(change: &RouteChange, ink: Ink) -> String {
    let RouteChange { route, before, after, causes } = change;
    let name = if route.is_empty() { String::from("not HTTP") } else { cut_end(&clean(route), 60) };
    let mut text = format!("\n  {}\n", ink.bold(&name));
    if before.requests == 0 || after.requests == 0 {
        let (when, n) = if after.requests == 0 {
            ("before", before.requests)
        } else {
            ("after", after.requests)
        };
        return text + &format!("    only {when}: {}\n", count(n, "request"));
    }
    text += &format!("    {:<22}{:>14}{:>14}\n", "requests", before.requests, after.requests);
    text += &line("  mean", before.mean_ns, after.mean_ns, ink);
    text += &line("  95 % took at most", before.p95_ns, after.p95_ns, ink);
    let mean = before.mean_ns.max(after.mean_ns);
    for change in causes.iter().filter(|change| is_worth_a_line(change, mean)).take(CAUSES) {
        text += &line(&format!("  {}", change.cause), change.before_ns, change.after_ns, ink);
    }
    text
}

/// Green is less, red is more, from a tenth on.
fn line(name: &str, before: u64, after: u64, ink: Ink) -> String {
    let change = format!("{:>14}", change(before, after));
    let change = if after as f64 > before as f64 * 1.1 {
        ink.bad(&change)
    } else if (after as f64) < before as f64 * 0.9 {
        ink.good(&change)
    } else {
        change
    };
    format!("  {name:<24}{:>14}{:>14}{change}\n", duration(before), duration(after))
}

/// `-94.3 %`, or `new` where there was nothing before.
fn change(before: u64, after: u64) -> String {
    match (before, after) {
        (0, 0) => String::from("same"),
        (0, _) => String::from("new"),
        (_, 0) => String::from("gone"),
        (before, after) => {
            let percent = (after as f64 / before as f64 - 1.0) * 100.0;
            if percent > 999.0 {
                format!("{:.0} times", after as f64 / before as f64)
            } else {
                format!("{percent:+.1} %")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_told_in_the_plainest_way() {
        assert_eq!(change(0, 0), "same");
        assert_eq!(change(0, 9), "new");
        assert_eq!(change(9, 0), "gone");
        assert_eq!(change(200, 100), "-50.0 %");
        assert_eq!(change(100, 103), "+3.0 %");
        assert_eq!(change(1, 5000), "5000 times");
    }

    #[test]
    fn of_one_event_there_is_no_plural() {
        assert_eq!(were(1, "event"), "1 event was");
        assert_eq!(were(2, "event"), "2 events were");
    }
}
