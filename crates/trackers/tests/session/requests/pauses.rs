//! Answers that take long after their first byte, on connections that stay open.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::thread;
use std::time::Duration;

use super::{MS, watched};
use crate::python_stacks::common::{Program, interpreters};
use crate::watcher::Watcher;

/// Answers as it is asked to, and says when its last byte was sent after it had read the request, in ns. The head
/// comes in two writes, as wsgiref sends it: from that nobody sees how long the answer is.
const SERVER: &str = r"
import socket, time
server = socket.create_server(('127.0.0.1', 0))
say(server.getsockname()[1])
connection, _ = server.accept()
while True:
    path = connection.recv(4096).split()
    if not path:
        break
    read = time.monotonic_ns()
    connection.sendall(b'HTTP/1.1 200 OK\r\n')
    connection.sendall(b'\r\n')
    if path[1] == b'/pauses':
        time.sleep(2.5)
        connection.sendall(b'x')
    elif path[1] == b'/computes':
        while time.monotonic_ns() < read + 1_500_000_000:
            pass
        connection.sendall(b'x')
    elif path[1] == b'/download':
        connection.sendall(bytes(32 << 20))
    say(time.monotonic_ns() - read)
";

/// Or the kernel takes half of the download before anybody reads it: up to 32 MiB since Linux 6.17.
fn keep_buffer_small(client: &TcpStream) {
    let size: libc::c_int = 256 << 10;
    // SAFETY: the descriptor is open, and the option's value is an integer of the size it states.
    let result = unsafe {
        libc::setsockopt(
            client.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            (&raw const size).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0);
}

const HEAD: usize = 19;
const LARGE: usize = 32 << 20;

#[test]
fn they_last_until_their_last_byte() {
    let python = interpreters().pop().unwrap();
    let mut watcher = Watcher::new();
    let mut program = Program::start(&python, SERVER);
    let port: u16 = program.hear().parse().unwrap();
    watcher.watch(program.pid() as u32);
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    keep_buffer_small(&client);
    for (path, body, longer_than) in [
        ("/quick", 0, 0),
        ("/pauses", 1, 2_500),
        ("/computes", 1, 1_500),
        ("/download", LARGE, 2_000),
        ("/last", 0, 0),
    ] {
        watched(&mut watcher, || {
            let request = format!("GET {path} HTTP/1.1\r\n\r\n");
            client.write_all(request.as_bytes()).unwrap();
            let mut answer = vec![0; HEAD + body];
            let (first, rest) = answer.split_at_mut(HEAD + body / 2);
            client.read_exact(first).unwrap();
            if path == "/download" {
                // The server waits in the middle of one write.
                thread::sleep(Duration::from_secs(2));
            }
            client.read_exact(rest).unwrap();
        });
        let took: u64 = program.hear().parse().unwrap();
        let row = watcher.row("requests", |row| row.text("path") == path);
        let handler = row.u64("handler_ns");
        assert!(took >= longer_than * MS, "{path}: {took}");
        assert!(handler.abs_diff(took) <= MS.max(took / 100), "{path}: {took} ns, {row:?}");
        assert_eq!(row.text("end"), "sent");
    }
    watcher.assert_nothing_lost();
}
