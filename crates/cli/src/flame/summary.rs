//! What is said of a picture: in its heading, on the terminal, as JSON.

use serde::Serialize;
use underspan_explain::words::{count, duration, percent};
use underspan_flame::svg::{Colouring, Heading};
use underspan_flame::{Diff, Per, Scaling, telling_function};

use super::picture::{Facts, Picture};
use super::write::{Comparison, Output, diff};
use super::{Args, Found};
use crate::render::{self, Ink, clean};

/// How many changes are named.
const CHANGES: usize = 5;

/// Said where the picture is to be coloured by hardware counters, and there are none.
const NOT_COUNTED: &str = "no hardware counters were read while this was sampled, so nothing is coloured by them: \
                           `underspan doctor` says why (most virtual machines have no PMU)";

/// What `--json` prints.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Json {
    One {
        #[serde(flatten)]
        facts: Box<Facts>,
        output: Option<Output>,
    },
    Two {
        per: Per,
        before: Box<Facts>,
        after: Box<Facts>,
        output: Option<Output>,
    },
}

pub(super) fn json(found: &Found, output: Option<Output>) -> Json {
    match found {
        Found::One(picture, _) => Json::One { facts: Box::new(picture.facts.clone()), output },
        Found::Two(two) => Json::Two {
            per: two.per,
            before: Box::new(two.before.facts.clone()),
            after: Box::new(two.after.facts.clone()),
            output,
        },
    }
}

/// What stands above a picture.
pub(super) fn heading(picture: &Picture, args: &Args) -> Heading {
    let mut title = picture.query.kind.title().to_owned();
    for filter in args.filters() {
        title += &format!(", {}", clean(&filter));
    }
    let mut lines = vec![range(picture)];
    lines.extend(notes(&picture.facts, args.idle));
    if args.colouring() != Colouring::State && !picture.is_counted() {
        lines.push(String::from(NOT_COUNTED));
    }
    Heading { title, lines }
}

/// What stands above a difference.
pub(super) fn heading_of_two(comparison: &Comparison, args: &Args) -> Heading {
    let mut heading = heading(&comparison.after, args);
    let (before, after) = names(args);
    heading.title += &format!(": {after} against {before}");
    let side = |name: &str, picture: &Picture| {
        let all = std::iter::once(range(picture)).chain(notes(&picture.facts, args.idle));
        format!("{name}: {}", all.collect::<Vec<_>>().join("; "))
    };
    heading.lines = vec![
        side(before, &comparison.before),
        side(after, &comparison.after),
        format!("compared: time{}; as wide as the greater of both", comparison.per.unit()),
    ];
    heading
}

/// What the two sides are called.
pub(super) fn names(args: &Args) -> (&'static str, &'static str) {
    if args.slow.is_some() { ("fast", "slow") } else { ("before", "after") }
}

fn range(picture: &Picture) -> String {
    let Facts { since, until, requests, .. } = &picture.facts;
    let requests = requests.map(|n| format!(", {}", count(n, "request"))).unwrap_or_default();
    format!("{} to {}{requests}", render::instant(*since), render::instant(*until))
}

/// What to know about how complete the picture is.
fn notes(facts: &Facts, with_idle: bool) -> Vec<String> {
    let summary = &facts.summary;
    let mut first = vec![format!("{} in {}", duration(summary.total_ns), samples(summary.samples))];
    match (summary.idle_ns, with_idle) {
        (0, _) => {}
        (ns, true) => first.push(format!("{} of it idle", duration(ns))),
        (ns, false) => {
            first.push(format!("{} of it idle and left out (--idle shows it)", duration(ns)));
        }
    }
    let share = |ns: u64| percent(ns, summary.total_ns);
    for (ns, what) in [
        (summary.not_sampled_ns, "not sampled (waits that go on, or lost)"),
        (summary.no_stack_ns, "without a stack"),
        (summary.truncated_ns, "truncated"),
    ] {
        if ns > 0 {
            first.push(format!("{} {what}", share(ns)));
        }
    }
    let mut notes = vec![first.join(", ")];
    notes.extend(facts.scaling.as_ref().map(scaled));
    if !facts.lost.is_empty() {
        let each = facts.lost.iter().take(4);
        let each = each.map(|lost| format!("{} {} {}", lost.count, lost.tracker, lost.reason));
        notes.push(format!("events lost meanwhile: {}", each.collect::<Vec<_>>().join(", ")));
    }
    if facts.is_cut {
        notes
            .push(String::from("more rows than are read: the heaviest, or evenly spaced requests"));
    }
    notes
}

