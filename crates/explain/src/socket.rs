//! The sockets that a request's thread waited on, and what happened on each meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use serde::Serialize;
use underspan_model::{Request, State, TcpLoss, Wait};

use crate::case::{Case, route};
use crate::finding::Part;
use crate::interval::{Cover, Interval};
use crate::window::Window;
use crate::words;

/// One socket that the request's own thread waited on, and what these waits consisted of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SocketWait {
    /// This end, `address:port`; empty if rows do not tell.
    pub local: String,
    /// The other end.
    pub peer: String,
    /// How many rows of `waits`.
    pub waits: usize,
    /// Their blocked time in the handler, in nanoseconds.
    pub ns: u64,
    /// Sums to `ns`: `fast_retransmit`, `tail_loss_probe`, `rto`, `syn_retry`, `zero_window`, `connect`
    /// (the rest of opening it), `peer` (the rest: the peer's own time, and the way there and back).
    pub parts: Vec<Part>,
    /// What the peer served meanwhile, if it is watched.
    pub request: Option<PeerRequest>,
}

/// A request that the other end of a connection served.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PeerRequest {
    /// Its host.
    pub host: String,
    /// The process that served it.
    pub pid: u32,
    /// The thread that did.
    pub tid: u32,
    /// The process's name.
    pub process: String,
    /// The thread's name.
    pub thread: String,
    /// Its id: `underspan explain` takes it.
    pub request_id: String,
    /// Method and path.
    pub route: String,
    /// How many requests that process served on this socket meanwhile; this is the one that took longest.
    pub requests: usize,
    /// For how long they overlap the waits.
    pub ns: u64,
    /// What it spent most of its time in: `accept_queue`, `handoff`, or a state.
    pub longest: Part,
}

/// Why a connection stood still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stall {
    SynRetry,
    Rto,
    TailLossProbe,
    FastRetransmit,
    ZeroWindow,
}

impl Stall {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Stall::SynRetry => "syn_retry",
            Stall::Rto => "rto",
            Stall::TailLossProbe => "tail_loss_probe",
            Stall::FastRetransmit => "fast_retransmit",
            Stall::ZeroWindow => "zero_window",
        }
    }

    pub(crate) const fn words(self) -> &'static str {
        match self {
            Stall::SynRetry => "SYN not answered",
            Stall::Rto => "retransmission timeout",
            Stall::TailLossProbe => "tail loss probe",
            Stall::FastRetransmit => "fast retransmit",
            Stall::ZeroWindow => "zero window",
        }
    }

    /// What a row says of bytes that this end of a socket sends, or waits for.
    fn of(loss: &TcpLoss, of_peer: bool) -> Option<Self> {
        Some(match (loss.kind.as_str(), of_peer) {
            ("syn_retry", false) => Stall::SynRetry,
            ("rto", _) => Stall::Rto,
            ("tail_loss_probe", _) => Stall::TailLossProbe,
            ("fast_retransmit", _) => Stall::FastRetransmit,
            // The peer does not read: this end sees its window, the peer its own.
            ("zero_window_peer", false) | ("zero_window_local", true) => Stall::ZeroWindow,
            _ => return None,
        })
    }
}

/// Both ends of a connection, `local` first.
pub(crate) type Ends<'a> = (&'a str, &'a str);

/// What waits on one socket consisted of. All sets of instants here are disjoint.
#[derive(Default)]
pub(crate) struct Socket<'a> {
    pub(crate) waits: Vec<(&'a Wait, Interval)>,
    pub(crate) states: BTreeMap<State, Cover>,
    pub(crate) stalls: BTreeMap<Stall, Cover>,
    pub(crate) losses: Vec<(Stall, &'a TcpLoss)>,
}

impl Socket<'_> {
    pub(crate) fn waited(&self) -> Cover {
        self.states.values().fold(Cover::default(), |all, cover| all.union(cover))
    }

    fn stalled(&self) -> Cover {
        self.stalls.values().fold(Cover::default(), |all, cover| all.union(cover))
    }
}

