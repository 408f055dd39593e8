//! Connections and requests that had begun before their server was watched.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use underspan_trackers::Attach;

use super::{HANDED, HANDLED, MS, ask, assert_within, check};
use crate::machine::{Since, SinceOf};
use crate::support::Row;
use crate::watcher::{Watcher, monotonic};
use crate::workload::{Workload, eventually};

/// Whether something has come that was not read.
fn is_readable(stream: &impl AsRawFd) -> bool {
    let mut one = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: it is one, as is said.
    let ready = unsafe { libc::poll(&raw mut one, 1, 0) };
    ready == 1
}

/// Two requests on a connection that has served one already, the second while the first is handled; their
/// rows.
fn two_on_an_old_connection(
    watcher: &mut Watcher,
    workload: &Workload,
    mut stream: impl Read + Write + AsRawFd,
) -> [Row; 2] {
    watcher.watch(workload.pid);
    // It watches the client, too, whose end of the connection serves nothing.
    watcher.watch(std::process::id());
    let reads = watcher.session.hooks().iter().find(|hook| hook.what == "bytes read").unwrap();
    if matches!(reads.outcome, Some(Attach::Fexit(_))) {
        // A read that had begun before is not seen: the server has been in one since then.
        ask(&mut stream, "/unseen");
    }
    let (begun, asking) = (SinceOf::now(workload), Since::now());
    stream.write_all(b"GET /first HTTP/1.1\r\n\r\n").unwrap();
    // A server that is late would read both at once, and answer once. If this is, it has answered already.
    eventually("the first is read", || {
        let handled = workload.is_in(libc::SYS_clock_nanosleep);
        (handled || is_readable(&stream)).then_some(())
    });
    let asked = monotonic();
    stream.write_all(b"GET /second HTTP/1.1\r\n\r\n").unwrap();
    let sent = monotonic();
    let mut answers = [0; 80];
    stream.read_exact(&mut answers[..40]).unwrap();
    let first = asking.took();
    stream.read_exact(&mut answers[40..]).unwrap();
    assert!(answers.ends_with(b"ok"));
    let server_late = begun.late(workload);
    let late = 20 * MS + server_late;
    drop(stream);
    let row = watcher.row("requests", |row| row.text("path") == "/first");
    check(&row, first, server_late);
    assert!(row.u64("handoff_ns") < late, "nobody was asleep: {row:?}");
    let kept = watcher.row("requests", |row| row.text("path") == "/second");
    // It came when it was sent, and the thread read it when it had answered the first.
    let (came, answered) = (kept.u64("start_time"), row.u64("start_time") + row.u64("duration_ns"));
    assert!((asked..sent + late).contains(&came), "{came}, of {asked} to {sent}");
    let read = came + kept.u64("handoff_ns");
    assert!((answered..answered.max(came) + late).contains(&read), "{answered}, {kept:?}");
    assert_within(&kept, "handler_ns", HANDLED, server_late);
    for (row, number) in [(&row, 1), (&kept, 2)] {
        assert_eq!((row.u64("accept_queue_ns"), row.u64("accept_to_read_ns")), (0, 0));
        assert_eq!((row.u64("conn_request"), row.u64("accept_tid")), (number, 0));
    }
    watcher.drain();
    let rows: Vec<_> = watcher.rows.iter().filter(|row| row.table == "requests").collect();
    assert_eq!(rows.len(), 2, "neither what was before nor the client's end: {rows:?}");
    watcher.assert_nothing_lost();
    [row, kept]
}

#[test]
fn a_connection_that_is_older_over_tcp() {
    let mut workload = Workload::new();
    let port = workload.ask("serve") as u16;
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    // Else the second of two requests may wait here until the first is acknowledged.
    stream.set_nodelay(true).unwrap();
    ask(&mut stream, "/before");
    let (local, peer) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
    for row in two_on_an_old_connection(&mut Watcher::new(), &workload, stream) {
        assert_eq!(
            (row.text("peer"), row.text("local")),
            (&*local.to_string(), &*peer.to_string())
        );
    }
}

