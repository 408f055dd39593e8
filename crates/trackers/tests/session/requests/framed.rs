//! Answers that say where they end, and pause before that while nobody can tell what their thread waits for.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{MS, watched};
use crate::python_stacks::common::{Program, interpreters};
use crate::watcher::Watcher;

/// Answers in the way that it is asked to, and says when its last byte was sent after it had read the request, in ns.
const SERVER: &str = r"
import select, socket, threading, time
server = socket.create_server(('127.0.0.1', 0))
say(server.getsockname()[1])
connection, _ = server.accept()
never = threading.Lock()
never.acquire()
CHUNKED = b'Transfer-Encoding: chunked\r\n\r\n'
while True:
    path = connection.recv(4096).split()
    if not path:
        break
    read = time.monotonic_ns()
    head = b'HTTP/1.1 200 OK\r\n'
    if path[1] == b'/length':
        connection.sendall(head + b'Content-Length: 2\r\n\r\nx')
        select.select([server], [], [], 2.5)
        connection.sendall(b'x')
    elif path[1] == b'/chunks':
        connection.sendall(head + CHUNKED + b'1\r\nx\r\n')
        never.acquire(timeout=2.5)
        connection.sendmsg([b'1\r\n', b'x', b'\r\n', b'1\r\n', b'x', b'\r\n0\r\n\r\n'])
    elif path[1] == b'/events':
        connection.sendall(head + b'Content-Type: text/event-stream\r\n' + CHUNKED)
        for _ in range(30):
            select.select([server], [], [], 0.1)
            connection.sendall(b'9\r\ndata: 0\r\n\r\n')
        select.select([server], [], [], 1.5)
        connection.sendall(b'0\r\n\r\n')
    elif path[1] == b'/nothing':
        connection.sendall(b'HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n')
    elif path[1] == b'/close':
        connection.sendall(head + b'\r\nx')
        select.select([server], [], [], 2.5)
        connection.sendall(b'x')
        connection.shutdown(socket.SHUT_WR)
    say(time.monotonic_ns() - read)
";

#[test]
fn they_end_where_they_say() {
    let python = interpreters().pop().unwrap();
    let mut watcher = Watcher::new();
    let mut program = Program::start(&python, SERVER);
    let port: u16 = program.hear().parse().unwrap();
    watcher.watch(program.pid() as u32);
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    for (path, last, longer_than) in [
        ("/length", "\r\n\r\nxx", 2_500),
        ("/chunks", "x\r\n0\r\n\r\n", 2_500),
        ("/events", "\n0\r\n\r\n", 4_500),
        ("/nothing", "\r\n\r\n", 0),
        ("/close", "\r\n\r\nxx", 2_500),
    ] {
        let answered = watched(&mut watcher, || {
            client.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
            let (mut answer, mut byte) = (Vec::new(), [0]);
            while !answer.ends_with(last.as_bytes()) {
                client.read_exact(&mut byte).unwrap();
                answer.push(byte[0]);
            }
            Instant::now()
        });
        let took: u64 = program.hear().parse().unwrap();
        let row = watcher.row("requests", |row| row.text("path") == path);
        let known = answered.elapsed();
        let handler = row.u64("handler_ns");
        assert!(took >= longer_than * MS, "{path}: {took}");
        assert!(handler.abs_diff(took) <= MS.max(took / 100), "{path}: {took} ns, {row:?}");
        assert_eq!(row.text("end"), "sent");
        // Nobody waited for the connection to be silent for a second.
        assert!(known < Duration::from_millis(800), "{path}: {known:?}");
    }
    watcher.assert_nothing_lost();
}
