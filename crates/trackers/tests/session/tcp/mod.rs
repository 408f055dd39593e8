//! Connections between two network namespaces, disturbed in known ways. Both ends are this process's,
//! which is watched: each trouble is told by whom it concerns.

mod accept;
mod connect;
pub(crate) mod cost;
mod delay;
mod drops;
mod loss;
mod quiet;
mod random;
mod relay;
mod resets;
mod untold;
mod windows;
mod wire;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::machine::{Since, Took};
use crate::support::Row;
use crate::watcher::{Watcher, monotonic};
use wire::{Family, Packet, Wire};

const MS: u64 = 1_000_000;

/// Programs, wire, and this process watched.
fn watched() -> (Watcher, Wire) {
    let watcher = Watcher::new();
    let wire = Wire::new();
    watcher.watch(std::process::id());
    (watcher, wire)
}

/// Within 5 ms or 5 %.
#[track_caller]
fn assert_close(found: u64, expected: u64, what: &str) {
    let off = found.abs_diff(expected);
    assert!(
        off <= (5 * MS).max(expected / 20),
        "{what}: {} ms found, {} ms expected",
        found as f64 / 1e6,
        expected as f64 / 1e6
    );
}

/// The same of what a thread saw, less what it may have been late by.
#[track_caller]
fn assert_took(found: u64, took: Took, what: &str) {
    assert_close(found, found.clamp(took.ns.saturating_sub(took.late), took.ns), what);
}

/// From the first SYN of the client's until it said that it had an answer. A program learns of it later.
fn handshake(wire: &Wire, before: usize) -> u64 {
    let [syn, ack] = syn_and_ack(wire, before);
    ack - syn
}

/// When the client has sent its first SYN, and when that it had an answer.
fn syn_and_ack(wire: &Wire, before: usize) -> [u64; 2] {
    let sent = wire.sent(&wire.client).split_off(before);
    let flags = |packet: &Packet| packet.flags & 0x17;
    let syn = sent.iter().find(|packet| flags(packet) == 0x02).expect("a SYN");
    let mut acks = sent.iter().filter(|packet| flags(packet) == 0x10);
    let ack = acks.find(|packet| packet.seq == syn.seq.wrapping_add(1));
    [syn.time, ack.expect("an acknowledgement").time]
}

/// So that the kernel knows how long a round trip is.
fn talk(client: &mut TcpStream, server: &mut TcpStream) {
    for _ in 0..5 {
        client.write_all(b"hello").expect("a connection");
        server.read_exact(&mut [0; 5]).expect("a connection");
        server.write_all(b"hello").expect("a connection");
        client.read_exact(&mut [0; 5]).expect("a connection");
    }
}

fn listen(wire: &Wire, family: Family) -> TcpListener {
    let address = SocketAddr::new(wire.server.address(family), 0);
    wire.server.within(|| TcpListener::bind(address)).expect("a port")
}

fn connect(wire: &Wire, to: SocketAddr) -> TcpStream {
    wire.client.within(|| TcpStream::connect(to)).expect("a connection")
}

/// The same, and how long it took.
fn timed_connect(wire: &Wire, to: SocketAddr) -> (TcpStream, Took) {
    let connect = || {
        let since = Since::now();
        let client = TcpStream::connect(to).expect("a connection");
        (client, since.took())
    };
    wire.client.within(connect)
}

/// A connection that was made after these packets, and is accepted now: for how long it waited for that. That it
/// is there, it knows by the acknowledgement.
fn accept_late(wire: &Wire, before: usize, listener: &TcpListener) -> (TcpStream, Took) {
    let [_, there] = syn_and_ack(wire, before);
    let since = Since::now();
    let (server, _) = listener.accept().expect("the connection");
    let ns = elapsed_since(there);
    (server, Took { ns, ..since.took() })
}

/// A connection: the client's end and the server's.
fn connected(wire: &Wire, family: Family) -> (TcpStream, TcpStream) {
    let listener = listen(wire, family);
    let client = connect(wire, listener.local_addr().expect("a port"));
    let (server, _) = listener.accept().expect("the connection");
    (client, server)
}

/// Some time in which what is on its way may arrive.
fn settle() {
    std::thread::sleep(Duration::from_millis(100));
}

/// All rows of a table about a local address, oldest first.
fn rows(watcher: &mut Watcher, table: &str, local: SocketAddr) -> Vec<Row> {
    watcher.drain();
    let local = local.to_string();
    let wanted = |row: &&Row| row.table == table && row.text("local") == local;
    let mut rows: Vec<_> = watcher.rows.iter().filter(wanted).cloned().collect();
    rows.sort_by_key(|row| row.u64("start_time"));
    rows
}

/// The only such row.
#[track_caller]
fn row(watcher: &mut Watcher, table: &str, local: SocketAddr) -> Row {
    let found = rows(watcher, table, local);
    let [row] = <[Row; 1]>::try_from(found).unwrap_or_else(|rows| panic!("one row, not {rows:#?}"));
    row
}

/// Sets a number among a socket's options.
fn set_option(socket: &impl AsRawFd, level: i32, option: i32, value: i32) {
    // SAFETY: the descriptor is open, and the value is an int of the size it states.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// The current thread gets a CPU whenever it wants one, however busy the machine is.
fn ahead_of_others() {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: 0 is the current thread, and the parameter lives until it is read.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

fn gettid() -> u64 {
    // SAFETY: it has no arguments and cannot fail.
    let tid = unsafe { libc::gettid() };
    tid as u64
}

fn elapsed_since(start: u64) -> u64 {
    monotonic() - start
}
