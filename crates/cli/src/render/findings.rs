//! The findings: what happened, who, the rows that show it, what would help.

use underspan_explain::words::duration;
use underspan_explain::{Culprit, Explanation, Finding, Relation, RowRef, WORK};

use super::Ink;
use super::explanation::hanging;
use super::shares::Shares;
use super::text::exact_time_of_day;

/// Rows cited in text; JSON has more.
const ROWS: usize = 3;

pub(super) fn findings(it: &Explanation, shares: &Shares, width: usize, ink: Ink) -> String {
    if it.findings.is_empty() {
        return nothing(it, width, ink);
    }
    let each = it.findings.iter().enumerate().map(|(n, finding)| {
        let gap = if n == 0 { "" } else { "\n" };
        format!("{gap}{}", one(n + 1, finding, shares, width, ink))
    });
    each.collect()
}

/// What a handler waited for on an event loop is not known: that is not the same as nothing.
fn nothing(it: &Explanation, width: usize, ink: Ink) -> String {
    let handler = it.parts.iter().find(|part| part.part == "handler");
    match handler.filter(|part| WORK.reached(part.ns, it.client_wait_ns)) {
        Some(part) => hanging(
            "  ",
            &format!(
                "none: what the handler did for {} on the event loop is not known; no iteration of the \
                 loop was seen to take long meanwhile",
                duration(part.ns)
            ),
            width,
            |line| ink.warn(line),
        ),
        None => ink.good("  none: nothing took long enough to be worth a change\n"),
    }
}

fn one(number: usize, finding: &Finding, shares: &Shares, width: usize, ink: Ink) -> String {
    let relation = match finding.relation {
        Relation::Caused => ink.bad("caused"),
        Relation::Coincided => ink.warn("coincided"),
        Relation::Unknown => ink.warn("culprit unknown"),
    };
    let parts: Vec<_> = finding.parts.iter().map(|p| p.part).collect();
    let of = match parts.as_slice() {
        [part] if *part == finding.kind.name() => String::new(),
        parts => format!(" ({})", parts.join(" + ")),
    };
    let pattern = match finding.pattern {
        "" => String::new(),
        pattern => format!(", {}", pattern.replace('_', " ")),
    };
    let mut text = format!(
        "  {number}. {}{of}{pattern}  {} ({})  {relation}\n",
        ink.bold(finding.kind.name()),
        duration(finding.ns),
        shares.percent(&finding.parts)
    );
    let field = |name: &str, value: &str| {
        hanging(&format!("     {name:<10}"), value, width, |l| l.to_owned())
    };
    text += &hanging("     ", &finding.text, width, |line| line.to_owned());
    if let Some(place) = &finding.place {
        let at = if place.file.is_empty() { String::new() } else { format!(" ({})", place.file) };
        text += &field("where", &format!("{}{at}", place.words()));
    }
    if let Some(culprit) = finding.culprit.as_ref().map(who).filter(|who| !who.is_empty()) {
        text += &field("culprit", &culprit);
    }
    if finding.evidence_rows > 0 {
        let rows: Vec<_> = finding.evidence.iter().take(ROWS).map(row).collect();
        let more = match finding.evidence_rows.saturating_sub(ROWS) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        text += &field("evidence", &format!("{}{more}", rows.join(", ")));
    }
    text + &field("advice", &finding.advice)
}

fn who(culprit: &Culprit) -> String {
    let mut words = Vec::new();
    if !culprit.thread.is_empty() {
        words.push(culprit.named());
    }
    if !culprit.peer.is_empty() {
        words.push(format!("peer {}", culprit.peer));
    }
    if !culprit.cgroup.is_empty() {
        words.push(format!("cgroup {}", culprit.cgroup));
    }
    if let Some(place) = &culprit.place {
        words.push(format!("in {} ({})", place.words(), place.file));
    }
    if !culprit.route.is_empty() {
        words.push(format!("serving {} (request {})", culprit.route, culprit.request_id));
    }
    words.join(", ")
}

fn row(row: &RowRef) -> String {
    if !row.request_id.is_empty() {
        return format!("{} {} ({})", row.table, row.request_id, duration(row.duration_ns));
    }
    let start = exact_time_of_day(row.start_time);
    format!("{} tid {} at {start} ({})", row.table, row.tid, duration(row.duration_ns))
}
