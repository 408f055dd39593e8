//! What happened on sockets, and in the host.

use underspan_explain::words::{count, duration};
use underspan_explain::{Explanation, SocketWait};

use super::Ink;
use super::explanation::hanging;

/// Sockets told in text; JSON has all.
const SOCKETS: usize = 5;
/// Shorter waits are of no interest to people.
const WORTH_NS: u64 = 10_000_000;

/// Whether something happened on a socket that its wait alone does not tell.
pub(super) fn is_worth_telling(socket: &SocketWait) -> bool {
    let only_peer = socket.parts.iter().all(|part| part.part == "peer");
    socket.ns >= WORTH_NS && (!only_peer || socket.request.is_some())
}

pub(super) fn sockets(it: &Explanation, width: usize) -> String {
    let worth: Vec<_> = it.sockets.iter().filter(|socket| is_worth_telling(socket)).collect();
    let mut text: String = worth.iter().take(SOCKETS).map(|socket| one(socket, width)).collect();
    if worth.len() > SOCKETS {
        text += &format!("  and {}\n", count(worth.len() - SOCKETS, "other"));
    }
    text
}

fn one(socket: &SocketWait, width: usize) -> String {
    let parts: Vec<_> = socket
        .parts
        .iter()
        .map(|part| format!("{} {}", part.part.replace('_', " "), duration(part.ns)))
        .collect();
    let line = format!(
        "{} → {}  {}: {}",
        if socket.local.is_empty() { "?" } else { &socket.local },
        socket.peer,
        duration(socket.ns),
        parts.join(", ")
    );
    let mut text = hanging("  ", &line, width, str::to_owned);
    if let Some(request) = &socket.request {
        let served = format!(
            "{} ({}) on {}: {} {} request {}, longest part {} {}",
            request.process,
            request.pid,
            request.host,
            request.thread,
            request.route,
            request.request_id,
            request.longest.part,
            duration(request.longest.ns)
        );
        text += &hanging("    served by ", &served, width, str::to_owned);
    }
    text
}

/// What only coincided.
pub(super) fn meanwhile(it: &Explanation, width: usize, ink: Ink) -> String {
    let each = it.meanwhile.iter().map(|one| {
        let what = hanging("  - ", &one.text, width, |line| ink.warn(line));
        what + &hanging("    ", one.advice, width, str::to_owned)
    });
    each.collect()
}
