//! Segments that arrive and are thrown away.

use std::io::{Read as _, Write as _};
use std::thread;

use super::wire::Family;
use super::{connected, rows, set_option, settle, watched};
use crate::watcher::Watcher;

/// Since Linux 6.11 the kernel says whose packets they were. Where it does not, that is what `doctor` says.
fn are_told(watcher: &Watcher) -> bool {
    let mut hooks = watcher.session.hooks().iter();
    let hook = hooks.find(|hook| hook.what == "packets dropped").expect("one of tcp_loss");
    if hook.outcome.is_some() {
        return true;
    }
    assert!(kernel() < (6, 11), "{hook:?}");
    let [(_, why)] = &hook.failed[..] else { panic!("one way, and why not: {hook:?}") };
    assert_eq!(why, "this kernel's has 3 arguments, 4 are needed");
    false
}

/// The first two numbers of its release.
fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse().ok());
    numbers.next().zip(numbers.next()).expect("a release")
}

#[test]
fn for_want_of_memory() {
    let (mut watcher, wire) = watched();
    let are_told = are_told(&watcher);
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
        if !are_told {
            assert!(drops.is_empty(), "{drops:#?}");
            continue;
        }
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
