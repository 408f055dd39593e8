//! A long way is not a loss.

use std::io::{Read as _, Write as _};
use std::thread;
use std::time::Duration;

use super::relay::Relay;
use super::wire::{Family, Wire};
use super::{MS, assert_close, connect, connected, handshake, listen, row, rows, settle, talk};
use crate::machine::Since;
use crate::watcher::Watcher;

/// Programs, a wire of any length, and this process watched.
fn watched() -> (Watcher, Wire, Relay) {
    let watcher = Watcher::new();
    let (wire, relay) = Wire::far();
    watcher.watch(std::process::id());
    (watcher, wire, relay)
}

#[test]
fn it_is_in_the_handshake_and_nowhere_else() {
    let (mut watcher, wire, relay) = watched();
    for (family, way) in Family::BOTH.into_iter().flat_map(|family| [(family, 40), (family, 150)]) {
        let listener = listen(&wire, family);
        relay.take(Duration::ZERO);
        // Neighbours find each other first.
        drop(connect(&wire, listener.local_addr().unwrap()));
        drop(listener.accept().unwrap());
        relay.take(Duration::from_millis(way));
        let before = wire.sent(&wire.client).len();
        relay.late();
        let (mut client, (mut server, accepting)) = thread::scope(|scope| {
            let server = scope.spawn(|| {
                let since = Since::now();
                (listener.accept().unwrap().0, since.took())
            });
            (connect(&wire, listener.local_addr().unwrap()), server.join().unwrap())
        });
        talk(&mut client, &mut server);
        let local = client.local_addr().unwrap();
        let made = row(&mut watcher, "tcp_connect", local);
        let took = handshake(&wire, before);
        assert!(took >= 2 * way * MS, "there and back: {took} ns");
        assert_close(made.u64("duration_ns"), took, "connecting");
        assert_eq!((made.text("outcome"), made.u64("syn_retransmits")), ("connected", 0));
        let peer = local.to_string();
        let accepted = watcher.row("tcp_accept", |row| row.text("peer") == peer);
        let (found, late) = (accepted.u64("handshake_ns"), relay.late());
        assert!(found >= 2 * way * MS, "the handshake: {found} ns");
        assert!(found <= 2 * (way * MS + late) + 5 * MS, "the handshake: {found} ns, {late} late");
        let queued = accepted.u64("queue_ns");
        assert!(queued < 5 * MS + accepting.late, "{accepted:?}: {accepting:?}");
        drop((client, server));
        thread::sleep(Duration::from_millis(4 * way));
    }
    watcher.drain();
    let told: Vec<_> = watcher.rows.iter().filter(|row| row.table == "tcp_loss").collect();
    assert!(told.is_empty(), "{told:#?}");
    watcher.assert_nothing_lost();
}

#[test]
fn segments_that_take_longer_than_the_timer_are_late_and_not_lost() {
    let (mut watcher, wire, relay) = watched();
    for family in Family::BOTH {
        relay.take(Duration::ZERO);
        let (mut client, mut server) = connected(&wire, family);
        talk(&mut client, &mut server);
        settle();
        let before = wire.sent(&wire.client).len();
        relay.take(Duration::from_secs(1));
        client.write_all(b"late").unwrap();
        server.read_exact(&mut [0; 4]).unwrap();
        thread::sleep(Duration::from_secs(1));
        settle();
        let sent = wire.sent(&wire.client).split_off(before);
        let again = sent.iter().filter(|packet| packet.len == 4).count();
        assert!(again > 1, "the kernel has sent it again: {sent:?}");
        for local in [client.local_addr().unwrap(), server.local_addr().unwrap()] {
            let told = rows(&mut watcher, "tcp_loss", local);
            assert!(told.is_empty(), "{told:#?}");
        }
    }
    watcher.assert_nothing_lost();
}

#[test]
fn a_syn_that_takes_longer_than_the_timer_was_not_answered_in_time() {
    let (mut watcher, wire, relay) = watched();
    for family in Family::BOTH {
        relay.take(Duration::ZERO);
        let listener = listen(&wire, family);
        drop(connect(&wire, listener.local_addr().unwrap()));
        relay.take(Duration::from_millis(600));
        let before = wire.sent(&wire.client).len();
        let client = connect(&wire, listener.local_addr().unwrap());
        let took = handshake(&wire, before);
        let local = client.local_addr().unwrap();
        let made = row(&mut watcher, "tcp_connect", local);
        assert_close(made.u64("duration_ns"), took, "connecting");
        assert!(took >= 1_200 * MS, "there and back: {took} ns");
        assert_eq!((made.text("outcome"), made.u64("syn_retransmits")), ("connected", 1));
        // Its acknowledgement says the same as if the first answer had been lost.
        let retry = row(&mut watcher, "tcp_loss", local);
        assert_eq!((retry.text("kind"), retry.u64("retransmits")), ("syn_retry", 1));
        assert_close(retry.u64("duration_ns"), took, "without an answer");
    }
    watcher.assert_nothing_lost();
}
