//! What the handler waited for outside its process: peers, storage, time, children.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use underspan_model::{Request, State, Wait};

use crate::case::{
    Case, Draft, STOPPED, WHO_STOPS, blocked, proven, route, stopped, wait_row, without_work_words,
};
use crate::finding::{Culprit, Finding, Kind, Relation};
use crate::interval::{Cover, Interval};
use crate::rules::claims::Claims;
use crate::rules::contention::is_foreign;
use crate::socket::{Served, served};
use crate::words;

const STATES: [(State, Kind); 9] = [
    (State::NetRead, Kind::NetRead),
    (State::NetWrite, Kind::NetWrite),
    (State::NetConnect, Kind::NetConnect),
    (State::PollWait, Kind::PollWait),
    (State::DiskIo, Kind::DiskIo),
    (State::PageFault, Kind::PageFault),
    (State::Sleep, Kind::Sleep),
    (State::PipeIpc, Kind::PipeIpc),
    (State::ChildWait, Kind::ChildWait),
];

pub(super) fn find(case: &Case<'_>, claims: &Claims) -> Vec<Finding> {
    STATES
        .into_iter()
        .chain([(State::Other, Kind::Other)])
        .filter_map(|(state, kind)| one(case, claims, state, kind))
        .collect()
}

fn one(case: &Case<'_>, claims: &Claims, state: State, kind: Kind) -> Option<Finding> {
    let ns = claims.left(case, state);
    if !case.worth(ns, kind.threshold()) {
        return None;
    }
    let waits = case.waits_of(case.request.tid, case.window.handler, |of| of == state);
    let at: Cover = waits.iter().map(|(_, part)| *part).collect();
    let at = at.subtract(&claims.cover(state));
    let waits: Vec<_> =
        waits.into_iter().filter(|(_, part)| at.within(*part).total() > 0).collect();
    let rows = waits.iter().map(|(w, part)| (part.len(), wait_row(w))).collect();
    let draft = case.draft(kind, &[(state.name(), ns)]).located(case, &at).rows(rows);
    let waited = words::duration(ns);
    let held: Cover = waits.iter().filter(|(w, _)| stopped(w)).map(|(_, part)| *part).collect();
    if proven(held.total(), ns) {
        return Some(draft.say(format!("Its thread was {STOPPED} for {waited}"), WHO_STOPS));
    }
    let (by_itself, what, advice) = describe(kind);
    let is_postgres = case.request.process.starts_with("postgres");
    let advice = if is_postgres && kind == Kind::PollWait { TRANSACTIONS } else { advice };
    let within = Cover::from(case.window.handler);
    let without_work = case.without_work(&within, state).filter(|_| kind == Kind::PollWait);
    // Who ended a wait after the request was over did not answer it late.
    let ended = waits.iter().filter(|(w, _)| !case.outlasts(blocked(w)));
    let ended: Vec<_> = ended.copied().collect();
    let peer = if takes_peer(kind) { peer(&ended, &at, ns) } else { None };
    Some(match (peer, without_work) {
        (Some((peer, waits)), _) => {
            let client = peer == case.request.peer;
            let resolver = !client && is_resolver(&peer);
            let who = match (client, resolver) {
                (true, _) => "the client",
                (_, true) => "the resolver",
                _ => "the peer",
            };
            let count = words::count(waits, "wait");
            let sockets: Vec<_> =
                case.sockets.keys().filter(|ends| ends.1 == peer).copied().collect();
            // Only what fills most of the waits is what they were for.
            let served = served(case, &sockets, &at).filter(|s| proven(s.ns, ns));
            if let Some(served) = served {
                return Some(followed(draft, (what, &waited, &count), &peer, served, ns));
            }
            let text = format!("{what} {waited} ({count}): {who} {peer} {}", slow(kind, client));
            let slow_client =
                format!("The client itself is slow or far away. {}", case.server().slow_client());
            let advice = match (client, resolver) {
                (true, _) => slow_client.as_str(),
                (_, true) => RESOLVER,
                // It is known what was polled.
                _ if kind == Kind::PollWait => describe(Kind::NetRead).2,
                _ => advice,
            };
            let culprit = Culprit { peer, ..Culprit::new(ns) };
            draft.relation(Relation::Caused).culprit(Some(culprit)).say(text, advice)
        }
        (None, Some(idle)) => {
            let (text, advice) = without_work_words(&waited, idle);
            draft.say(text, advice)
        }
        (None, None)
            if kind == Kind::PollWait
                && let Some(wait) = woken(&ended, ns) =>
        {
            let (by, request) = waker(case, wait);
            let text = format!("{what} {waited}, until {by} woke it");
            let seen = match request {
                Some(request) => format!("`underspan explain {}`", request.request_id),
                None => String::from("`underspan flame`"),
            };
            let locks = if is_postgres { TRANSACTIONS } else { "" };
            let sep = if is_postgres { ". " } else { "" };
            draft.say(text, format!("Look at what that thread did until then: {seen}{sep}{locks}"))
        }
        (None, None) if by_itself => {
            draft.relation(Relation::Caused).say(format!("{what} {waited}"), advice)
        }
        (None, None)
            if takes_peer(kind)
                && let Some(count) = case.short_waits(ns, at.total()) =>
        {
            let (why, advice) = many(kind);
            let text = format!(
                "{what} {waited}, {} of it in more than {} waits shorter than a millisecond each: {why}{}",
                words::duration(ns - at.total()),
                count.saturating_sub(1),
                rows_peer(&ended),
            );
            draft.say(text, advice)
        }
        (None, None) if takes_peer(kind) => {
            draft.say(format!("{what} {waited}; nothing recorded shows for which peer"), advice)
        }
        (None, None) => draft.say(format!("{what} {waited}"), advice),
    })
}

