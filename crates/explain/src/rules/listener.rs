//! Listening sockets whose accept queue was full.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use underspan_model::TcpListener;

use crate::case::{Case, accept_row, listener_row};
use crate::finding::{Finding, RowRef};
use crate::interval::Interval;
use crate::server::Server;
use crate::socket::{Ends, Socket, Stall, is_loopback, reaches};
use crate::words;

/// What helps at the end that listens.
pub(super) fn advice(server: Server) -> String {
    format!(
        "Accept faster: more worker processes or threads that accept{}. {}",
        server.processes(),
        longer(server)
    )
}

fn longer(server: Server) -> String {
    format!(
        "A longer queue helps against bursts only: raise the backlog{} and net.core.somaxconn, which \
         caps it",
        server.backlog()
    )
}

/// A full queue at the other end of a connection.
pub(super) struct Full {
    pub(super) host: String,
    pub(super) pid: u32,
    pub(super) process: String,
    /// There is one listening process that it can have been, on this host or on the one that accepted the
    /// connection. Of other hosts an address proves nothing: containers of many have the same ones.
    pub(super) is_certain: bool,
    /// The other end did not take the connection before what was sent on it was lost.
    was_established_late: bool,
    pub(super) overflows: u64,
    pub(super) limit: u32,
    pub(super) rows: Vec<(u64, RowRef)>,
}

impl Full {
    /// A full queue drops SYNs; and the last segment of a handshake, after which the client sends in vain.
    pub(super) fn explains(&self, stall: Stall) -> bool {
        match stall {
            Stall::SynRetry => true,
            Stall::Rto | Stall::TailLossProbe => self.was_established_late,
            Stall::FastRetransmit | Stall::ZeroWindow => false,
        }
    }

    pub(super) fn words(&self) -> String {
        let who = if self.is_certain {
            format!(" of {} ({}), which listens there,", self.process, self.pid)
        } else {
            String::from(" (of those that it can have been)")
        };
        let dropped = match self.overflows {
            1 => String::from("1 was dropped"),
            n => format!("{n} were dropped"),
        };
        format!(". The queue{who} holds {}, and {dropped} meanwhile", u64::from(self.limit) + 1)
    }
}

/// Whether the queue at the other end overflowed while this connection stood still.
pub(super) fn full(case: &Case<'_>, ends: Ends<'_>, socket: &Socket<'_>) -> Option<Full> {
    let (local, peer) = ends;
    let stalls = socket.losses.iter().filter(|(stall, _)| *stall != Stall::ZeroWindow);
    let stalls: Vec<_> =
        stalls.map(|(_, loss)| Interval::new(loss.start_time, loss.duration_ns)).collect();
    let accepted = case.accepts.iter().find(|a| {
        a.local == peer && a.peer == local && !local.is_empty() && reaches(case, &a.host, peer)
    });
    let here = |listener: &&&TcpListener| {
        let known = accepted.is_some_and(|accept| accept.host == listener.host);
        let own = listener.host == case.request.host && is_own(peer, local);
        // Who listened there before may be another process.
        let second = Interval::new(listener.start_time, listener.duration_ns);
        if second.overlap(case.window.whole).len() == 0 {
            return false;
        }
        match listens(listener, peer) {
            Listens::There => reaches(case, &listener.host, peer),
            Listens::Everywhere => known || own,
            Listens::Elsewhere => false,
        }
    };
    let listeners: Vec<_> = case.listeners.iter().filter(here).collect();
    let who: BTreeSet<_> = listeners.iter().map(|l| (&l.host, l.pid)).collect();
    let overflowed: Vec<_> = listeners
        .into_iter()
        .filter(|l| l.overflows > 0)
        .filter_map(|l| {
            let second = Interval::new(l.start_time, l.duration_ns);
            let ns = stalls.iter().map(|stall| stall.overlap(second).len()).max()?;
            (ns > 0).then_some((ns, *l))
        })
        .collect();
    let (_, first) = overflowed.first()?;
    let earliest = stalls.iter().map(|stall| stall.start).min()?;
    Some(Full {
        host: first.host.clone(),
        pid: first.pid,
        process: first.process.clone(),
        is_certain: who.len() == 1
            && (first.host == case.request.host
                || accepted.is_some_and(|accept| accept.host == first.host)),
        was_established_late: accepted.is_some_and(|accept| accept.start_time > earliest),
        overflows: overflowed.iter().fold(0, |sum, (_, l)| sum + u64::from(l.overflows)),
        limit: first.queue_limit,
        rows: overflowed.iter().map(|(ns, l)| (*ns, listener_row(l))).collect(),
    })
}

