//! `underspan explain`: one request, from top to bottom.

use std::collections::BTreeMap;

use underspan_explain::words::{self, count, duration, percent};
use underspan_explain::{Explanation, Match, Part, Relay};
use underspan_model::{LostEvents, StackEnd, State};

use super::bar::cells;
use super::findings::findings;
use super::shares::Shares;
use super::text::{bytes, cut_end, instant, wrapped};
use super::{Ink, WIDTH, requests};

/// Letters stand for the parts where there are no colours.
const KEYS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Where a part's label begins in the table.
const LABEL_AT: usize = 41;

/// The whole explanation, at most `width` wide.
pub(crate) fn explanation(it: &Explanation, width: usize, ink: Ink) -> String {
    let shares = Shares::of(&it.parts);
    let mut text = header(it, width, ink);
    text += "\n";
    text += &spans(it, width, ink);
    if let Some(relay) = &it.relay {
        text += &section("Passed on", ink);
        text += &hanging("  ", &passed_on(it, relay), width, str::to_owned);
    }
    if !it.standing.is_empty() {
        text += &section("Where it stands", ink);
        text += &standing(it, width, ink);
    }
    text += &section("Window", ink);
    text += &window(it, &shares, width, ink);
    text += &section("Where the time went", ink);
    text += &ledger(it, &shares, width, ink);
    if it.path.iter().any(|step| step.depth > 0) {
        text += &section("Critical path of the handler", ink);
        text += &super::path::path(it, width, ink);
    }
    if it.sockets.iter().any(super::sockets::is_worth_telling) {
        text += &section("Sockets that its thread waited on", ink);
        text += &super::sockets::sockets(it, width);
    }
    text += &section("Findings", ink);
    text += &findings(it, &shares, width, ink);
    if !it.meanwhile.is_empty() {
        text += &section("In the host meanwhile (coincided)", ink);
        text += &super::sockets::meanwhile(it, width, ink);
    }
    text += "\n";
    text += &unknown(it, &shares, width, ink);
    for note in &it.notes {
        text += &hanging("note: ", note, width, |line| ink.warn(line));
    }
    text
}

/// To whom a proxy passed it on, how late, and what to ask next.
fn passed_on(it: &Explanation, relay: &Relay) -> String {
    let known_by = match relay.known_by {
        "trace" => "by its trace",
        _ => "by route and time",
    };
    let own = it.client_wait_ns.saturating_sub(relay.duration_ns);
    format!(
        "{} ({}) answered {} in {}, {} after it came here ({known_by}); {} are this process's own. See \
         `underspan explain {}`",
        relay.process,
        relay.pid,
        relay.route,
        duration(relay.duration_ns),
        duration(relay.after_ns),
        duration(own),
        relay.request_id
    )
}

fn section(title: &str, ink: Ink) -> String {
    format!("\n{}\n", ink.bold(title))
}

/// Lines with a first prefix, the others indented as deep.
pub(super) fn hanging(
    prefix: &str,
    text: &str,
    width: usize,
    paint: impl Fn(&str) -> String,
) -> String {
    let indent = prefix.chars().count();
    let lines = wrapped(text, width.saturating_sub(indent).max(20));
    if lines.is_empty() {
        return paint(prefix.trim_end()) + "\n";
    }
    let lines = lines.iter().enumerate().map(|(n, line)| {
        let start = if n == 0 { prefix.to_owned() } else { " ".repeat(indent) };
        paint(&format!("{start}{line}")) + "\n"
    });
    lines.collect()
}

fn header(it: &Explanation, width: usize, ink: Ink) -> String {
    let request = &it.request;
    let status = match request.status {
        0 if request.end == "open" => ink.warn("not answered yet"),
        0 => String::from("no status"),
        status if status >= 500 => ink.bad(&status.to_string()),
        status => status.to_string(),
    };
    let mut ids = format!("request {}", request.request_id);
    if !request.trace_id.is_empty() {
        ids += &format!(" · trace {}", request.trace_id);
    }
    let nth = match request.conn_request {
        0 => String::from("first request of its connection"),
        // It was accepted before anybody counted.
        _ if request.accept_tid == 0 => String::from("a later request of its connection"),
        n => format!("request {} of its connection", u64::from(n) + 1),
    };
    let who = format!(
        "{}, thread {} ({}) of {} ({}) on {}",
        instant(request.start_time),
        request.thread,
        request.tid,
        request.process,
        request.pid,
        request.host,
    );
    let client = format!(
        "client {}, {nth}, {} in, {} out",
        request.peer,
        bytes(request.bytes_in),
        bytes(request.bytes_out)
    );
    format!("{} → {status}\n{}\n", ink.bold(&requests::route(request)), ink.dim(&ids))
        + &hanging("", &who, width, str::to_owned)
        + &hanging("", &client, width, |line| ink.dim(line))
}

