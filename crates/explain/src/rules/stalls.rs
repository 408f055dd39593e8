//! Connections that stood still: segments lost, a full accept queue, a peer that does not read.

use std::collections::{BTreeMap, BTreeSet};

use underspan_model::TcpLoss;

use crate::case::{Case, loss_row, proven};
use crate::finding::{Culprit, Finding, INTERFERENCE, Kind, Relation, RowRef};
use crate::interval::{Cover, Interval};
use crate::rules::claims::{Claims, Wanted};
use crate::rules::listener::{self, Full};
use crate::rules::reader;
use crate::server::Server;
use crate::socket::{Ends, Socket, Stall};
use crate::words;

/// Stalls, and what they take of the ledger.
pub(super) fn find(case: &Case<'_>, claims: &mut Claims) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    found.extend(accept_queue_full(case, claims));
    found.extend(retransmission(case, claims));
    found.extend(zero_window(case, claims));
    found
}

/// One socket's part in a finding.
pub(super) struct Part<'c, 'a> {
    pub(super) ends: Ends<'a>,
    pub(super) socket: &'c Socket<'a>,
    pub(super) at: Cover,
}

/// Stalls of the kinds asked for, all sockets together.
struct Stalled<'c, 'a> {
    parts: Vec<Part<'c, 'a>>,
    wanted: Wanted,
    at: Cover,
    rows: Vec<(u64, RowRef)>,
}

impl<'c, 'a> Stalled<'c, 'a> {
    fn new(
        case: &'c Case<'a>,
        claims: &Claims,
        is_meant: impl Fn(&Ends<'a>, &Socket<'a>, Stall) -> bool,
    ) -> Self {
        let mut all =
            Stalled { parts: vec![], wanted: Wanted::new(), at: Cover::default(), rows: vec![] };
        for (ends, socket) in &case.sockets {
            let mut at = Cover::default();
            let meant: Vec<_> =
                socket.stalls.keys().copied().filter(|s| is_meant(ends, socket, *s)).collect();
            for stall in &meant {
                at = socket.stalls.get(stall).map_or(at.clone(), |stalled| at.union(stalled));
            }
            for (state, waited) in &socket.states {
                let wanted = waited.intersect(&at).subtract(&claims.cover(*state));
                if wanted.total() > 0 {
                    let known = all.wanted.entry(*state).or_default();
                    *known = known.union(&wanted);
                }
            }
            let told = |(stall, _): &&(Stall, &TcpLoss)| meant.contains(stall);
            all.rows.extend(socket.losses.iter().filter(told).filter_map(|(_, loss)| {
                let ns = at.within(Interval::new(loss.start_time, loss.duration_ns)).total();
                (ns > 0).then(|| (ns, loss_row(loss)))
            }));
            if at.total() > 0 {
                all.at = all.at.union(&at);
                all.parts.push(Part { ends: *ends, socket, at });
            }
        }
        all
    }

    /// The one peer that accounts for enough of it.
    fn peer(&self) -> Option<&Part<'c, 'a>> {
        let part = self.parts.iter().max_by_key(|part| (part.at.total(), part.ends))?;
        proven(part.at.total(), self.at.total()).then_some(part)
    }

    fn culprit(&self, ns: u64) -> Option<Culprit> {
        let part = self.peer()?;
        let ns = part.at.total().min(ns);
        Some(Culprit { peer: part.ends.1.to_owned(), ..Culprit::new(ns) })
    }

    /// `10.0.0.2:5432`, or how many there are.
    fn whom(&self) -> String {
        match self.peer() {
            Some(part) => part.ends.1.to_owned(),
            None => words::count(self.parts.len(), "connection"),
        }
    }
}

fn worth(case: &Case<'_>, parts: &[(&'static str, u64)]) -> Option<u64> {
    let ns = parts.iter().map(|(_, ns)| ns).sum();
    case.worth(ns, INTERFERENCE).then_some(ns)
}

/// Attempts to connect that the other end dropped, since nobody accepted what was in its queue.
fn accept_queue_full(case: &Case<'_>, claims: &mut Claims) -> Option<Finding> {
    let mut full: BTreeMap<Ends<'_>, Full> = BTreeMap::new();
    for (ends, socket) in &case.sockets {
        if let Some(found) = listener::full(case, *ends, socket) {
            full.insert(*ends, found);
        }
    }
    let stalled = Stalled::new(case, claims, |ends, _, stall| {
        stall != Stall::ZeroWindow && full.get(ends).is_some_and(|full| full.explains(stall))
    });
    let parts = claims.parts(case, &stalled.wanted);
    let ns = worth(case, &parts)?;
    let named = stalled.peer().and_then(|part| full.remove(&part.ends));
    let relation = match &named {
        Some(full) if full.is_certain => Relation::Caused,
        _ => Relation::Coincided,
    };
    let mut rows = stalled.rows.clone();
    let mut text = format!(
        "Connecting to {} was held up for {}: its accept queue was full, and what came was dropped and \
         sent again after a second or more",
        stalled.whom(),
        words::duration(ns)
    );
    let mut culprit = stalled.culprit(ns);
    let listens = named.as_ref().filter(|full| full.is_certain);
    let server = listens.map_or(Server::Other, |full| Server::by_name(&full.process));
    if let Some(full) = named {
        text += &full.words();
        if let (true, Some(culprit)) = (full.is_certain, culprit.as_mut()) {
            culprit.host.clone_from(&full.host);
            culprit.pid = full.pid;
            culprit.thread.clone_from(&full.process);
        }
        rows.extend(full.rows);
    }
    let draft = case.draft(Kind::AcceptQueueFull, &parts).located(case, &stalled.at).rows(rows);
    claims.take(case, &stalled.wanted);
    Some(draft.relation(relation).culprit(culprit).say(text, listener::advice(server)))
}

