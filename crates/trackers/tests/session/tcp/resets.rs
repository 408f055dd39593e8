//! Connections that are cut off.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Enum;

use super::wire::Family;
use super::{connected, gettid, row, settle, watched};
use crate::watcher::Watcher;

/// One end was told to be reset by the other, which says why.
#[track_caller]
fn check(watcher: &mut Watcher, mut client: TcpStream, server: TcpStream, reason: &str) {
    let (local, peer) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
    drop(server);
    settle();
    let sent = row(watcher, "tcp_loss", local);
    // The kernel says why since 6.10.
    let says = Btf::from_vmlinux().unwrap().type_by_name::<Enum<'_>>("sk_rst_reason").is_some();
    let reason = if says { reason } else { "other" };
    assert_eq!((sent.text("kind"), sent.text("reason")), ("reset_sent", reason));
    assert_eq!((sent.text("peer"), sent.u64("tid")), (peer.to_string().as_str(), gettid()));
    assert_eq!(sent.u64("duration_ns"), 0);
    let received = row(watcher, "tcp_loss", peer);
    assert_eq!((received.text("kind"), received.text("reason")), ("reset_received", ""));
    assert_eq!(received.text("peer"), local.to_string());
    let error = client.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn by_a_close_without_linger() {
    let (mut watcher, wire) = watched();
    for family in Family::BOTH {
        let (client, server) = connected(&wire, family);
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        // SAFETY: the descriptor is open, and the value is a linger of the size it states.
        let result = unsafe {
            libc::setsockopt(
                server.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const linger).cast(),
                size_of::<libc::linger>() as libc::socklen_t,
            )
        };
        assert_eq!(result, 0);
        check(&mut watcher, client, server, "aborted");
    }
    watcher.assert_nothing_lost();
}

#[test]
fn by_a_close_with_unread_data() {
    let (mut watcher, wire) = watched();
    for family in Family::BOTH {
        let (mut client, server) = connected(&wire, family);
        client.write_all(b"never read").unwrap();
        settle();
        check(&mut watcher, client, server, "closed_with_unread_data");
    }
    watcher.assert_nothing_lost();
}