fn spans(it: &Explanation, width: usize, ink: Ink) -> String {
    let view = &it.spans;
    let whole = it.client_wait_ns;
    let row = |label: &str, ns: u64, rest: &str| {
        hanging(&format!("{label:<19}{:>11}   ", duration(ns)), rest, width, str::to_owned)
    };
    let waited = if it.request.end == "open" { "Waited so far" } else { "The client waited" };
    let waited = format!("{waited:<19}{:>11}", duration(whole));
    let mut text = ink.bold(&waited) + "\n";
    let Some(root) = it.root() else {
        text += &format!("{:<19}{:>11}\n", "The spans say", "nothing");
        text += &ink.dim("no span was found for this request: all of it is hidden");
        return text + "\n";
    };
    let matched = match view.matched {
        Match::Traceparent => "matched by its traceparent",
        Match::TraceId => "matched by trace id",
        Match::Thread | Match::None => "matched by thread and time: low confidence",
    };
    text += &row(
        "The spans say",
        root.duration_ns,
        &format!("span {} of {}, {matched}", root.name, root.service),
    );
    let visible =
        format!("{}, in {}", percent(view.visible_ns, whole), count(view.children, "child span"));
    text += &row("  visible", view.visible_ns, &visible);
    let hidden = format!(
        "{}, before the span {}, inside {}, after {}",
        percent(view.hidden_ns, whole),
        duration(view.before_ns),
        duration(view.inside_ns),
        duration(view.after_ns)
    );
    text += &row("  hidden", view.hidden_ns, &hidden);
    if view.masked_ns > 0 {
        let masked = format!(
            "{}, inside child spans, but the thread was held up (see findings)",
            percent(view.masked_ns, whole)
        );
        text += &row("  misleading", view.masked_ns, &masked);
    }
    text
}

/// The thread of a request without an answer, and what others of its process wait for meanwhile.
fn standing(it: &Explanation, width: usize, ink: Ink) -> String {
    let mut text = String::new();
    for wait in &it.standing {
        let who = match wait.tid == it.request.tid {
            true => String::from("its own thread"),
            false => format!("{} ({})", wait.thread, wait.tid),
        };
        let at = wait.place.as_ref().map(|place| format!(", in {}", place.words()));
        let line = format!("{who}: {}{}", wait.state.name(), at.unwrap_or_default());
        let label = format!("  {:>11}  ", duration(wait.ns));
        let paint =
            |line: &str| if wait.tid == it.request.tid { ink.bold(line) } else { line.to_owned() };
        text += &hanging(&label, &line, width, paint);
    }
    text
}

/// The three phases to scale.
fn window(it: &Explanation, shares: &Shares, width: usize, ink: Ink) -> String {
    let is_queue = |part: &&Part| matches!(part.part, "accept_queue" | "handoff");
    let queue = |name: &str| it.parts.iter().filter(|part| part.part == name).collect();
    let handler = it.parts.iter().filter(|part| !is_queue(part)).collect();
    let phases: [(_, _, _, Vec<&Part>); 3] = [
        ("accept_queue", "accept queue", '░', queue("accept_queue")),
        ("handoff", "handoff", '▒', queue("handoff")),
        ("handler", "handler", '█', handler),
    ];
    let ns: [u64; 3] = phases.each_ref().map(|(.., parts)| parts.iter().map(|part| part.ns).sum());
    let bar: String = phases
        .iter()
        .zip(cells(&ns, width.saturating_sub(2)))
        .map(|((name, _, glyph, _), cells)| ink.part(name, &glyph.to_string().repeat(cells)))
        .collect();
    let legend: Vec<_> = phases
        .iter()
        .zip(ns)
        .map(|((name, label, glyph, parts), ns)| {
            let swatch = ink.part(name, &glyph.to_string());
            let share = shares.percent(parts.iter().copied());
            format!("{swatch} {label} {} ({share})", duration(ns))
        })
        .collect();
    // On a narrow terminal one phase a line.
    let between = if width < WIDTH { "\n  " } else { "   " };
    format!("  {bar}\n  {}\n", legend.join(between))
}

