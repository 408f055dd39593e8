//! Requests whose head or body comes in pieces.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::{MS, assert_within};
use crate::machine::Since;
use crate::support::Row;
use crate::watcher::Watcher;
use crate::workload::{Workload, eventually};

/// Sends pieces 20 ms apart, each of which is read by itself; the row of what they are together.
fn in_pieces(
    watcher: &mut Watcher,
    workload: &Workload,
    mut stream: impl Read + Write,
    pieces: &[&str],
) -> Row {
    let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
    for (index, piece) in pieces.iter().enumerate() {
        if index > 0 {
            // It accepts late, and reads what came until then.
            eventually("it asks for more", || workload.reads_a_request().then_some(()));
            std::thread::sleep(Duration::from_millis(20));
        }
        stream.write_all(piece.as_bytes()).unwrap();
    }
    let mut answer = [0; 64];
    let len = stream.read(&mut answer).unwrap();
    assert!(answer[..len].ends_with(b"ok"));
    drop(stream);
    // Or the next is taken for being read while this one is.
    eventually("it has closed the connection", || (!workload.reads_a_request()).then_some(()));
    let row = watcher.row("requests", |row| row.u64("bytes_in") == bytes as u64);
    watcher.rows.clear(); // the next may have as many bytes
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
        let over_tcp = in_pieces(&mut watcher, &workload, tcp, pieces);
        let unix = UnixStream::connect(&path).unwrap();
        let over_unix = in_pieces(&mut watcher, &workload, unix, pieces);
        assert_eq!((over_unix.text("local"), over_tcp.text("local") == "unix"), ("unix", false));
        for row in [over_tcp, over_unix] {
            assert_eq!((row.text("method"), row.text("path")), ("GET", "/a"), "{pieces:?}");
            assert_eq!(row.text("trace_id"), if index < 3 { TRACE } else { "" }, "{pieces:?}");
            let pauses = 20 * (pieces.len() as u64 - 1);
            assert!(row.u64("handler_ns") > (pauses + 30) * MS, "from the first piece: {row:?}");
        }
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
    let begun = Since::now();
    pass(&mut client, &mut server, head);
    pass(&mut server, &mut client, leave);
    pass(&mut client, &mut server, &body);
    pass(&mut server, &mut client, answer);
    let late = begun.took().late;
    drop((client, server));
    let row = watcher.row("requests", |row| row.text("method") == "POST");
    assert_eq!((row.text("path"), row.u64("status")), ("/upload", 201));
    assert_eq!(row.u64("bytes_in"), (head.len() + body.len()) as u64);
    assert_eq!(row.u64("bytes_out"), answer.len() as u64);
    assert_within(&row, "handler_ns", 60 * MS..200 * MS, late);
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
        let row = in_pieces(&mut watcher, &workload, tcp, &bytes);
        assert_eq!(row.text("path"), path);
    }
}
