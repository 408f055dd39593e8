//! Where nothing is wrong, nothing is told.

use std::io::{Read as _, Write as _};
use std::thread;
use std::time::Duration;

use super::wire::Family;
use super::{MS, connected, settle, watched};

#[test]
fn connections_that_are_not_disturbed_lose_nothing() {
    let (mut watcher, wire) = watched();
    // As large as packets become; in order, and with room for each message in the window.
    for end in [&wire.client, &wire.server] {
        end.ip("link set wire gso_max_segs 65535");
    }
    let bytes = 30_000;
    for family in Family::BOTH {
        for _ in 0..10 {
            let (mut client, mut server) = connected(&wire, family);
            thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..20 {
                        client.write_all(&vec![1; bytes]).unwrap();
                        client.read_exact(&mut vec![0; bytes]).unwrap();
                    }
                });
                for _ in 0..20 {
                    server.read_exact(&mut vec![0; bytes]).unwrap();
                    server.write_all(&vec![1; bytes]).unwrap();
                }
            });
            // Both close, one after the other.
            drop(client);
            assert_eq!(server.read(&mut [0]).unwrap(), 0);
        }
    }
    settle();
    watcher.drain();
    let of = |table: &str| watcher.rows.iter().filter(|row| row.table == table).count();
    assert_eq!((of("tcp_connect"), of("tcp_accept")), (20, 20));
    let told: Vec<_> = watcher.rows.iter().filter(|row| row.table == "tcp_loss").collect();
    assert!(told.is_empty(), "{told:#?}");
    for row in watcher.rows.iter().filter(|row| row.table == "tcp_accept") {
        assert!(row.u64("handshake_ns") < 5 * MS, "{row:?}");
    }
    watcher.assert_nothing_lost();
}

#[test]
fn a_peer_that_says_nothing_for_a_while_loses_nothing() {
    let (mut watcher, wire) = watched();
    for family in Family::BOTH {
        let (mut client, mut server) = connected(&wire, family);
        thread::scope(|scope| {
            scope.spawn(|| {
                server.read_exact(&mut [0; 8]).unwrap();
                thread::sleep(Duration::from_millis(700));
                server.write_all(b"answer").unwrap();
            });
            client.write_all(b"question").unwrap();
            client.read_exact(&mut [0; 6]).unwrap();
        });
    }
    settle();
    watcher.drain();
    let told: Vec<_> = watcher.rows.iter().filter(|row| row.table == "tcp_loss").collect();
    assert!(told.is_empty(), "{told:#?}");
    watcher.assert_nothing_lost();
}
