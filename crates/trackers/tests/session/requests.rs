//! Windows of requests to a real server, over TCP and over a Unix socket.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use underspan_trackers::Attach;

use crate::support::Row;
use crate::tcp::cost::{counts, print, statistics};
use crate::watcher::{Watcher, monotonic};
use crate::workload::{Workload, eventually};

const MS: u64 = 1_000_000;

/// What the workload's server does, and what more a loaded machine may add.
const QUEUED: std::ops::Range<u64> = 39 * MS..160 * MS;
const HANDED: std::ops::Range<u64> = 19 * MS..140 * MS;
const HANDLED: std::ops::Range<u64> = 29 * MS..150 * MS;

/// How long a client waited for its answer. It may have waited for a CPU itself when that was there.
struct Asked {
    took: u64,
    runnable: u64,
}

/// A client that has begun to ask.
struct Asking {
    start: u64,
    runnable: u64,
}

impl Asking {
    fn begin() -> Self {
        Asking { start: monotonic(), runnable: own_runnable() }
    }

    fn end(self) -> Asked {
        Asked { took: monotonic() - self.start, runnable: own_runnable() - self.runnable }
    }
}

/// For how long the kernel has let this thread wait for a CPU.
fn own_runnable() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The same of a workload's threads: by so much it may be late.
fn runnable(workload: &Workload) -> u64 {
    workload.tids().into_iter().map(|tid| workload.schedstat(tid)[1]).sum()
}