#[test]
fn a_connection_that_is_older_over_a_unix_socket() {
    let mut workload = Workload::new();
    let path = format!("{}/older-{}", env!("CARGO_TARGET_TMPDIR"), workload.pid);
    workload.ask(&format!("serve-unix {path}"));
    let mut stream = UnixStream::connect(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    ask(&mut stream, "/before");
    two_on_an_old_connection(&mut Watcher::new(), &workload, stream);
}

#[test]
fn a_connection_that_is_older_over_tcp_without_a_backlog() {
    for (command, loopback) in [("serve-no-backlog", "127.0.0.1"), ("serve-no-backlog-ipv6", "::1")]
    {
        let mut workload = Workload::new();
        let port = workload.ask(command) as u16;
        let mut stream = TcpStream::connect((loopback, port)).unwrap();
        stream.set_nodelay(true).unwrap();
        ask(&mut stream, "/before");
        two_on_an_old_connection(&mut Watcher::new(), &workload, stream);
    }
}

/// A client that has a name of its own is none the less a client.
#[test]
fn a_connection_that_is_older_of_a_bound_unix_client() {
    let file = format!("{}/client-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let names = [UnixAddr::new(file.as_str()), UnixAddr::new_abstract(file.as_bytes())];
    for name in names.map(Result::unwrap) {
        let mut workload = Workload::new();
        let path = format!("{}/bound-{}", env!("CARGO_TARGET_TMPDIR"), workload.pid);
        workload.ask(&format!("serve-unix {path}"));
        let client =
            socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).unwrap();
        socket::bind(client.as_raw_fd(), &name).unwrap();
        socket::connect(client.as_raw_fd(), &UnixAddr::new(path.as_str()).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut stream = UnixStream::from(client);
        ask(&mut stream, "/before");
        two_on_an_old_connection(&mut Watcher::new(), &workload, stream);
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn an_older_connection_that_still_waits_for_accept() {
    let mut workload = Workload::new();
    let port = workload.ask("serve") as u16;
    let mut served = TcpStream::connect(("127.0.0.1", port)).unwrap();
    ask(&mut served, "/before");
    let mut queued = TcpStream::connect(("127.0.0.1", port)).unwrap();
    queued.write_all(b"GET /queued HTTP/1.1\r\n\r\n").unwrap();
    let mut watcher = Watcher::new();
    watcher.watch(workload.pid);
    // Now the server has time for it.
    let begun = SinceOf::now(&workload);
    drop(served);
    queued.read_exact(&mut [0; 40]).unwrap();
    let late = begun.late(&workload);
    drop(queued);
    let row = watcher.row("requests", |row| row.text("path") == "/queued");
    assert_within(&row, "handler_ns", HANDLED, late);
    // When its bytes came is not known, so nobody is blamed for not having read them.
    assert_eq!((row.u64("accept_queue_ns"), row.u64("handoff_ns")), (0, 0));
    assert_within(&row, "accept_to_read_ns", HANDED, late);
    assert_eq!(row.u64("conn_request"), 0);
    assert_eq!(row.u64("accept_tid"), row.u64("tid"));
    watcher.assert_nothing_lost();
}

/// The rest of it is no request; what comes next is.
#[test]
fn a_request_that_had_begun_before() {
    let mut workload = Workload::new();
    let port = workload.ask("serve") as u16;
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    ask(&mut stream, "/before");
    let mut threads = workload.tids().into_iter();
    let server = threads.find(|tid| *tid != workload.pid).expect("it serves");
    let reads = || workload.reads_a_request().then(|| workload.schedstat(server)[2]);
    let turns = eventually("it waits for a request", reads);
    stream.write_all(b"GET /cut HT").unwrap();
    eventually("it waits for the rest", || reads().filter(|now| *now > turns));
    let mut watcher = Watcher::new();
    watcher.watch(workload.pid);
    ask_rest(&mut stream, b"TP/1.1\r\n\r\n");
    let begun = SinceOf::now(&workload);
    ask(&mut stream, "/next");
    let late = begun.late(&workload);
    drop(stream);
    let row = watcher.row("requests", |row| row.text("path") == "/next");
    assert!(row.u64("handoff_ns") < 20 * MS + late, "{row:?}");
    assert_within(&row, "handler_ns", HANDLED, late);
    watcher.drain();
    assert_eq!(watcher.rows.iter().filter(|row| row.table == "requests").count(), 1);
}

fn ask_rest(stream: &mut TcpStream, rest: &[u8]) {
    stream.write_all(rest).unwrap();
    stream.read_exact(&mut [0; 40]).unwrap();
}
