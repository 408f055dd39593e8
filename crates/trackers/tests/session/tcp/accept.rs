//! Late accepts, slow handshakes, full queues.

use std::net::TcpListener;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::thread;
use std::time::Duration;

use super::wire::{ACK, Family, SYN_ACK};
use super::{MS, assert_close, connect, elapsed_since, listen, row, rows, settle, watched};
use crate::watcher::monotonic;

#[test]
fn a_late_accept_is_time_in_the_queue() {
    let (mut watcher, wire) = watched();
    for family in Family::BOTH {
        let listener = listen(&wire, family);
        let client = connect(&wire, listener.local_addr().unwrap());
        let there = monotonic();
        thread::sleep(Duration::from_millis(120));
        let (server, _) = listener.accept().unwrap();
        let waited = elapsed_since(there);
        let row = row(&mut watcher, "tcp_accept", server.local_addr().unwrap());
        assert_close(row.u64("queue_ns"), waited, "in the queue");
        assert_eq!(row.u64("duration_ns"), row.u64("queue_ns"));
        assert!(row.u64("handshake_ns") > 0 && row.u64("handshake_ns") < 5 * MS, "{row:?}");
        assert_eq!(row.text("peer"), client.local_addr().unwrap().to_string());
        assert_eq!((row.u64("queue_length"), row.u64("synack_retransmits")), (1, 0));
        assert_eq!(row.u64("pid"), u64::from(std::process::id()));
    }
    watcher.assert_nothing_lost();
}