fn ask(mut stream: impl Read + Write, path: &str) -> Asked {
    let asking = Asking::begin();
    let request = format!("GET {path}?secret=1 HTTP/1.1\r\nHost: t\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = [0; 64];
    let len = stream.read(&mut answer).unwrap();
    assert!(answer[..len].ends_with(b"ok"));
    asking.end()
}

#[track_caller]
fn check(row: &Row, asked: &Asked) {
    let phases = ["accept_queue_ns", "handoff_ns", "handler_ns"].map(|phase| row.u64(phase));
    assert_eq!(phases.iter().sum::<u64>(), row.u64("duration_ns"));
    assert_eq!(row.ledger_total(), u128::from(row.u64("handler_ns")));
    assert!(HANDLED.contains(&row.u64("handler_ns")), "{row:?}");
    assert!(row.u64("sleep_ns") >= 29 * MS, "{row:?}");
    assert!(row.u64("duration_ns") <= asked.took, "no longer than the client waited");
    let late = 20 * MS + asked.runnable;
    assert!(row.u64("duration_ns") + late > asked.took, "{row:?}: {} ns", asked.took);
    assert_eq!((row.text("method"), row.u64("status")), ("GET", 200));
    assert_eq!(row.u64("tid"), row.u64("sent_tid"));
    assert_eq!((row.u64("shared_thread"), row.text("end")), (0, "sent"));
}

fn two_requests(
    watcher: &mut Watcher,
    workload: &Workload,
    mut stream: impl Read + Write,
    accept_queue: bool,
) -> [Row; 2] {
    let first = ask(&mut stream, "/first");
    let before = runnable(workload);
    let second = ask(&mut stream, "/second");
    let late = 20 * MS + runnable(workload) - before;
    drop(stream);
    let row = watcher.row("requests", |row| row.text("path") == "/first");
    check(&row, &first);
    assert!(HANDED.contains(&row.u64("handoff_ns")), "{row:?}");
    if accept_queue {
        assert!(QUEUED.contains(&row.u64("accept_queue_ns")), "{row:?}");
    }
    assert_eq!(row.u64("conn_request"), 0);
    let kept = watcher.row("requests", |row| row.text("path") == "/second");
    check(&kept, &second);
    assert_eq!((kept.u64("accept_queue_ns"), kept.u64("accept_to_read_ns")), (0, 0));
    assert!(kept.u64("handoff_ns") < late, "nobody was asleep: {kept:?}");
    assert_eq!(kept.u64("conn_request"), 1);
    watcher.assert_nothing_lost();
    [row, kept]
}

#[test]
fn over_tcp() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let port = workload.ask("serve");
    let stream = TcpStream::connect(("127.0.0.1", port as u16)).unwrap();
    let (local, peer) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
    for row in two_requests(&mut watcher, &workload, stream, true) {
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
    let stream = UnixStream::connect(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    for row in two_requests(&mut watcher, &workload, stream, true) {
        assert_eq!((row.text("peer"), row.text("local")), ("unix", "unix"));
    }
}

/// As nginx does when its own client has gone: the server's answer cannot be sent.
#[test]
fn a_unix_client_that_gives_up_ends_its_request() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let path = format!("{}/gives-up-{}", env!("CARGO_TARGET_TMPDIR"), workload.pid);
    workload.ask(&format!("serve-unix {path}"));
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /gave-up HTTP/1.1\r\n\r\n").unwrap();
    drop(stream);
    let row = watcher.row("requests", |row| row.text("path") == "/gave-up");
    assert_eq!((row.text("end"), row.u64("status"), row.u64("bytes_out")), ("peer_closed", 0, 0));
    assert!(HANDLED.contains(&row.u64("handler_ns")), "{row:?}");
    assert_eq!(row.ledger_total(), u128::from(row.u64("handler_ns")));
    assert!(row.u64("sleep_ns") >= 29 * MS, "{row:?}");
    // The thread serves one request at a time, as before: nothing that is over counts as another.
    let next = UnixStream::connect(&path).unwrap();
    for row in two_requests(&mut watcher, &workload, next, true) {
        assert_eq!(row.u64("tid"), row.u64("sent_tid"));
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_silent_client_is_no_handoff() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let port = workload.ask("serve");
    let mut stream = TcpStream::connect(("127.0.0.1", port as u16)).unwrap();
    std::thread::sleep(Duration::from_millis(400));
    let before = runnable(&workload);
    let asked = ask(&mut stream, "/late");
    let late = 20 * MS + runnable(&workload) - before;
    drop(stream);
    let row = watcher.row("requests", |row| row.text("path") == "/late");
    check(&row, &asked);
    assert_eq!(row.u64("accept_queue_ns"), 0);
    assert!(row.u64("handoff_ns") < late, "{row:?}");
    assert!(row.u64("accept_to_read_ns") > 300 * MS, "the raw figure has the silence: {row:?}");
}

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
    let before = runnable(workload);
    let asking = Asking::begin();
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
    let first = asking.end();
    stream.read_exact(&mut answers[40..]).unwrap();
    assert!(answers.ends_with(b"ok"));
    let late = 20 * MS + runnable(workload) - before;
    drop(stream);
    let row = watcher.row("requests", |row| row.text("path") == "/first");
    check(&row, &first);
    assert!(row.u64("handoff_ns") < late, "nobody was asleep: {row:?}");
    let kept = watcher.row("requests", |row| row.text("path") == "/second");
    // It came when it was sent, and the thread read it when it had answered the first.
    let (came, answered) = (kept.u64("start_time"), row.u64("start_time") + row.u64("duration_ns"));
    assert!((asked..sent + late).contains(&came), "{came}, of {asked} to {sent}");
    let read = came + kept.u64("handoff_ns");
    assert!((answered..answered.max(came) + late).contains(&read), "{answered}, {kept:?}");
    assert!(HANDLED.contains(&kept.u64("handler_ns")), "{kept:?}");
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
    drop(served);
    queued.read_exact(&mut [0; 40]).unwrap();
    drop(queued);
    let row = watcher.row("requests", |row| row.text("path") == "/queued");
    assert!(HANDLED.contains(&row.u64("handler_ns")), "{row:?}");
    // When its bytes came is not known, so nobody is blamed for not having read them.
    assert_eq!((row.u64("accept_queue_ns"), row.u64("handoff_ns")), (0, 0));
    assert!(HANDED.contains(&row.u64("accept_to_read_ns")), "{row:?}");
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
    stream.write_all(b"GET /cut HT").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let mut watcher = Watcher::new();
    watcher.watch(workload.pid);
    ask_rest(&mut stream, b"TP/1.1\r\n\r\n");
    let before = runnable(&workload);
    ask(&mut stream, "/next");
    let late = 20 * MS + runnable(&workload) - before;
    drop(stream);
    let row = watcher.row("requests", |row| row.text("path") == "/next");
    assert!(row.u64("handoff_ns") < late && HANDLED.contains(&row.u64("handler_ns")));
    watcher.drain();
    assert_eq!(watcher.rows.iter().filter(|row| row.table == "requests").count(), 1);
}

fn ask_rest(stream: &mut TcpStream, rest: &[u8]) {
    stream.write_all(rest).unwrap();
    stream.read_exact(&mut [0; 40]).unwrap();
}

/// Sends pieces 20 ms apart, each of which is read by itself; the row of what they are together.
fn in_pieces(watcher: &mut Watcher, mut stream: impl Read + Write, pieces: &[&str]) -> Row {
    let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
    for (index, piece) in pieces.iter().enumerate() {
        // The first is read when the server has accepted the connection, the others at once.
        let pause = if index == 1 { 120 } else { 20 };
        std::thread::sleep(Duration::from_millis(if index == 0 { 0 } else { pause }));
        stream.write_all(piece.as_bytes()).unwrap();
    }
    let mut answer = [0; 64];
    let len = stream.read(&mut answer).unwrap();
    assert!(answer[..len].ends_with(b"ok"));
    drop(stream);
    let row = watcher.row("requests", |row| row.u64("bytes_in") == bytes as u64);
    assert_eq!(row.ledger_total(), u128::from(row.u64("handler_ns")));
    assert_eq!((row.u64("status"), row.text("end")), (200, "sent"));
    row
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

#[test]
fn a_head_in_pieces() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let port = workload.ask("serve") as u16;
    let path = format!("{}/pieces-{}", env!("CARGO_TARGET_TMPDIR"), workload.pid);
    workload.ask(&format!("serve-unix {path}"));
    let parent = format!("traceparent: 00-{TRACE}-b7ad6b7169203331-01\r\n\r\n");
    let cookie = format!("Cookie: {}\r\n", "c".repeat(1_500));
    let cuts: [&[&str]; 4] = [
        &["G", "ET /a?secret=1 HTTP/1.1\r\nHost: t\r\n", &parent],
        &["GET /a", "?secret=1 HTTP/1.1\r\nHo", "st: t\r\n", &parent[..9], &parent[9..]],
        &["GET /a?secret=1 HTTP/1.1\r\n", &cookie, &parent],
        // What is beyond the first 2,048 bytes is not looked at.
        &["GET /a?secret=1 HTTP/1.1\r\n", &cookie, &cookie, &parent],
    ];
    for (index, pieces) in cuts.into_iter().enumerate() {
        let tcp = TcpStream::connect(("127.0.0.1", port)).unwrap();
        tcp.set_nodelay(true).unwrap();
        let unix = UnixStream::connect(&path).unwrap();
        for row in [in_pieces(&mut watcher, tcp, pieces), in_pieces(&mut watcher, unix, pieces)] {
            assert_eq!((row.text("method"), row.text("path")), ("GET", "/a"), "{pieces:?}");
            assert_eq!(row.text("trace_id"), if index < 3 { TRACE } else { "" }, "{pieces:?}");
            let pauses = 20 * pieces.len() as u64;
            assert!(row.u64("handler_ns") > (pauses + 30) * MS, "from the first piece: {row:?}");
        }
        watcher.rows.clear();
    }
    std::fs::remove_file(&path).unwrap();
    watcher.assert_nothing_lost();
}

/// Asked for by clients that send much: the head, leave to go on, the body, the answer.
#[test]
fn an_interim_answer_is_none() {
    let mut watcher = Watcher::new();
    watcher.watch(std::process::id());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let head = b"POST /upload HTTP/1.1\r\nExpect: 100-continue\r\n\r\n";
    let body = [b'A'; 5_000];
    let (leave, answer) =
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n");
    let pass = |from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8]| {
        from.write_all(bytes).unwrap();
        to.read_exact(&mut vec![0; bytes.len()]).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    };
    pass(&mut client, &mut server, head);
    pass(&mut server, &mut client, leave);
    pass(&mut client, &mut server, &body);
    pass(&mut server, &mut client, answer);
    drop((client, server));
    let row = watcher.row("requests", |row| row.text("method") == "POST");
    assert_eq!((row.text("path"), row.u64("status")), ("/upload", 201));
    assert_eq!(row.u64("bytes_in"), (head.len() + body.len()) as u64);
    assert_eq!(row.u64("bytes_out"), answer.len() as u64);
    assert!((60 * MS..200 * MS).contains(&row.u64("handler_ns")), "{row:?}");
    watcher.drain();
    assert_eq!(watcher.rows.iter().filter(|row| row.table == "requests").count(), 1);
}

