//! Connections made and not made.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::thread;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage};

use super::untold::untold;
use super::wire::{Family, SYN, Wire};
use super::{
    MS, assert_close, assert_took, connect, gettid, listen, rows, set_option, syn_and_ack, watched,
};
use crate::machine::Since;
use crate::support::Row;
use crate::watcher::Watcher;

/// A socket at the client's end, not connected yet.
pub(super) fn socket(wire: &Wire, family: Family, flags: SockFlag) -> TcpStream {
    let family = match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    let make = || nix::sys::socket::socket(family, SockType::Stream, flags, None);
    TcpStream::from(wire.client.within(make).unwrap())
}

pub(super) fn connect_to(socket: &TcpStream, to: SocketAddr) -> io::Result<()> {
    let to = SockaddrStorage::from(to);
    Ok(nix::sys::socket::connect(socket.as_raw_fd(), &to)?)
}

/// The last attempt to connect to a peer. `None`: the kernel told nobody how it ended.
#[track_caller]
fn attempt(watcher: &mut Watcher, peer: SocketAddr) -> Option<Row> {
    watcher.drain();
    let peer = peer.to_string();
    let mut attempts = watcher.rows.iter().filter(|row| row.table == "tcp_connect");
    let row = attempts.rfind(|row| row.text("peer") == peer)?.clone();
    assert_eq!((row.u64("pid"), row.u64("tid")), (u64::from(std::process::id()), gettid()));
    Some(row)
}

/// There are no more of those than were counted, once the sockets are gone.
#[track_caller]
fn assert_counted(watcher: &Watcher, missed: u64) {
    assert!(missed <= untold(watcher, "tcp_connect"), "{missed} attempts are missing");
    watcher.assert_nothing_lost();
}

/// A port at the server's end on which nobody listens.
pub(super) fn closed_port(wire: &Wire, family: Family) -> SocketAddr {
    listen(wire, family).local_addr().unwrap()
}

#[test]
fn made() {
    let (mut watcher, wire) = watched();
    for family in Family::BOTH {
        let listener = listen(&wire, family);
        let client = socket(&wire, family, SockFlag::empty());
        let since = Since::now();
        connect_to(&client, listener.local_addr().unwrap()).unwrap();
        let took = since.took();
        let row = attempt(&mut watcher, listener.local_addr().unwrap()).expect("it was made");
        assert_took(row.u64("duration_ns"), took, "connecting");
        assert_eq!(row.text("local"), client.local_addr().unwrap().to_string());
        assert_eq!((row.text("outcome"), row.u64("syn_retransmits")), ("connected", 0));
    }
    watcher.assert_nothing_lost();
}

#[test]
fn refused() {
    let (mut watcher, wire) = watched();
    let mut missed = 0;
    for family in Family::BOTH {
        let to = closed_port(&wire, family);
        let client = socket(&wire, family, SockFlag::empty());
        let since = Since::now();
        let error = connect_to(&client, to).unwrap_err();
        let took = since.took();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let Some(row) = attempt(&mut watcher, to) else {
            missed += 1;
            continue;
        };
        assert_took(row.u64("duration_ns"), took, "until it was refused");
        assert_eq!(row.text("outcome"), "refused");
        assert!(!row.text("local").ends_with(":0"), "{row:?}");
    }
    assert!(watcher.rows.iter().all(|row| row.table != "tcp_loss"), "it is told once");
    assert_counted(&watcher, missed);
}

#[test]
fn silence() {
    let (mut watcher, wire) = watched();
    let mut missed = 0;
    wire.lose(&wire.client, SYN, 0, 1_000);
    for family in Family::BOTH {
        let to = closed_port(&wire, family);
        let client = socket(&wire, family, SockFlag::empty());
        set_option(&client, libc::IPPROTO_TCP, libc::TCP_SYNCNT, 1);
        set_option(&client, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 1_500);
        let since = Since::now();
        let error = connect_to(&client, to).unwrap_err();
        let took = since.took();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let Some(row) = attempt(&mut watcher, to) else {
            missed += 1;
            continue;
        };
        assert_took(row.u64("duration_ns"), took, "until the kernel gave up");
        assert_eq!((row.text("outcome"), row.u64("syn_retransmits")), ("timed_out", 1));
        let local: SocketAddr = row.text("local").parse().unwrap();
        let [retry] = <[Row; 1]>::try_from(rows(&mut watcher, "tcp_loss", local)).unwrap();
        assert_eq!(retry.text("kind"), "syn_retry");
        assert_took(retry.u64("duration_ns"), took, "trying again");
    }
    assert_counted(&watcher, missed);
}

#[test]
fn given_up() {
    let (mut watcher, wire) = watched();
    let mut missed = 0;
    wire.lose(&wire.client, SYN, 0, 1_000);
    for family in Family::BOTH {
        let to = closed_port(&wire, family);
        let client = socket(&wire, family, SockFlag::SOCK_NONBLOCK);
        let since = Since::now();
        let error = connect_to(&client, to).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINPROGRESS));
        thread::sleep(Duration::from_millis(200));
        drop(client);
        let took = since.took();
        let Some(row) = attempt(&mut watcher, to) else {
            missed += 1;
            continue;
        };
        assert_took(row.u64("duration_ns"), took, "until it was closed");
        assert_eq!(row.text("outcome"), "interrupted");
    }
    assert_counted(&watcher, missed);
}

#[test]
fn out_of_reach() {
    let (mut watcher, wire) = watched();
    let mut missed = 0;
    wire.server.within(|| {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
    });
    for (family, net, via) in
        [(Family::V4, "10.78.0.0/24", "10.77.0.2"), (Family::V6, "fd78::/64", "fd77::2")]
    {
        wire.client.ip(&format!("route add {net} via {via}"));
        wire.server.ip(&format!("route add unreachable {net}"));
        let host = if family == Family::V4 { "10.78.0.1:80" } else { "[fd78::1]:80" };
        let to = host.parse().unwrap();
        let client = socket(&wire, family, SockFlag::empty());
        let since = Since::now();
        connect_to(&client, to).unwrap_err();
        let took = since.took();
        let Some(row) = attempt(&mut watcher, to) else {
            missed += 1;
            continue;
        };
        assert_took(row.u64("duration_ns"), took, "until a router said so");
        assert_eq!(row.text("outcome"), "unreachable");
    }
    assert_counted(&watcher, missed);
}

#[test]
fn again_and_again() {
    let (mut watcher, wire) = watched();
    let listener = listen(&wire, Family::V4);
    let to = listener.local_addr().unwrap();
    let mut last = 0;
    for pause in [0, 150, 40] {
        thread::sleep(Duration::from_millis(pause));
        let before = wire.sent(&wire.client).len();
        let client = connect(&wire, to);
        let [now, _] = syn_and_ack(&wire, before);
        let [row] =
            <[Row; 1]>::try_from(rows(&mut watcher, "tcp_connect", client.local_addr().unwrap()))
                .unwrap();
        let expected = if last == 0 { 0 } else { now - last };
        assert_close(row.u64("reconnect_ns"), expected, "since the one before");
        assert_eq!(row.u64("reconnect_ns") == 0, last == 0);
        last = now;
    }
    assert!(last > 190 * MS);
}
