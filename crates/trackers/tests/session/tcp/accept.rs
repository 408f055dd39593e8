//! Late accepts, slow handshakes, full queues.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use libbpf_rs::MapCore as _;

use super::wire::{ACK, Family, SYN, Wire};
use super::{
    MS, accept_late, assert_close, assert_took, connect, listen, row, rows, settle, timed_connect,
    watched,
};
use crate::machine::Since;
use crate::support::Row;
use crate::watcher::{Watcher, maps};
use crate::workload::eventually;

#[test]
fn a_late_accept_is_time_in_the_queue() {
    let (mut watcher, wire) = watched();
    for family in Family::BOTH {
        let listener = listen(&wire, family);
        let before = wire.sent(&wire.client).len();
        let client = connect(&wire, listener.local_addr().unwrap());
        thread::sleep(Duration::from_millis(120));
        let (server, waited) = accept_late(&wire, before, &listener);
        let row = row(&mut watcher, "tcp_accept", server.local_addr().unwrap());
        assert_took(row.u64("queue_ns"), waited, "in the queue");
        assert_eq!(row.u64("duration_ns"), row.u64("queue_ns"));
        assert!(row.u64("handshake_ns") > 0 && row.u64("handshake_ns") < 5 * MS, "{row:?}");
        assert_eq!(row.text("peer"), client.local_addr().unwrap().to_string());
        assert_eq!((row.u64("queue_length"), row.u64("synack_retransmits")), (1, 0));
        assert_eq!(row.u64("pid"), u64::from(std::process::id()));
    }
    watcher.assert_nothing_lost();
}

#[test]
fn a_lost_acknowledgement_makes_a_long_handshake() {
    let (mut watcher, wire) = watched();
    for family in Family::BOTH {
        let listener = listen(&wire, family);
        let (ours, theirs) = (wire.sent(&wire.client).len(), wire.sent(&wire.server).len());
        wire.lose(&wire.client, ACK, 0, 1);
        let since = Since::now();
        let _client = connect(&wire, listener.local_addr().unwrap());
        let (server, _) = listener.accept().unwrap();
        let late = since.took().late;
        let first = wire.sent(&wire.server)[theirs].time;
        let acks = wire.sent(&wire.client).split_off(ours);
        let ack = acks.iter().find(|packet| packet.flags & 0x12 == 0x10 && !packet.lost).unwrap();
        let row = row(&mut watcher, "tcp_accept", server.local_addr().unwrap());
        assert_close(row.u64("handshake_ns"), ack.time - first, "the handshake");
        assert!(row.u64("handshake_ns") > 900 * MS, "a second until it is sent again");
        assert_eq!(row.u64("synack_retransmits"), 1);
        assert!(row.u64("queue_ns") < 20 * MS + late, "{row:?}");
    }
    watcher.assert_nothing_lost();
}

/// Sockets that listen, and a thread in their namespace that goes on living: of a listener's
/// namespace its thread tells.
fn with_listeners<const N: usize, T>(
    wire: &Wire,
    family: Family,
    prepare: impl FnOnce() + Send,
    what: impl FnOnce([TcpListener; N]) -> T,
) -> T {
    let address = SocketAddr::new(wire.server.address(family), 0);
    let (give, take) = mpsc::channel();
    let (finish, finished) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            wire.server.within(move || {
                prepare();
                give.send([(); N].map(|()| TcpListener::bind(address).unwrap())).unwrap();
                let _ = finished.recv();
            });
        });
        let result = what(take.recv().unwrap());
        drop(finish);
        result
    })
}

/// From now on one connection fits into its queues, and one more into that of those to be accepted.
fn holds_one(listener: &TcpListener) {
    // SAFETY: the descriptor is open; a socket that listens may be told again.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 1) }, 0);
}

/// Reads the listening sockets, and finds this one's rows.
fn listener_rows(watcher: &mut Watcher, local: SocketAddr) -> Vec<Row> {
    watcher.session.tell_listeners().unwrap();
    rows(watcher, "tcp_listener", local)
}

#[test]
fn a_full_queue_makes_clients_try_again() {
    let (mut watcher, wire) = watched();
    for family in Family::BOTH {
        let wire = &wire;
        with_listeners(
            wire,
            family,
            || (),
            |[listener]| {
                let local = listener.local_addr().unwrap();
                holds_one(&listener);
                listener_rows(&mut watcher, local);
                let _two = [connect(wire, local), connect(wire, local)];
                let (late, took) = thread::scope(|scope| {
                    let late = scope.spawn(move || timed_connect(wire, local));
                    thread::sleep(Duration::from_millis(300));
                    let _accepted = [listener.accept().unwrap(), listener.accept().unwrap()];
                    late.join().unwrap()
                });
                assert!(took.ns > 900 * MS, "the queue was full: {took:?}");
                let address = late.local_addr().unwrap();
                let attempt = row(&mut watcher, "tcp_connect", address);
                assert_took(attempt.u64("duration_ns"), took, "connecting");
                assert_eq!(
                    (attempt.text("outcome"), attempt.u64("syn_retransmits")),
                    ("connected", 1)
                );
                let retry = row(&mut watcher, "tcp_loss", address);
                assert_eq!(retry.text("kind"), "syn_retry");
                assert_took(retry.u64("duration_ns"), took, "connecting again");

                let told = listener_rows(&mut watcher, local);
                let sum = |column| told.iter().map(|row| row.u64(column)).sum::<u64>();
                assert_eq!(
                    (sum("overflows"), sum("drops"), sum("syn_cookies")),
                    (1, 1, 0),
                    "{told:?}"
                );
                let longest = told.iter().map(|row| row.u64("queue_length")).max();
                assert_eq!(
                    (longest, told[0].u64("queue_limit")),
                    (Some(2), 1),
                    "it holds one more"
                );
            },
        );
    }
    watcher.assert_nothing_lost();
}