/// More pieces than are looked at: the beginning still counts, and nothing else does.
#[test]
fn a_head_byte_by_byte() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let port = workload.ask("serve") as u16;
    for (target, path) in [("/x", "/x"), ("/much-too-long", "")] {
        let tcp = TcpStream::connect(("127.0.0.1", port)).unwrap();
        tcp.set_nodelay(true).unwrap();
        let head = format!("GET {target} HTTP/1.1\r\n\r\n");
        let bytes: Vec<_> = head.split("").filter(|byte| !byte.is_empty()).collect();
        let row = in_pieces(&mut watcher, tcp, &bytes);
        assert_eq!(row.text("path"), path);
    }
}

#[test]
fn a_half_closed_client_still_gets_its_answer() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let port = workload.ask("serve");
    let mut stream = TcpStream::connect(("127.0.0.1", port as u16)).unwrap();
    let asking = Asking::begin();
    stream.write_all(b"GET /half HTTP/1.0\r\n\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.ends_with(b"ok"));
    let asked = asking.end();
    check(&watcher.row("requests", |row| row.text("path") == "/half"), &asked);
}

fn reset_on_close(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the descriptor is open, and the option's value is a linger of the size it states.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of::<libc::linger>() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0);
}

#[test]
fn a_client_that_resets_before_the_answer() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let port = workload.ask("serve");
    let mut stream = TcpStream::connect(("127.0.0.1", port as u16)).unwrap();
    // The server waits to read this, so the request is read at once.
    std::thread::sleep(Duration::from_millis(120));
    stream.write_all(b"GET /gone HTTP/1.1\r\n\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(10));
    reset_on_close(&stream);
    drop(stream);
    let row = watcher.row("requests", |row| row.text("path") == "/gone");
    assert_eq!((row.text("end"), row.u64("status")), ("reset", 0));
    assert_eq!((row.u64("bytes_out"), row.u64("sent_tid")), (0, 0));
    assert_eq!(row.ledger_total(), u128::from(row.u64("handler_ns")));
}