/// What a peer was slow at, it or the way to it.
const fn slow(kind: Kind, client: bool) -> &'static str {
    match (kind, client) {
        (Kind::NetWrite, _) => "was slow to take them",
        (Kind::NetRead, true) => "was slow to send",
        // For which of both it was polled, rows do not tell.
        (Kind::PollWait, true) => "was slow to send, or to take what it was sent",
        _ => "was slow to answer",
    }
}

/// A backend of PostgreSQL waits for locks as for anything else, with epoll.
const TRANSACTIONS: &str = "Look at locks that other transactions hold: pg_locks, pg_blocking_pids(), and \
    pg_stat_activity.wait_event_type; keep transactions short";

/// The one wait that took most of the time, if a thread ended it.
fn woken<'a>(waits: &[(&'a Wait, Interval)], ns: u64) -> Option<&'a Wait> {
    let longest = waits.iter().max_by_key(|(w, part)| (part.len(), w.start_time));
    let (wait, part) = longest.filter(|(w, _)| w.waker_tid != 0)?;
    proven(part.len(), ns).then_some(*wait)
}

/// Who ended a wait, and what it served just then. No more is certain than that it did: it may have sent what
/// was waited for, have made way, or have sent a signal.
fn waker<'a>(case: &Case<'a>, wait: &Wait) -> (String, Option<&'a Request>) {
    let at = blocked(wait).end;
    let mut served: Vec<_> = case.siblings.iter().copied().chain(&case.evidence.wakers).collect();
    served.retain(|r| {
        let whole = Interval::new(r.start_time, r.duration_ns);
        let is_its = r.host == wait.host && r.tid == wait.waker_tid;
        is_its && whole.start <= at && at <= whole.end
    });
    let request = served.into_iter().max_by_key(|r| (r.start_time, &r.request_id));
    let mut by = format!("thread {} ({})", wait.waker_thread, wait.waker_tid);
    match wait.waker_pid {
        _ if !is_foreign(wait) => {}
        // Its first thread has the same number.
        pid if pid == wait.waker_tid => by += " of another process",
        pid => by += &format!(" of another process ({pid})"),
    }
    if let Some(request) = request {
        by += &match route(request) {
            route if route.is_empty() => format!(", serving request {}", request.request_id),
            route => format!(", serving {route} (request {})", request.request_id),
        };
        by += ",";
    }
    (by, request)
}

const RESOLVER: &str = "A name is resolved there, and its answer is late or lost: keep answers in \
    a cache (nscd, dnsmasq, systemd-resolved), have fewer search domains and a shorter \
    `options timeout` in /etc/resolv.conf, or look at that resolver";

/// Whether it answers what a name stands for: DNS has this port to itself.
fn is_resolver(peer: &str) -> bool {
    peer.parse::<SocketAddr>().is_ok_and(|peer| peer.port() == 53)
}

