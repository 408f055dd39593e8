//! Connections made and not made.

use super::wire::Family;
use super::{assert_close, connect, elapsed_since, listen, row, watched};
use crate::watcher::monotonic;

#[test]
fn a_connection_has_its_time_and_its_thread() {
    let (mut watcher, wire) = watched();
    for family in Family::BOTH {
        let listener = listen(&wire, family);
        let start = monotonic();
        let client = connect(&wire, listener.local_addr().unwrap());
        let took = elapsed_since(start);
        let row = row(&mut watcher, "tcp_connect", client.local_addr().unwrap());
        assert_close(row.u64("duration_ns"), took, "connecting");
        assert_eq!(row.text("peer"), listener.local_addr().unwrap().to_string());
        assert_eq!((row.text("outcome"), row.u64("syn_retransmits")), ("connected", 0));
        assert_eq!(row.u64("pid"), u64::from(std::process::id()));
    }
    watcher.assert_nothing_lost();
}
