//! Clients that end their side of a connection before they have the answer.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use super::{HANDLED, MS, assert_within, check, two_requests};
use crate::machine::{Since, SinceOf};
use crate::python_stacks::common::{Program, interpreters};
use crate::watcher::{Watcher, monotonic};
use crate::workload::{Workload, eventually};

/// As nginx does when its own client has gone: the server's answer cannot be sent.
#[test]
fn a_unix_client_that_gives_up_ends_its_request() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let path = format!("{}/gives-up-{}", env!("CARGO_TARGET_TMPDIR"), workload.pid);
    workload.ask(&format!("serve-unix {path}"));
    let begun = SinceOf::now(&workload);
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /gave-up HTTP/1.1\r\n\r\n").unwrap();
    drop(stream);
    let row = watcher.row("requests", |row| row.text("path") == "/gave-up");
    assert_eq!((row.text("end"), row.u64("status"), row.u64("bytes_out")), ("peer_closed", 0, 0));
    assert_within(&row, "handler_ns", HANDLED, begun.late(&workload));
    assert_eq!(row.ledger_total(), u128::from(row.u64("handler_ns")));
    assert!(row.u64("sleep_ns") >= 29 * MS, "{row:?}");
    // The thread serves one request at a time, as before: nothing that is over counts as another.
    let connecting = monotonic();
    let next = UnixStream::connect(&path).unwrap();
    for row in two_requests(&mut watcher, &workload, next, connecting) {
        assert_eq!(row.u64("tid"), row.u64("sent_tid"));
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_half_closed_client_still_gets_its_answer() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let port = workload.ask("serve");
    let mut stream = TcpStream::connect(("127.0.0.1", port as u16)).unwrap();
    let (begun, asking) = (SinceOf::now(&workload), Since::now());
    stream.write_all(b"GET /half HTTP/1.0\r\n\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.ends_with(b"ok"));
    let (asked, late) = (asking.took(), begun.late(&workload));
    check(&watcher.row("requests", |row| row.text("path") == "/half"), asked, late);
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
    eventually("it waits for a request", || workload.reads_a_request().then_some(()));
    stream.write_all(b"GET /gone HTTP/1.1\r\n\r\n").unwrap();
    // It takes 30 ms to answer.
    eventually("it has read that", || workload.is_in(libc::SYS_clock_nanosleep).then_some(()));
    reset_on_close(&stream);
    drop(stream);
    let row = watcher.row("requests", |row| row.text("path") == "/gone");
    assert_eq!((row.text("end"), row.u64("status")), ("reset", 0));
    assert_eq!((row.u64("bytes_out"), row.u64("sent_tid")), (0, 0));
    assert_eq!(row.ledger_total(), u128::from(row.u64("handler_ns")));
}

/// Answers as php-fpm does: says that there is no more of the answer, and then reads what is left of the request.
const READS_THE_REST: &str = r"
import os, socket, sys
path = '/tmp/underspan-rest-%d' % os.getpid()
for server in (socket.create_server(('127.0.0.1', 0)), socket.create_server(path, family=socket.AF_UNIX)):
    name = server.getsockname()
    say(name if isinstance(name, str) else name[1])
    connection, _ = server.accept()
    connection.recv(4)
    connection.sendall(b'answer')
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(8):
        pass
    connection.close()
    say('closed')
os.unlink(path)
";

#[test]
fn the_rest_of_an_answered_request_is_no_other() {
    let python = interpreters().pop().unwrap();
    let mut watcher = Watcher::new();
    let mut program = Program::start(&python, READS_THE_REST);
    let pid = program.pid() as u32;
    watcher.watch(pid);
    let asks = |mut stream: Box<dyn ReadWrite>| {
        stream.write_all(b"askrest.").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"answer");
        drop(stream);
    };
    let port: u16 = program.hear().parse().unwrap();
    asks(Box::new(TcpStream::connect(("127.0.0.1", port)).unwrap()));
    assert_eq!(program.hear(), "closed");
    let path = program.hear();
    asks(Box::new(UnixStream::connect(path).unwrap()));
    assert_eq!(program.hear(), "closed");
    for bytes in ["127.0.0.1", "unix"] {
        let row = watcher.row("requests", |row| row.text("peer").starts_with(bytes));
        assert_eq!((row.text("end"), row.u64("bytes_out")), ("sent", 6), "{row:?}");
    }
    drop(program);
    eventually("its process has ended", || {
        watcher.drain();
        (watcher.rows_in("requests", pid).len() >= 2).then_some(())
    });
    std::thread::sleep(std::time::Duration::from_millis(300));
    watcher.drain();
    let rows = watcher.rows_in("requests", pid);
    assert_eq!(rows.len(), 2, "{rows:?}");
}

/// A connection of either kind.
trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

/// Computes for a while instead of answering, until it is killed.
const KILLED: &str = r"
import os, signal, socket, threading, time
server = socket.create_server(('127.0.0.1', 0))
say(server.getsockname()[1])
def serve():
    connection, _ = server.accept()
    connection.recv(64)
    time.sleep(0.1)
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        pass
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=serve).start()
";

#[test]
fn a_process_that_is_killed_in_the_middle() {
    let python = interpreters().pop().unwrap();
    let mut watcher = Watcher::new();
    let mut program = Program::start(&python, KILLED);
    let port: u16 = program.hear().parse().unwrap();
    watcher.watch(program.pid() as u32);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /killed HTTP/1.1\r\n\r\n").unwrap();
    let _reset_or_closed = stream.read(&mut [0; 64]);
    let row = watcher.row("requests", |row| row.text("path") == "/killed");
    assert_eq!((row.text("end"), row.u64("status")), ("closed", 0));
    assert_eq!(row.ledger_total(), u128::from(row.u64("handler_ns")));
    let busy = row.u64("running_ns") + row.u64("runnable_ns");
    assert!(row.u64("sleep_ns") >= 99 * MS && busy >= 190 * MS, "{row:?}");
    assert!(row.u64("other_ns") <= 10 * MS, "{row:?}");
}