/// The request's own connection found a full queue when it came.
pub(super) struct OwnQueue {
    length: u32,
    limit: u32,
    overflows: u64,
    rows: Vec<RowRef>,
}

/// Whether the queue that the request's connection waited in was full.
pub(super) fn own(case: &Case<'_>) -> Option<OwnQueue> {
    let request = case.request;
    let accepted = case.accepts.iter().find(|a| {
        a.host == request.host
            && a.local == request.local
            && a.peer == request.peer
            && a.queue_limit > 0
            // It holds one more than its limit.
            && a.queue_length > a.queue_limit
    })?;
    let meanwhile = case.listeners.iter().filter(|l| {
        let second = Interval::new(l.start_time, l.duration_ns);
        l.host == request.host
            && !matches!(listens(l, &request.local), Listens::Elsewhere)
            && l.queue_limit == accepted.queue_limit
            && l.overflows > 0
            && second.overlap(case.window.accept_queue).len() > 0
    });
    let meanwhile: Vec<_> = meanwhile.collect();
    let mut rows = vec![accept_row(accepted)];
    rows.extend(meanwhile.iter().map(|l| listener_row(l)));
    Some(OwnQueue {
        length: accepted.queue_length,
        limit: accepted.queue_limit,
        overflows: meanwhile.iter().fold(0, |sum, l| sum + u64::from(l.overflows)),
        rows,
    })
}

impl OwnQueue {
    /// Says so in the finding about the wait in that queue.
    pub(super) fn add_to(self, case: &Case<'_>, mut finding: Finding) -> Finding {
        finding.pattern = "queue_full";
        finding.text += &format!(
            ". The queue was full: {} in it, {} allowed by its limit of {}",
            words::count(self.length as usize, "connection"),
            u64::from(self.limit) + 1,
            self.limit,
        );
        if self.overflows > 0 {
            // Drops are counted by the second.
            finding.text +=
                &format!("; {} more were dropped within a second of that", self.overflows);
        }
        finding.advice += ". ";
        // How to accept faster, the advice about the wait says.
        finding.advice += &longer(case.server());
        finding.evidence_rows += self.rows.len();
        finding.evidence.extend(self.rows);
        finding.evidence.truncate(Finding::MAX_ROWS);
        finding
    }
}

/// A client that was dropped tries again after a second, and two seconds later once more.
const AGAIN_NS: u64 = 3_000_000_000;

/// How many connections were dropped at the request's listener shortly before it came, by the seconds in which
/// they are counted.
pub(super) fn dropped_before(case: &Case<'_>) -> u64 {
    let (request, ready) = (case.request, case.window.whole.start);
    if request.conn_request != 0 || request.peer.parse::<SocketAddr>().is_err() {
        return 0;
    }
    let before = Interval::between(ready.saturating_sub(AGAIN_NS), ready);
    let meant = case.listeners.iter().filter(|l| {
        l.host == request.host
            && !matches!(listens(l, &request.local), Listens::Elsewhere)
            && Interval::new(l.start_time, l.duration_ns).overlap(before).len() > 0
    });
    // Of several processes each may tell of the one socket that they share.
    let mut seconds: BTreeMap<(u32, &str), u64> = BTreeMap::new();
    for listener in meant {
        let sum = seconds.entry((listener.pid, &listener.local)).or_default();
        *sum = sum.saturating_add(listener.overflows.into());
    }
    seconds.into_values().max().unwrap_or(0)
}

enum Listens {
    There,
    /// At that port of every address of its host.
    Everywhere,
    Elsewhere,
}

fn listens(listener: &TcpListener, address: &str) -> Listens {
    if listener.local == address {
        return Listens::There;
    }
    let parsed = |text: &str| text.parse::<SocketAddr>().ok();
    match (parsed(&listener.local), parsed(address)) {
        (Some(any), Some(one)) if any.ip().is_unspecified() && any.port() == one.port() => {
            Listens::Everywhere
        }
        _ => Listens::Elsewhere,
    }
}

/// An address of the same host, as far as addresses alone tell.
fn is_own(peer: &str, local: &str) -> bool {
    let ip = |text: &str| text.parse::<SocketAddr>().ok().map(|address| address.ip());
    is_loopback(peer) || (ip(peer).is_some() && ip(peer) == ip(local))
}