/// Whether the state needs no culprit, what happened, and what would help.
fn describe(kind: Kind) -> (bool, &'static str, &'static str) {
    match kind {
        Kind::NetRead => (
            false,
            "Waited for bytes from a socket for",
            "Look at that peer: for a service its own requests; set a timeout; for a database the slow \
             query (EXPLAIN, an index), too many queries per request, or a lock held by another transaction",
        ),
        Kind::NetWrite => (
            false,
            "Waited to send bytes to a socket for",
            "The receiver reads slowly or the network is full: send less, or look at that peer",
        ),
        Kind::NetConnect => (
            false,
            "Waited for connections to open for",
            "Keep connections open and reuse them (a pool, CONN_MAX_AGE, keep-alive); look at that \
             peer's accept queue",
        ),
        Kind::PollWait => (
            false,
            "Waited for events on file descriptors for",
            "Look at what this handler polls: a slow peer behind a non-blocking client library, or a \
             timeout that is too long",
        ),
        Kind::DiskIo => (
            true,
            "Waited for storage for",
            "Fewer or smaller synchronous writes (fsync), a faster disk, or the work moved out of the \
             request",
        ),
        Kind::PageFault => (
            true,
            "Waited for pages to be brought in for",
            "Memory is short, or a file is read through a mapping for the first time: give more \
             memory, avoid swap, or read ahead at start-up",
        ),
        Kind::Sleep => (
            true,
            "The handler asked to sleep for",
            "Look for sleep calls and retry back-offs in this handler",
        ),
        Kind::PipeIpc => (
            false,
            "Waited on a pipe or other IPC for",
            "Look at the process at the other end of the pipe",
        ),
        Kind::ChildWait => (
            true,
            "Waited for a child process for",
            "Run that program outside the request, or keep a worker process instead of starting one \
             each time",
        ),
        _ => (
            false,
            "Blocked for a reason that is not known for",
            "See the rows of `waits` cited here: their system call tells what it was",
        ),
    }
}

const fn takes_peer(kind: Kind) -> bool {
    matches!(kind, Kind::NetRead | Kind::NetWrite | Kind::NetConnect | Kind::PollWait)
}

/// What thousands of waits look like that are too short for rows of their own (by the agent's default), and
/// what would help.
const fn many(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::NetWrite => (
            "that looks like many small pieces sent one by one",
            "Send less often and more at a time: a buffer, a batch, or a pipeline",
        ),
        Kind::NetConnect => (
            "that looks like many connections opened one after another",
            "Keep connections open and reuse them (a pool, CONN_MAX_AGE, keep-alive)",
        ),
        _ => (
            "that looks like many small queries or calls, one after another (N+1)",
            "Ask for more at a time: one query for all items instead of one for each (a join, IN, eager \
             loading), a batch, or a pipeline",
        ),
    }
}

/// `. The rows that there are (2 waits) are for 10.0.0.2:5432`, if they are for one peer.
fn rows_peer(waits: &[(&Wait, Interval)]) -> String {
    let peers: BTreeSet<_> = waits.iter().map(|(w, _)| w.peer.as_str()).collect();
    match (peers.first(), peers.len()) {
        (Some(peer), 1) if !peer.is_empty() => {
            format!(
                ". The rows that there are ({}) are for {peer}",
                words::count(waits.len(), "wait")
            )
        }
        _ => String::new(),
    }
}

/// The peer is watched: what it served is known.
fn followed(
    draft: Draft,
    (what, waited, count): (&str, &str, &str),
    peer: &str,
    served: Served<'_>,
    ns: u64,
) -> Finding {
    let request = served.longest;
    let (tid, thread) = match served.threads {
        1 => (request.tid, request.thread.clone()),
        n => (0, words::count(n, "thread")),
    };
    let culprit = Culprit {
        host: request.host.clone(),
        pid: request.pid,
        tid,
        thread,
        request_id: request.request_id.clone(),
        route: route(request),
        peer: peer.to_owned(),
        ..Culprit::new(served.ns.min(ns))
    };
    let text = format!("{what} {waited} ({count}): the peer {peer} was {}", served.words());
    let advice = format!(
        "Look at what that request did: `underspan explain {}`. Ask for less, or for several things at \
         once; set a time limit",
        request.request_id
    );
    draft.relation(Relation::Caused).culprit(Some(culprit)).say(text, advice)
}

/// The one peer that rows show for enough of the time, and in how many waits.
fn peer(waits: &[(&Wait, Interval)], at: &Cover, ns: u64) -> Option<(String, usize)> {
    let mut peers: BTreeMap<&str, (u64, usize)> = BTreeMap::new();
    for (wait, part) in waits.iter().filter(|(w, _)| !w.peer.is_empty()) {
        let (ns, count) = peers.entry(&wait.peer).or_default();
        *ns = ns.saturating_add(at.within(*part).total());
        *count += 1;
    }
    let (peer, (shown, count)) = peers.into_iter().max_by_key(|(_, (ns, _))| *ns)?;
    proven(shown, ns).then(|| (peer.to_owned(), count))
}