/// Segments that were lost, or whose acknowledgement was.
fn retransmission(case: &Case<'_>, claims: &mut Claims) -> Option<Finding> {
    let stalled = Stalled::new(case, claims, |_, _, stall| stall != Stall::ZeroWindow);
    let parts = claims.parts(case, &stalled.wanted);
    let ns = worth(case, &parts)?;
    let client = stalled.peer().is_some_and(|part| part.ends.1 == case.request.peer);
    let whom = if client { format!("the client {}", stalled.whom()) } else { stalled.whom() };
    let text = format!(
        "Waited {} for what was lost on the way to or from {whom} and sent again: {}",
        words::duration(ns),
        kinds(&stalled)
    );
    let syn = stalled.parts.iter().all(|part| part.socket.stalls.contains_key(&Stall::SynRetry));
    let advice = if syn {
        "The peer, or a firewall on the way, did not answer the first SYN: look at its accept queue \
         (nstat TcpExtListenDrops there) and at drops on the way; keep connections open and reuse them, \
         so that no request has to wait for a SYN"
    } else {
        "Packets are dropped on the way: look at drops of interfaces and queues on both hosts \
         (`underspan sql`, table throttle) and at the network's allowance. Retransmission timeouts are \
         what single small packets suffer; a time limit and a second attempt on another connection \
         is often faster"
    };
    let culprit = stalled.culprit(ns);
    let draft = case.draft(Kind::Retransmission, &parts).located(case, &stalled.at);
    claims.take(case, &stalled.wanted);
    let relation = if culprit.is_some() { Relation::Caused } else { Relation::Unknown };
    Some(draft.rows(stalled.rows).relation(relation).culprit(culprit).say(text, advice))
}

/// `retransmission timeout 1021.3 ms (2 segments, timer doubled once)`, the longest first.
fn kinds(stalled: &Stalled<'_, '_>) -> String {
    let mut kinds: BTreeMap<Stall, (u64, u64, u8)> = BTreeMap::new();
    for part in &stalled.parts {
        for (stall, at) in &part.socket.stalls {
            let ns = at.intersect(&part.at).total();
            if ns > 0 {
                let sum = kinds.entry(*stall).or_default();
                sum.0 = sum.0.saturating_add(ns);
            }
        }
        let mut seen = BTreeSet::new();
        for (stall, loss) in &part.socket.losses {
            if part.at.within(Interval::new(loss.start_time, loss.duration_ns)).total() > 0
                && let Some(sum) = kinds.get_mut(stall)
                && seen.insert((loss.start_time, &loss.host, &loss.local))
            {
                sum.1 = sum.1.saturating_add(loss.retransmits.into());
                sum.2 = sum.2.max(loss.backoff);
            }
        }
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(stall, (ns, ..))| (std::cmp::Reverse(*ns), *stall));
    let words = kinds.into_iter().map(|(stall, (ns, segments, backoff))| {
        let segments = words::count(usize::try_from(segments).unwrap_or(usize::MAX), "segment");
        let doubled = match backoff {
            0 => String::new(),
            1 => String::from(", timer doubled once"),
            n => format!(", timer doubled {n} times"),
        };
        format!("{} {} ({segments}{doubled})", stall.words(), words::duration(ns))
    });
    words.collect::<Vec<_>>().join(", ")
}

/// The other end did not read, and this one could not send on.
fn zero_window(case: &Case<'_>, claims: &mut Claims) -> Option<Finding> {
    let stalled = Stalled::new(case, claims, |_, _, stall| stall == Stall::ZeroWindow);
    let parts = claims.parts(case, &stalled.wanted);
    let ns = worth(case, &parts)?;
    let client = stalled.peer().is_some_and(|part| part.ends.1 == case.request.peer);
    let whom = if client { format!("the client {}", stalled.whom()) } else { stalled.whom() };
    let mut text =
        format!("Waited {} because {whom} did not read: its window was full", words::duration(ns));
    let mut culprit = stalled.culprit(ns);
    let mut rows = stalled.rows.clone();
    if let (Some(part), Some(culprit)) = (stalled.peer(), culprit.as_mut()) {
        match reader::find(case, part) {
            Some(reader) => {
                text += &format!(". {}", reader.words());
                reader.blame(culprit);
                rows.extend(reader.rows);
            }
            None => text += "; what kept it from reading is not known, since it is not watched",
        }
    }
    let advice = if client {
        format!("The client itself is slow. {}", case.server().slow_client())
    } else {
        String::from(
            "Let the reader read at once and work later (a thread or queue between), or send less; a \
             time limit for sending frees this thread",
        )
    };
    let draft = case.draft(Kind::ZeroWindow, &parts).located(case, &stalled.at).rows(rows);
    claims.take(case, &stalled.wanted);
    let relation = if culprit.is_some() { Relation::Caused } else { Relation::Unknown };
    Some(draft.relation(relation).culprit(culprit).say(text, advice))
}