#[test]
fn what_overflows_beside_a_socket_that_drops_for_another_reason_is_not_its() {
    let (mut watcher, wire) = watched();
    for family in Family::BOTH {
        let wire = &wire;
        let never = || std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "0").unwrap();
        with_listeners(wire, family, never, |[full, half_open]| {
            let locals = [&full, &half_open].map(|listener| listener.local_addr().unwrap());
            for listener in [&full, &half_open] {
                holds_one(listener);
            }
            let _accepted = [connect(wire, locals[0]), connect(wire, locals[0])];
            wire.lose(&wire.client, ACK, 0, 1_000);
            let _unheard = connect(wire, locals[1]);
            listener_rows(&mut watcher, locals[0]);
            thread::scope(|scope| {
                // Kernels differ by one in how many handshakes they take.
                let to = [locals[0], locals[1], locals[1]];
                let late = to.map(|local| scope.spawn(move || connect(wire, local)));
                settle();
                // On a busy machine they come later.
                eventually("each dropped one", || {
                    watcher.session.tell_listeners().unwrap();
                    let told = locals.map(|local| rows(&mut watcher, "tcp_listener", local));
                    let dropped = |rows: &Vec<Row>| rows.iter().any(|row| row.u64("drops") > 0);
                    told.iter().all(dropped).then_some(())
                });
                let _ = full.accept().unwrap();
                wire.lose(&wire.client, ACK, 0, 0);
                let _ = half_open.accept().unwrap();
                for late in late {
                    late.join().unwrap();
                }
            });
            let sums = locals.map(|local| {
                let told = rows(&mut watcher, "tcp_listener", local);
                ["overflows", "drops"]
                    .map(|column| told.iter().map(|row| row.u64(column)).sum::<u64>())
            });
            assert_eq!(sums[0], [1, 1], "full");
            assert!(sums[1][0] == 0 && sums[1][1] >= 1, "half open: {:?}", sums[1]);
        });
    }
    watcher.assert_nothing_lost();
}

#[test]
fn cookies_are_counted() {
    let (mut watcher, wire) = watched();
    for family in Family::BOTH {
        let always = || std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2").unwrap();
        with_listeners(&wire, family, always, |[listener]| {
            let local = listener.local_addr().unwrap();
            listener_rows(&mut watcher, local);
            let _client = connect(&wire, local);
            let (server, _) = listener.accept().unwrap();
            let told = listener_rows(&mut watcher, local);
            let cookies: u64 = told.iter().map(|row| row.u64("syn_cookies")).sum();
            assert_eq!(cookies, 1, "{told:?}");
            let row = row(&mut watcher, "tcp_accept", server.local_addr().unwrap());
            assert_eq!(row.u64("handshake_ns"), 0, "not known, rather than guessed");
        });
    }
}

#[test]
fn sockets_that_listen_before_they_are_watched_are_found() {
    let watcher = &mut Watcher::new();
    let wire = Wire::new();
    let listener = listen(&wire, Family::V4);
    watcher.watch(std::process::id());
    let _client = connect(&wire, listener.local_addr().unwrap());
    let (server, _) = listener.accept().unwrap();
    row(watcher, "tcp_accept", server.local_addr().unwrap());
    assert_eq!(listener_rows(watcher, listener.local_addr().unwrap()).len(), 1);
}

#[test]
fn handshakes_that_fail_leave_nothing() {
    let (mut watcher, wire) = watched();
    let listener = listen(&wire, Family::V4);
    let address = listener.local_addr().unwrap();
    // Nobody's acknowledgements arrive: half-open, until the clients give up.
    wire.lose(&wire.client, ACK, 0, 1_000);
    let clients: Vec<TcpStream> = (0..20).map(|_| connect(&wire, address)).collect();
    settle();
    drop(clients);
    wire.lose(&wire.client, ACK | SYN, 0, 0);
    let entries = |name: &str| maps(name).iter().map(|map| map.keys().count()).sum::<usize>();
    assert_eq!(maps("tcp_waiting").len(), 1);
    assert_eq!(entries("tcp_waiting"), 0, "nobody waits for accept");
    assert_eq!(entries("tcp_listeners"), 1);
    drop(listener);
    eventually("the listener is forgotten", || (entries("tcp_listeners") == 0).then_some(()));
    watcher.drain();
    watcher.assert_nothing_lost();
}