/// Every socket with a peer that the request's thread waited on in its handler.
pub(crate) fn sockets<'a>(case: &Case<'a>) -> BTreeMap<Ends<'a>, Socket<'a>> {
    let mut sockets: BTreeMap<Ends<'a>, Socket<'a>> = BTreeMap::new();
    let mut taken = Cover::default();
    for (wait, part) in case.waits_of(case.request.tid, case.window.handler, is_socket) {
        if wait.peer.is_empty() {
            continue;
        }
        let blocked = Cover::from(part).subtract(&taken);
        taken = taken.union(&blocked);
        let socket = sockets.entry((&wait.local, &wait.peer)).or_default();
        let state = socket.states.entry(wait.state).or_default();
        *state = state.union(&blocked);
        socket.waits.push((wait, part));
    }
    for (ends, socket) in &mut sockets {
        socket.losses =
            case.losses.iter().filter_map(|row| Some((stall(case, *ends, row)?, *row))).collect();
        socket.losses.sort_by_key(|(stall, _)| *stall);
        let mut left = socket.waited();
        for (stall, loss) in &socket.losses {
            let at = left.within(Interval::new(loss.start_time, loss.duration_ns));
            left = left.subtract(&at);
            let known = socket.stalls.entry(*stall).or_default();
            *known = known.union(&at);
        }
        socket.stalls.retain(|_, at| at.total() > 0);
    }
    sockets
}

/// What a row tells of the connection between these ends, if it is of that one.
fn stall(case: &Case<'_>, (local, peer): Ends<'_>, loss: &TcpLoss) -> Option<Stall> {
    let here = loss.host == case.request.host;
    let same = match local.is_empty() {
        true => loss.tid == case.request.tid,
        false => loss.local == local,
    };
    if here && same && loss.peer == peer {
        return Stall::of(loss, false);
    }
    let other_end = !local.is_empty() && loss.local == peer && loss.peer == local;
    let of_peer = other_end && reaches(case, &loss.host, peer);
    if of_peer { Stall::of(loss, true) } else { None }
}

/// Whether an address may be of that host: a loopback address is another one on each.
pub(crate) fn reaches(case: &Case<'_>, host: &str, address: &str) -> bool {
    host == case.request.host || !is_loopback(address)
}

pub(crate) fn is_loopback(address: &str) -> bool {
    address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
}

pub(crate) const fn is_socket(state: State) -> bool {
    matches!(state, State::NetRead | State::NetWrite | State::NetConnect | State::PollWait)
}

/// What the other ends served on these sockets during the given time.
pub(crate) fn served<'a>(case: &Case<'a>, ends: &[Ends<'_>], at: &Cover) -> Option<Served<'a>> {
    let mut by_process: BTreeMap<(&str, u32), Vec<(u64, &'a Request)>> = BTreeMap::new();
    for request in &case.peers {
        let other_end = |(local, peer): &&Ends<'_>| {
            !local.is_empty() && request.local == *peer && request.peer == *local
        };
        let whole = Interval::new(request.start_time, request.duration_ns);
        let ns = at.within(whole).total();
        if ns > 0
            && let Some((_, peer)) = ends.iter().find(other_end)
            && reaches(case, &request.host, peer)
        {
            by_process.entry((&request.host, request.pid)).or_default().push((ns, request));
        }
    }
    let of_process = |requests: Vec<(u64, &'a Request)>| {
        let cover: Cover =
            requests.iter().map(|(_, r)| Interval::new(r.start_time, r.duration_ns)).collect();
        let (_, longest) = requests.iter().max_by_key(|(ns, r)| (*ns, &r.request_id))?;
        let threads = requests.iter().map(|(_, r)| r.tid).collect::<BTreeSet<_>>().len();
        let ns = cover.intersect(at).total();
        Some(Served { longest, requests: requests.len(), threads, ns })
    };
    by_process.into_values().filter_map(of_process).max_by_key(|s| (s.ns, &s.longest.request_id))
}

/// What one process served.
#[derive(Clone, Copy)]
pub(crate) struct Served<'a> {
    pub(crate) longest: &'a Request,
    pub(crate) requests: usize,
    /// By how many threads.
    pub(crate) threads: usize,
    /// For how long, of the time asked for.
    pub(crate) ns: u64,
}