/// Every part of the request as one bar and as a table that sums to it.
fn ledger(it: &Explanation, shares: &Shares, width: usize, ink: Ink) -> String {
    let mut parts: Vec<&Part> = it.parts.iter().filter(|part| part.ns > 0).collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.ns));
    let ns: Vec<u64> = parts.iter().map(|part| part.ns).collect();
    let key = |n: usize| match ink.is_plain() {
        true => char::from(KEYS[n % KEYS.len()]).to_string(),
        false => String::from("█"),
    };
    let bar: String = parts
        .iter()
        .zip(cells(&ns, width.saturating_sub(2)))
        .enumerate()
        .map(|(n, (part, cells))| ink.part(part.part, &key(n).repeat(cells)))
        .collect();
    let mut text = format!("  {bar}\n");
    // Room for the longest label, and what is left for bars.
    let room = width.saturating_sub(LABEL_AT + 50).min(24);
    for (n, part) in parts.iter().enumerate() {
        let length = (words::fraction(part.ns, it.client_wait_ns) * room as f64).round() as usize;
        let line = format!(
            "  {} {:<13}{:>13} {:>8}  {:<49} {}",
            ink.part(part.part, &key(n)),
            part.part,
            duration(part.ns),
            shares.percent([*part]),
            cut_end(label(part.part), width.saturating_sub(LABEL_AT)),
            ink.part(part.part, &"▇".repeat(length)),
        );
        text += line.trim_end();
        text.push('\n');
    }
    text + &ink.dim(&format!(
        "    {:<13}{:>13} {:>8}\n",
        "sum",
        duration(it.client_wait_ns),
        shares.percent(&it.parts)
    ))
}

fn label(part: &str) -> &'static str {
    match part {
        "accept_queue" => "connected, not yet accepted",
        "handoff" => "accepted, no thread read it yet",
        "handler" => "on the event loop (not split)",
        "unaccounted" => "in no cell of the ledger",
        _ => State::from_name(part).map_or("", State::label),
    }
}

/// Always there, also when there is nothing to tell.
fn unknown(it: &Explanation, shares: &Shares, width: usize, ink: Ink) -> String {
    let unknown = time_unknown(it, shares, ink);
    let (of_stacks, of_events): (Vec<_>, Vec<_>) =
        it.lost.iter().partition(|row| row.is_stack_end());
    let (events, rows) = sums(&of_events, |row| format!("{} {}", row.tracker, row.reason));
    let mut line = match events {
        0 => format!("{unknown} · {}", ink.good("lost events: none")),
        _ => format!("{unknown} · {}", ink.bad(&format!("lost events: {events}"))),
    };
    let mut text = String::new();
    if events > 0 {
        let rows: Vec<_> = rows.iter().map(|(what, n)| format!("{what} {n}")).collect();
        text += &hanging("lost: ", &rows.join(", "), width, |line| ink.bad(line));
    }
    // Nothing is lost of these but frames.
    let words = |row: &LostEvents| row.stack_end().map_or("", StackEnd::words).to_owned();
    let (stacks, rows) = sums(&of_stacks, words);
    if stacks > 0 {
        line += &format!(" · {}", ink.warn(&format!("stacks cut short: {stacks}")));
        let rows: Vec<_> = rows.iter().map(|(why, n)| format!("{n} {why}")).collect();
        text += &hanging("stacks: ", &rows.join(", "), width, |line| ink.warn(line));
    }
    format!("{line}\n{text}")
}

/// Of a handler that is not split nobody looked whether something is unknown: that is not nothing.
fn time_unknown(it: &Explanation, shares: &Shares, ink: Ink) -> String {
    let of = |names: &[&str]| shares.percent(it.parts.iter().filter(|p| names.contains(&p.part)));
    match (it.unknown.ns, it.unknown.not_split_ns) {
        (0, 0) => ink.good("unknown: 0.0 ms (0 %)"),
        (ns, 0) => {
            let share = of(&["other", "unaccounted"]);
            ink.warn(&format!("unknown: {} ({share})", duration(ns)))
        }
        (_, ns) => {
            let share = of(&["handler"]);
            ink.warn(&format!("unknown: handler not looked into, {} ({share})", duration(ns)))
        }
    }
}

/// There is a row for each second: their sums, by what they are called, say as much.
fn sums(
    rows: &[&LostEvents],
    name: impl Fn(&LostEvents) -> String,
) -> (u64, BTreeMap<String, u64>) {
    let (mut all, mut sums) = (0u64, BTreeMap::<_, u64>::new());
    for row in rows {
        let sum = sums.entry(name(row)).or_default();
        *sum = sum.saturating_add(row.count);
        all = all.saturating_add(row.count);
    }
    (all, sums)
}
