//! `underspan requests`: one line per request.

use underspan_model::Request;

use super::Ink;
use super::text::{clean, cut_end, cut_start, time_of_day};

/// What stands before route and thread, and the gaps; see [`head`].
const FIXED: usize = 80;

/// A table as wide as `width`; without one, nothing is cut.
pub(crate) fn requests(rows: &[Request], width: Option<usize>, ink: Ink) -> String {
    let (route_width, thread_width) = widths(rows, width);
    let mut text = ink.dim(&head(route_width, thread_width));
    text.push('\n');
    for row in rows {
        text += &line(row, route_width, thread_width, ink);
        text.push('\n');
    }
    text
}

fn head(route: usize, thread: usize) -> String {
    format!(
        "{:<8} {:>8} {:>6} {:>7} {:>7}  {:<14} {:<route$} {:>4} {:<thread$} ID",
        "TIME", "TOTAL ms", "ACCEPT", "HANDOFF", "HANDLER", "MOSTLY", "REQUEST", "HTTP", "THREAD"
    )
}

fn line(row: &Request, route_width: usize, thread_width: usize, ink: Ink) -> String {
    let (mostly, share) = mostly(row);
    let mostly_text = format!("{:<14}", format!("{mostly} {share:.0}%"));
    let status = if row.status == 0 { String::from("-") } else { row.status.to_string() };
    let status = format!("{status:>4}");
    format!(
        "{} {:>8} {:>6} {:>7} {:>7}  {} {:<route_width$} {} {:<thread_width$} {}",
        ink.dim(&time_of_day(row.start_time)),
        ms(row.duration_ns),
        ms(row.accept_queue_ns),
        ms(row.handoff_ns),
        ms(row.handler_ns),
        ink.part(mostly, &mostly_text),
        cut_end(&route(row), route_width),
        if row.status >= 500 { ink.bad(&status) } else { status },
        cut_start(&clean(&row.thread), thread_width),
        ink.dim(&row.request_id),
    )
}

/// Method and path, or the peer where the bytes were not HTTP.
pub(super) fn route(row: &Request) -> String {
    let route = format!("{} {}", row.method, row.path).trim().to_owned();
    let route = if route.is_empty() { format!("from {}", row.peer) } else { route };
    clean(&route)
}

/// The part of the request that took longest, and its share in percent.
fn mostly(row: &Request) -> (&'static str, f64) {
    let mut parts = vec![("accept_queue", row.accept_queue_ns), ("handoff", row.handoff_ns)];
    if row.shared_thread == 0 {
        parts.extend(row.ledger.iter().map(|(state, ns)| (state.name(), ns)));
    } else {
        parts.push(("handler", row.handler_ns));
    }
    let (part, ns) = parts.into_iter().max_by_key(|(_, ns)| *ns).unwrap_or(("handler", 0));
    // The longest names would break the column.
    let part = if part == "accept_queue" { "accept" } else { part };
    (part, underspan_explain::words::fraction(ns, row.duration_ns) * 100.0)
}

fn ms(ns: u64) -> String {
    format!("{:.1}", ns as f64 / 1e6)
}

fn widths(rows: &[Request], width: Option<usize>) -> (usize, usize) {
    let longest = |length: fn(&Request) -> usize| rows.iter().map(length).max().unwrap_or(0);
    let route_width = longest(|row| route(row).chars().count()).max(7);
    let thread_width = longest(|row| row.thread.chars().count()).max(6);
    let Some(width) = width else { return (route_width, thread_width) };
    let left = width.saturating_sub(FIXED).max(16);
    if route_width + thread_width <= left {
        return (route_width, thread_width);
    }
    // The route tells more than the thread.
    let thread_width = thread_width.min((left / 3).max(left.saturating_sub(route_width))).max(6);
    (route_width.min(left.saturating_sub(thread_width)).max(7), thread_width)
}
