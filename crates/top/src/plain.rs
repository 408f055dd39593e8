//! A view as plain text, for scripts and for reading later.

use std::fmt::Write as _;

use crate::bar::{clock, count, percent, short};
use crate::spent::Spent;
use crate::view::View;

/// The longest shares of a thread's time that are told.
const STATES: usize = 4;

/// The view, some lines for each part.
pub fn text(view: &View) -> String {
    let mut text = String::new();
    let cost = &view.cost;
    let share = |ns: u64| match percent(ns, view.interval_ns) {
        share if share.is_empty() => "0".to_owned(),
        share => share,
    };
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{} {}: {}, {}, {} in flight; cost {} % of a CPU, {} % in the kernel, {} MB; {} lost",
        clock(view.time),
        view.host,
        count(view.processes.len() as u64, "process", "processes"),
        count(view.threads() as u64, "thread", "threads"),
        count(view.requests.len() as u64, "request", "requests"),
        share(cost.cpu_ns),
        cost.bpf_ns.map_or_else(|| "?".to_owned(), share),
        cost.rss_bytes >> 20,
        count(cost.lost, "event", "events")
    );
    for process in &view.processes {
        let python = match process.python.as_str() {
            "" => String::new(),
            version => format!(", Python {version}"),
        };
        let _ = writeln!(text, "{} {}{python}", process.pid, process.process);
        for thread in &process.threads {
            let _ = writeln!(
                text,
                "  {:>8} {:<24} {:<11} {:>6}  {}",
                thread.tid,
                thread.thread,
                thread.now().name(),
                short(thread.state_for_ns),
                states(&thread.spent, view.interval_ns)
            );
        }
    }
    if !view.requests.is_empty() {
        let _ = writeln!(text, "in flight");
    }
    for request in &view.requests {
        let _ = writeln!(
            text,
            "  {:>8} {} {} from {}: {} ({}) {} for {}",
            short(request.age_ns),
            request.method,
            request.path,
            request.peer,
            request.thread,
            request.tid,
            request.state.map_or("gone", |state| state.name()),
            short(request.state_for_ns)
        );
    }
    if !view.culprits.is_empty() {
        let _ = writeln!(text, "kept others waiting");
    }
    for culprit in &view.culprits {
        let _ = writeln!(
            text,
            "  {:>8} of {}: {} ({}) of {} ({}) {}",
            short(culprit.blocked_ns),
            count(culprit.victims as u64, "other", "others"),
            culprit.thread,
            culprit.tid,
            culprit.process,
            culprit.pid,
            culprit.fault.label()
        );
    }
    text
}

fn states(spent: &Spent, interval_ns: u64) -> String {
    let longest = spent.largest_first().into_iter().take(STATES);
    let told: Vec<_> = longest
        .map(|(share, ns)| format!("{} {}%", share.name(), percent(ns, interval_ns)))
        .collect();
    told.join("  ")
}
