//! The phases of a request, over TCP and over a Unix socket.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::{MS, ask, check, two_requests};
use crate::machine::SinceOf;
use crate::watcher::{Watcher, monotonic};
use crate::workload::Workload;

#[test]
fn over_tcp() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let port = workload.ask("serve");
    let connecting = monotonic();
    let stream = TcpStream::connect(("127.0.0.1", port as u16)).unwrap();
    let (local, peer) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
    for row in two_requests(&mut watcher, &workload, stream, connecting) {
        assert_eq!(row.text("peer"), local.to_string());
        assert_eq!(row.text("local"), peer.to_string());
        assert_eq!(row.u64("pid"), u64::from(workload.pid));
        assert!(row.u64("bytes_in") > 30);
        assert_eq!(row.u64("bytes_out"), 40);
    }
}

#[test]
fn over_a_unix_socket() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let path = format!("{}/serve-{}", env!("CARGO_TARGET_TMPDIR"), workload.pid);
    workload.ask(&format!("serve-unix {path}"));
    let connecting = monotonic();
    let stream = UnixStream::connect(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    for row in two_requests(&mut watcher, &workload, stream, connecting) {
        assert_eq!((row.text("peer"), row.text("local")), ("unix", "unix"));
    }
}

#[test]
fn a_silent_client_is_no_handoff() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let port = workload.ask("serve");
    let mut stream = TcpStream::connect(("127.0.0.1", port as u16)).unwrap();
    std::thread::sleep(Duration::from_millis(400));
    let begun = SinceOf::now(&workload);
    let asked = ask(&mut stream, "/late");
    let late = begun.late(&workload);
    drop(stream);
    let row = watcher.row("requests", |row| row.text("path") == "/late");
    check(&row, asked, late);
    assert_eq!(row.u64("accept_queue_ns"), 0);
    assert!(row.u64("handoff_ns") < 20 * MS + late, "{row:?}");
    assert!(row.u64("accept_to_read_ns") > 300 * MS, "the raw figure has the silence: {row:?}");
}