fn scaled(scaling: &Scaling) -> String {
    if scaling.ledger_ns == 0 && scaling.without_ledger_ns > 0 {
        return String::from("as sampled: the ledger has no totals of these threads to scale to");
    }
    let mut note = format!(
        "{} sampled; scaled to the ledger's exact {}, each state of each thread by itself",
        duration(scaling.sampled_ns),
        duration(scaling.ledger_ns),
    );
    if let Some(cell) = scaling.notable.first() {
        note += &format!(
            "; most time scaled by more than two: {} of {} ({} sampled, {} in the ledger)",
            cell.state.name(),
            clean(&cell.thread),
            duration(cell.sampled_ns),
            duration(cell.ledger_ns),
        );
    }
    if scaling.without_ledger_ns > 0 {
        let ns = duration(scaling.without_ledger_ns);
        note += &format!("; {ns} more of threads without totals, as sampled");
    }
    note
}

fn samples(n: u64) -> String {
    count(usize::try_from(n).unwrap_or(usize::MAX), "sample")
}

/// A short summary for the terminal.
pub(super) fn text(found: &Found, args: &Args, output: Option<&Output>, ink: Ink) -> String {
    let mut text = match found {
        Found::One(picture, _) => {
            let heading = heading(picture, args);
            head(&heading, ink) + &top(&picture.facts, ink)
        }
        Found::Two(comparison) => {
            let heading = heading_of_two(comparison, args);
            head(&heading, ink) + &changes(&diff(comparison, args), comparison.per, ink)
        }
    };
    if let Some(output) = output {
        text += &format!("wrote {} ({})\n", output.path.display(), output.format);
    }
    text
}

fn head(heading: &Heading, ink: Ink) -> String {
    let mut text = format!("{}\n", ink.bold(&heading.title));
    for line in &heading.lines {
        text += &format!("  {}\n", ink.dim(line));
    }
    text
}

fn top(facts: &Facts, ink: Ink) -> String {
    let mut text = String::new();
    for share in &facts.summary.top {
        let part = format!("{:>6.1} %", share.share * 100.0);
        text +=
            &format!("{}  {:>10}  {}\n", ink.bold(&part), duration(share.ns), clean(&share.name()));
    }
    text
}

/// The functions whose own time changed most.
fn changes(diff: &Diff, per: Per, ink: Ink) -> String {
    let mut by_function: std::collections::BTreeMap<String, f64> =
        std::collections::BTreeMap::new();
    for (at, node) in diff.nodes().iter().enumerate() {
        let change = node.own_after - node.own_before;
        if change != 0.0 {
            let path = diff.path(at);
            let name = telling_function(&path).map_or_else(
                || path.last().map_or_else(|| String::from("all"), |label| label.text()),
                |function| underspan_flame::Label::Function(function.clone()).text(),
            );
            *by_function.entry(name).or_default() += change;
        }
    }
    let mut changes: Vec<_> = by_function.into_iter().collect();
    changes.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    let mut text = String::new();
    for (name, change) in changes.into_iter().take(CHANGES) {
        let ns =
            format!("{}{}", if change < 0.0 { '-' } else { '+' }, duration(change.abs() as u64));
        let ns = format!("{ns:>11}");
        let ns = if change < 0.0 { ink.good(&ns) } else { ink.bad(&ns) };
        text += &format!("{ns}{}  {}\n", per.unit(), clean(&name));
    }
    text
}
