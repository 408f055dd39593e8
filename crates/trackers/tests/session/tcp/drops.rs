//! Segments that arrive and are thrown away.

use std::io::{Read as _, Write as _};
use std::thread;

use super::wire::Family;
use super::{connected, rows, set_option, settle, watched};

#[test]
fn for_want_of_memory() {
    let (mut watcher, wire) = watched();
    let hook = watcher.session.hooks().iter().find(|hook| hook.what == "packets dropped");
    if hook.is_some_and(|hook| hook.outcome.is_none()) {
        return; // before Linux 6.11 it does not say whose they were
    }
    for family in Family::BOTH {
        let (mut client, mut server) = connected(&wire, family);
        // The window that the client was told of no longer fits.
        set_option(&server, libc::SOL_SOCKET, libc::SO_RCVBUF, 1);
        let bytes = 60_000;
        thread::scope(|scope| {
            scope.spawn(|| client.write_all(&vec![1; bytes]).unwrap());
            settle();
            server.read_exact(&mut vec![0; bytes]).unwrap();
        });
        let local = server.local_addr().unwrap();
        drop((client, server));
        settle();
        let told = rows(&mut watcher, "tcp_loss", local);
        let drops: Vec<_> = told.iter().filter(|row| row.text("kind") == "drop").collect();
        assert!(!drops.is_empty(), "{told:#?}");
        // What came out of order before goes first.
        assert!(drops.iter().any(|row| row.text("reason") == "memory"), "{drops:#?}");
        for row in drops {
            assert!(["memory", "out_of_order_queue"].contains(&row.text("reason")), "{row:?}");
            assert_eq!(row.u64("duration_ns"), 0);
            assert!(row.u64("retransmits") > 0 && row.u64("bytes") > row.u64("retransmits"));
        }
    }
    watcher.assert_nothing_lost();
}