/// Requests one after the other on one connection of this process to itself, each head in these pieces.
fn load(requests: u32, pieces: &[&[u8]]) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    for _ in 0..requests {
        for piece in pieces {
            client.write_all(piece).unwrap();
            server.read_exact(&mut vec![0; piece.len()]).unwrap();
        }
        server.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        client.read_exact(&mut [0; 27]).unwrap();
    }
}

/// By the kernel's own count. Prints; asks for a quiet machine:
/// `sudo -E cargo test -p underspan-trackers --test session requests::cost -- --ignored --nocapture`
#[test]
#[ignore = "it measures"]
fn cost() {
    let _statistics = statistics();
    let head = format!("GET /orders/17 HTTP/1.1\r\nHost: shop\r\nCookie: {}\r\n", "c".repeat(400));
    let whole = format!("{head}\r\n");
    let loads: [(&str, bool, &[&[u8]]); 3] = [
        ("not watched", false, &[whole.as_bytes()]),
        ("whole heads", true, &[whole.as_bytes()]),
        ("heads in two pieces", true, &[head.as_bytes(), b"\r\n"]),
    ];
    for (what, watched, pieces) in loads {
        let mut watcher = Watcher::new();
        if watched {
            watcher.watch(std::process::id());
        }
        let before = counts(&watcher, "request_");
        for _ in 0..10 {
            load(2_000, pieces);
            watcher.drain();
        }
        println!("{what}:");
        print(&before, &counts(&watcher, "request_"));
    }
}
