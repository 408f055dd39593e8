//! What the kernel told nobody is made up for, or counted. It tells here, of course: what the programs
//! keep of a connection is set back to how it would be.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use nix::sys::socket::SockFlag;

use super::connect::{closed_port, connect_to, socket};
use super::wire::{Family, SYN, Wire};
use super::{
    MS, accept_late, assert_close, assert_took, connect, connected, listen, row, rows, settle,
    watched,
};
use crate::machine::Since;
use crate::watcher::{Watcher, maps};

/// Where `struct tcp_flow` has what is set back.
const CONNECTING: usize = 8;
const RETRANSMITS: usize = 72;
const STALL_KIND: usize = 120;
const CLOSED: usize = 138;

fn flows() -> MapHandle {
    maps("tcp_flows").pop().unwrap()
}

fn flow(socket: &impl AsRawFd) -> Vec<u8> {
    let key = socket.as_raw_fd().to_ne_bytes();
    flows().lookup(&key, MapFlags::ANY).unwrap().expect("it is watched")
}

/// Puts these bytes where those were.
#[track_caller]
fn set_back(socket: &impl AsRawFd, at: usize, from: &[u8], to: &[u8]) {
    let mut flow = flow(socket);
    let bytes = &mut flow[at..at + from.len()];
    assert_eq!(bytes, from, "struct tcp_flow is another");
    bytes.copy_from_slice(to);
    flows().update(&socket.as_raw_fd().to_ne_bytes(), &flow, MapFlags::ANY).unwrap();
}

pub(super) fn untold(watcher: &Watcher, tracker: &str) -> u64 {
    let lost = watcher.session.lost().unwrap();
    let of = lost.iter().filter(|lost| (lost.tracker, lost.reason) == (tracker, "untold"));
    of.map(|lost| lost.count).sum()
}

#[test]
fn a_connection_that_was_made_is_told_by_its_first_segment_or_its_end() {
    let (mut watcher, wire) = watched();
    for family in Family::BOTH {
        let (client, mut server) = connected(&wire, family);
        let local = client.local_addr().unwrap();
        let told = row(&mut watcher, "tcp_connect", local);
        let begun = told.u64("start_time").to_ne_bytes();
        set_back(&client, CONNECTING, &[0; 8], &begun);
        thread::sleep(Duration::from_millis(50));
        server.write_all(b"hello").unwrap();
        settle();
        set_back(&client, CONNECTING, &[0; 8], &begun);
        drop(client);
        let attempts = rows(&mut watcher, "tcp_connect", local);
        assert_eq!(attempts.len(), 3, "as it was told, by a segment, at its end: {attempts:?}");
        for again in attempts {
            assert_eq!((again.text("outcome"), again.u64("syn_retransmits")), ("connected", 0));
            assert_eq!(again.u64("start_time"), told.u64("start_time"));
            assert_close(again.u64("duration_ns"), told.u64("duration_ns"), "connecting");
        }
    }
    watcher.assert_nothing_lost();
}

#[test]
fn syns_that_were_sent_again_are_counted_by_the_kernel() {
    let (mut watcher, wire) = watched();
    wire.lose(&wire.client, SYN, 0, 1_000);
    for family in Family::BOTH {
        let client = socket(&wire, family, SockFlag::SOCK_NONBLOCK);
        let since = Since::now();
        connect_to(&client, closed_port(&wire, family)).unwrap_err();
        let local = client.local_addr().unwrap();
        thread::sleep(Duration::from_millis(1_300));
        // 4: TCP_SYN_RETRY
        set_back(&client, STALL_KIND, &[4], &[0]);
        // On a loaded machine it may be more than one by now.
        let again = flow(&client)[RETRANSMITS];
        set_back(&client, RETRANSMITS, &[again, 0, 0, 0], &[0; 4]);
        drop(client);
        let took = since.took();
        let retry = row(&mut watcher, "tcp_loss", local);
        assert_eq!((retry.text("kind"), retry.u64("retransmits")), ("syn_retry", again.into()));
        assert_took(retry.u64("duration_ns"), took, "trying");
    }
    watcher.assert_nothing_lost();
}

/// A connection that waits to be accepted, and after how many packets it came.
fn queued(wire: &Wire, to: SocketAddr) -> (TcpStream, usize) {
    let before = wire.sent(&wire.client).len();
    let client = connect(wire, to);
    thread::sleep(Duration::from_millis(120));
    (client, before)
}

#[test]
fn a_connection_of_which_nothing_is_known_waited_to_be_accepted_none_the_less() {
    let mut watcher = Watcher::new();
    let wire = Wire::new();
    let listeners = Family::BOTH.map(|family| listen(&wire, family));
    let locals = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
    // Two that are older than that anybody looked, then two of which nobody was told.
    let older = locals.map(|local| queued(&wire, local));
    watcher.watch(std::process::id());
    let later = locals.map(|local| queued(&wire, local));
    let waiting = maps("tcp_waiting").pop().unwrap();
    let keys: Vec<_> = waiting.keys().collect();
    assert_eq!(keys.len(), 2);
    for key in keys {
        waiting.delete(&key).unwrap();
    }
    for clients in [older, later] {
        for (listener, (client, before)) in listeners.iter().zip(clients) {
            let (_server, waited) = accept_late(&wire, before, listener);
            watcher.drain();
            let accepts = watcher.rows.iter().filter(|row| row.table == "tcp_accept");
            let peer = client.local_addr().unwrap().to_string();
            let accepts: Vec<_> = accepts.filter(|row| row.text("peer") == peer).collect();
            let [row] = accepts[..] else { panic!("one row, not {accepts:?}") };
            assert_eq!(row.text("local"), listener.local_addr().unwrap().to_string());
            assert_took(row.u64("queue_ns"), waited, "in the queue");
            let unknown = ["handshake_ns", "queue_length", "queue_limit", "synack_retransmits"];
            assert_eq!(unknown.map(|column| row.u64(column)), [0; 4], "rather than guessed");
        }
    }
    watcher.assert_nothing_lost();
}

#[test]
fn ends_are_counted() {
    let (mut watcher, wire) = watched();
    for family in Family::BOTH {
        let both =
            |watcher: &Watcher| ["tcp_connect", "tcp_loss"].map(|name| untold(watcher, name));
        let (client, server) = connected(&wire, family);
        let before = both(&watcher);
        drop(client);
        drop(server);
        settle();
        assert_eq!(both(&watcher), before, "these were told");

        let refused = socket(&wire, family, SockFlag::empty());
        connect_to(&refused, closed_port(&wire, family)).unwrap_err();
        set_back(&refused, CONNECTING, &[0; 8], &MS.to_ne_bytes());
        drop(refused);
        assert_eq!(both(&watcher), [before[0] + 1, before[1]], "an attempt failed");

        let (mut client, server) = connected(&wire, family);
        client.write_all(b"never read").unwrap();
        settle();
        drop(server);
        client.read(&mut [0]).unwrap_err();
        set_back(&client, CLOSED, &[1], &[0]);
        drop(client);
        assert_eq!(both(&watcher), [before[0] + 1, before[1] + 1], "a connection was reset");
    }
    watcher.drain();
    watcher.assert_nothing_lost();
}