impl Served<'_> {
    fn view(&self) -> PeerRequest {
        let request = self.longest;
        PeerRequest {
            host: request.host.clone(),
            pid: request.pid,
            tid: request.tid,
            process: request.process.clone(),
            thread: request.thread.clone(),
            request_id: request.request_id.clone(),
            route: route(request),
            requests: self.requests,
            ns: self.ns,
            longest: longest_part(request),
        }
    }

    /// `gunicorn (4711), thread worker-1, serving GET /x (request 0000…), which spent 1800.0 ms
    /// waiting for the GIL`.
    pub(crate) fn words(&self) -> String {
        let request = self.longest;
        let id = &request.request_id;
        let others = match (self.requests, self.threads) {
            (1, _) => String::new(),
            (n, 1) => format!(", the longest of {n}"),
            (n, threads) => format!(", the longest of {n} on {threads} threads"),
        };
        let serving = match route(request) {
            route if route.is_empty() => format!("serving request {id}{others}"),
            route => format!("serving {route} (request {id}{others})"),
        };
        let part = longest_part(request);
        let host = if request.host.is_empty() { "" } else { " on " };
        format!(
            "{} ({}){host}{}, thread {}, {serving}, which spent {} {}",
            request.process,
            request.pid,
            request.host,
            request.thread,
            words::duration(part.ns),
            part_words(part.part),
        )
    }
}

fn part_words(part: &str) -> String {
    match part {
        "accept_queue" => String::from("in the accept queue"),
        "handoff" => String::from("waiting for a free thread"),
        "handler" => String::from("on its event loop"),
        state => format!("in {state}"),
    }
}

/// The longest of a request's phases and states.
fn longest_part(request: &Request) -> Part {
    let window = Window::of(request);
    let mut parts =
        vec![("accept_queue", window.accept_queue.len()), ("handoff", window.handoff.len())];
    if request.shared_thread != 0 {
        parts.push(("handler", window.handler.len()));
    } else {
        parts.extend(window.ledger.iter().map(|(state, ns)| (state.name(), ns)));
        parts.push(("unaccounted", window.unaccounted));
    }
    let (part, ns) = parts.into_iter().max_by_key(|(_, ns)| *ns).unwrap_or_default();
    Part { part, ns, fraction: words::fraction(ns, window.whole.len()) }
}

/// All sockets, the longest waits first.
pub(crate) fn view(case: &Case<'_>) -> Vec<SocketWait> {
    let whole = case.window.whole.len();
    let mut view: Vec<_> = case
        .sockets
        .iter()
        .map(|(ends, socket)| {
            let waited = socket.waited();
            let mut parts: Vec<(&'static str, u64)> =
                socket.stalls.iter().map(|(stall, at)| (stall.name(), at.total())).collect();
            let rest = waited.subtract(&socket.stalled());
            let empty = Cover::default();
            let connecting =
                socket.states.get(&State::NetConnect).unwrap_or(&empty).intersect(&rest);
            parts.push(("connect", connecting.total()));
            let peers_own = rest.subtract(&connecting);
            parts.push(("peer", peers_own.total()));
            let part = |(part, ns)| Part { part, ns, fraction: words::fraction(ns, whole) };
            SocketWait {
                local: ends.0.to_owned(),
                peer: ends.1.to_owned(),
                waits: socket.waits.len(),
                ns: waited.total(),
                parts: parts.into_iter().filter(|(_, ns)| *ns > 0).map(part).collect(),
                request: served(case, &[*ends], &waited).map(|served| served.view()),
            }
        })
        .collect();
    view.sort_by(|a, b| (b.ns, &a.peer, &a.local).cmp(&(a.ns, &b.peer, &b.local)));
    view
}
