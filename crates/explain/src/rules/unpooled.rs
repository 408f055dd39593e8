//! Connections opened where there had been some a moment before.

use std::collections::BTreeMap;

use underspan_model::{State, TcpConnect};

use crate::case::{Case, connect_row, proven};
use crate::finding::{Culprit, Finding, INTERFERENCE, Kind, Relation};
use crate::interval::{Cover, Interval};
use crate::rules::claims::{Claims, Wanted};
use crate::words;

/// Connected again within so short a time, it could have kept the last one.
const AGAIN_NS: u64 = 1_000_000_000;

/// What reconnecting cost, all peers together.
pub(super) fn find(case: &Case<'_>, claims: &mut Claims) -> Option<Finding> {
    let state = State::NetConnect;
    let waits = case.waits_of(case.request.tid, case.window.handler, |of| of == state);
    let waited: Cover = waits.iter().map(|(_, part)| *part).collect();
    let free = waited.subtract(&claims.cover(state));

    let mut peers: BTreeMap<&str, Peer<'_>> = BTreeMap::new();
    let mut long = Cover::default();
    for connect in case.connects.iter().filter(|c| c.tid == case.request.tid) {
        let whole = Interval::new(connect.start_time, connect.duration_ns);
        let part = whole.overlap(case.window.handler);
        // What did not connect was not there to be kept.
        if connect.outcome != "connected" || part.len() == 0 {
            continue;
        }
        let peer = peers.entry(&connect.peer).or_default();
        // Opened at once, as a client does that asks for several things at the same time: none of them
        // could have been used again for another.
        let is_beside = whole.start < peer.opened;
        peer.opened = peer.opened.max(whole.end);
        peer.connections += usize::from(!is_beside);
        if is_beside || connect.reconnect_ns == 0 || connect.reconnect_ns > AGAIN_NS {
            continue;
        }
        let shown = free.within(part).subtract(&long);
        let ns = if waited.within(part).total() > 0 {
            let ns = shown.total();
            long = long.union(&shown);
            ns
        } else {
            // Too short a wait for a row of its own.
            peer.short_ns = peer.short_ns.saturating_add(part.len());
            part.len()
        };
        peer.ns = peer.ns.saturating_add(ns);
        peer.again.push((ns, connect));
    }
    let wanted = Wanted::from([(state, long.clone())]);
    let in_rows: u64 = claims.parts(case, &wanted).iter().map(|(_, ns)| ns).sum();
    // Waits without rows are the rest of the cell, and no more.
    let without_rows = claims.left(case, state).saturating_sub(waited.total());
    let short = peers.values().fold(0u64, |sum, peer| sum.saturating_add(peer.short_ns));
    let short = short.min(without_rows).min(claims.left(case, state).saturating_sub(in_rows));
    let ns = in_rows + short;
    if !case.worth(ns, INTERFERENCE) {
        return None;
    }
    let all = peers.values().fold(0u64, |sum, peer| sum.saturating_add(peer.ns));
    let again: usize = peers.values().map(|peer| peer.again.len()).sum();
    let rows = peers.values().flat_map(|peer| &peer.again);
    let rows = rows.map(|(ns, connect)| (*ns, connect_row(connect))).collect();
    let (whom, peer) = peers.iter().max_by_key(|(_, peer)| peer.ns)?;
    let named = proven(peer.ns, all);
    let times = words::count(again, "connection");
    let whom = if named { (*whom).to_owned() } else { words::count(peers.len(), "peer") };
    // One thread that connects again and again in one request does not keep connections. A single
    // connection may just be one more in a pool.
    let is_certain = named && peer.connections > 2 && peer.again.len() > 1;
    let text = format!(
        "Opened {times} to {whom}, for {}, though its process had connected there less than a second \
         before{}",
        words::duration(ns),
        if is_certain { "" } else { "; that may be a pool that grows" }
    );
    let relation = if is_certain { Relation::Caused } else { Relation::Coincided };
    let culprit = Culprit { peer: whom, ..Culprit::new(ns) };
    let draft = case.draft(Kind::Unpooled, &[(state.name(), ns)]).located(case, &long).rows(rows);
    claims.take(case, &wanted);
    claims.take_ns(case, state, short);
    Some(draft.relation(relation).culprit(named.then_some(culprit)).say(
        text,
        "Keep connections open and reuse them: a pool in the client library (SQLAlchemy's pool, \
         CONN_MAX_AGE, psycopg_pool, requests.Session, keep-alive), at least one connection per request",
    ))
}

#[derive(Default)]
struct Peer<'a> {
    /// How many, those that were opened at once counted as one.
    connections: usize,
    /// When the last of them was open.
    opened: u64,
    again: Vec<(u64, &'a TcpConnect)>,
    ns: u64,
    short_ns: u64,
}
