//! A reader that comes late.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::thread;
use std::time::Duration;

use super::wire::{Family, Packet};
use super::{
    MS, ahead_of_others, assert_close, connect, elapsed_since, gettid, listen, rows, set_option,
    settle, watched,
};
use crate::support::Row;
use crate::watcher::{Watcher, monotonic};
use crate::workload::eventually;

const SEGMENT: i32 = 1_400;
/// Receivers acknowledge so late at the most: 40 ms, and a timer's tick or two.
const DELAYED: u64 = 60 * MS;
/// On a loaded machine the reader may pause for a moment once more.
const TOLD: u64 = 20 * MS;
const LATE: Duration = Duration::from_millis(400);

/// For how long a window was closed, as far as the wire can tell.
#[derive(Debug)]
struct Closed {
    /// Since the sender had used it up, but for less than a segment. Until what is on its way is acknowledged,
    /// the congestion window may be used up as well: then it is that which the sender's kernel counts.
    used_up: u64,
    /// Since all of that was acknowledged.
    acknowledged: u64,
}

/// Windows that were closed for at least [`TOLD`], until most of them was back. The last of a window comes in
/// small portions, which are used up at once.
fn closed(sent: &[Packet], answers: &[Packet]) -> Vec<Closed> {
    let answers: Vec<_> = answers.iter().filter(|packet| packet.flags & 0x02 == 0).collect();
    let most = answers.iter().map(|packet| packet.window).max().expect("a window");
    let mut all: Vec<_> = answers.iter().map(|packet| (**packet, true)).collect();
    all.extend(sent.iter().filter(|packet| packet.len > 0).map(|packet| (*packet, false)));
    all.sort_by_key(|(packet, _)| packet.time);
    let (mut edge, mut since, mut times) = (None, None, Vec::new());
    let (mut last, mut acknowledged) = (None, None);
    for (packet, answer) in all {
        let Some(limit) = edge else {
            edge = answer.then(|| packet.ack.wrapping_add(packet.window));
            continue;
        };
        if !answer {
            last = Some(packet.end());
            if (limit.wrapping_sub(packet.end()) as i32) < SEGMENT {
                since.get_or_insert(packet.time);
            }
        }
        if answer {
            edge = Some(packet.ack.wrapping_add(packet.window));
            if since.is_some() && last == Some(packet.ack) {
                acknowledged.get_or_insert(packet.time);
            }
            if packet.window > most / 2 {
                let passed = |start: Option<u64>| packet.time - start.unwrap_or(packet.time);
                times.push(Closed {
                    used_up: passed(since.take()),
                    acknowledged: passed(acknowledged.take()),
                });
            }
        }
    }
    times.retain(|time| time.used_up >= TOLD);
    times
}

/// The stalls of a connection's end that take so long.
fn told(watcher: &mut Watcher, local: SocketAddr, kind: &str) -> Vec<Row> {
    let mut rows = rows(watcher, "tcp_loss", local);
    rows.retain(|row| row.text("kind") == kind && row.u64("duration_ns") >= TOLD);
    rows
}

#[test]
fn is_told_on_either_side() {
    let (mut watcher, wire) = watched();
    for end in [&wire.client, &wire.server] {
        // What headers say of windows is then what they mean.
        end.within(|| std::fs::write("/proc/sys/net/ipv4/tcp_window_scaling", "0").unwrap());
    }
    for family in Family::BOTH {
        let listener = listen(&wire, family);
        set_option(&listener, libc::SOL_SOCKET, libc::SO_RCVBUF, 65_536);
        let mut client = connect(&wire, listener.local_addr().unwrap());
        // There is always more to send.
        set_option(&client, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 4 << 20);
        let (mut server, peer) = listener.accept().unwrap();
        let before = (wire.sent(&wire.client).len(), wire.sent(&wire.server).len());
        let bytes = 1_000_000;
        let (reader, late) = thread::scope(|scope| {
            let start = monotonic();
            scope.spawn(move || {
                ahead_of_others();
                client.write_all(&vec![1; bytes]).unwrap();
                // Open until all has arrived.
                let _ = client.read(&mut [0]);
            });
            let server = &mut server;
            let reader = scope.spawn(move || {
                // Who loses its CPU in the midst of reading keeps the socket: what arrives waits, and the
                // window is not used up yet, though the wire sees it so.
                ahead_of_others();
                thread::sleep(LATE);
                let late = elapsed_since(start);
                server.read_exact(&mut vec![0; bytes]).unwrap();
                server.shutdown(std::net::Shutdown::Write).unwrap();
                (gettid(), late)
            });
            reader.join().unwrap()
        });
        settle();
        let sent = wire.sent(&wire.client).split_off(before.0);
        let seen = closed(&sent, &wire.sent(&wire.server).split_off(before.1));
        assert!(
            seen[0].used_up > late * 2 / 3,
            "the wire saw the reader come late: {seen:?} of {late}"
        );

        let own = told(&mut watcher, server.local_addr().unwrap(), "zero_window_local");
        let peers = told(&mut watcher, peer, "zero_window_peer");
        assert_eq!((own.len(), peers.len()), (seen.len(), seen.len()), "{own:#?} {peers:#?}");
        for ((own, peers), seen) in own.iter().zip(&peers).zip(seen) {
            assert_close(own.u64("duration_ns"), seen.used_up, "our own window");
            assert_eq!(own.u64("tid"), reader, "the reader is to blame");
            assert!(seen.used_up - seen.acknowledged < DELAYED, "{seen:?}");
            let found = peers.u64("duration_ns");
            let nearest = found.clamp(seen.acknowledged, seen.used_up);
            assert_close(found, nearest, "the peer's window");
            assert_eq!(peers.text("peer"), own.text("local"));
        }
    }
    watcher.assert_nothing_lost();
}

/// What the kernel says of a connection: `struct tcp_info`, of which libc has the beginning only.
struct TcpInfo([u8; 232]);

impl TcpInfo {
    fn word(&self, at: usize) -> u32 {
        u32::from_ne_bytes(*self.0[at..].first_chunk().unwrap())
    }

    /// `tcpi_rwnd_limited`, in nanoseconds.
    fn window_limited(&self) -> u64 {
        u64::from_ne_bytes(*self.0[176..].first_chunk().unwrap()) * 1_000
    }

    /// `tcpi_snd_wnd`: bytes that the peer has room for.
    fn room(&self) -> usize {
        self.word(228) as usize
    }

    /// `tcpi_unacked` and `tcpi_notsent_bytes`: nothing is on its way, or about to be.
    fn is_quiet(&self) -> bool {
        (self.word(24), self.word(144)) == (0, 0)
    }
}

fn tcp_info(socket: &TcpStream) -> TcpInfo {
    let mut info = [0_u8; 232];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes no more than it is told there is room for.
    let result = unsafe {
        let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        let to = info.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), level, option, to, &raw mut length)
    };
    assert_eq!((result, length as usize), (0, info.len()));
    TcpInfo(info)
}

/// For how long the kernel says that the connection was held up by its peer's window: a count of ticks.
fn window_limited(socket: &TcpStream) -> u64 {
    tcp_info(socket).window_limited()
}

/// The window is used up to the last bytes, and nobody has more to send: nothing is held up until somebody does.
#[test]
fn who_has_nothing_to_send_is_not_held_up() {
    let (mut watcher, wire) = watched();
    let (idle, held) = (Duration::from_millis(500), Duration::from_millis(150));
    for family in Family::BOTH {
        let listener = listen(&wire, family);
        set_option(&listener, libc::SOL_SOCKET, libc::SO_RCVBUF, 65_536);
        let mut client = connect(&wire, listener.local_addr().unwrap());
        let (mut server, peer) = listener.accept().unwrap();
        let mut bytes = 0;
        let mut send = |client: &mut TcpStream, length| {
            client.write_all(&vec![1; length]).unwrap();
            bytes += length;
        };
        send(&mut client, 1);
        eventually("no more than a bit of room", || {
            let info = tcp_info(&client);
            let room = info.room();
            if info.is_quiet() && room > SEGMENT as usize / 2 {
                send(&mut client, (room - 500).min(room));
            }
            (info.is_quiet() && room <= SEGMENT as usize / 2).then_some(())
        });
        thread::sleep(idle);
        let sent = monotonic();
        send(&mut client, 8_000);
        thread::sleep(held);
        let before = window_limited(&client);
        let waited = elapsed_since(sent);
        server.read_exact(&mut vec![0; bytes]).unwrap();
        settle();
        assert_close(before, waited, "the kernel's own count");
        let told = rows(&mut watcher, "tcp_loss", peer);
        let [row] = told.as_slice() else { panic!("{told:?}") };
        assert_eq!(row.text("kind"), "zero_window_peer", "{row:?}");
        assert_close(row.u64("duration_ns"), waited, "held up");
    }
    watcher.assert_nothing_lost();
}

/// Whatever the segments and buffers are: 64 KiB as on loopback, or a network's.
#[test]
fn short_ones_are_as_long_as_the_kernel_says() {
    let (mut watcher, wire) = watched();
    for (mtu, room, late) in
        [(65_535, 0, 60), (65_535, 262_144, 250), (65_535, 65_536, 120), (1_500, 131_072, 200)]
    {
        for end in [&wire.client, &wire.server] {
            end.ip(&format!("link set wire mtu {mtu} gso_max_segs 65535"));
        }
        let listener = listen(&wire, Family::V4);
        if room > 0 {
            set_option(&listener, libc::SOL_SOCKET, libc::SO_RCVBUF, room);
        }
        let client = connect(&wire, listener.local_addr().unwrap());
        // More than the window: a sender whose buffer is full waits for acknowledgements first.
        set_option(&client, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 4 << 20);
        let (mut server, peer) = listener.accept().unwrap();
        let bytes = 6 << 20;
        let (sent, reads, kernels) = thread::scope(|scope| {
            let (client, server) = (&client, &mut server);
            let sent = monotonic();
            let reader = scope.spawn(move || {
                let mut read = vec![1; bytes];
                thread::sleep(Duration::from_millis(late));
                // Both are of one moment: what lies between them would count twice.
                let at = eventually("two figures at once", || {
                    let at = (monotonic(), window_limited(client));
                    (elapsed_since(at.0) < MS).then_some(at)
                });
                server.read_exact(&mut read).unwrap();
                at
            });
            (&*client).write_all(&vec![1; bytes]).unwrap();
            let (reads, kernels) = reader.join().unwrap();
            (sent, reads, kernels)
        });
        settle();
        let what = format!("mtu {mtu}, buffer {room}, {late} ms");
        // On a loaded machine some time after the reader was about to.
        let mut answers = wire.sent(&wire.server).into_iter();
        let opened =
            answers.find(|answer| answer.time > reads).expect("it says that there is room").time;
        let mut first = |local, kind| {
            let told = rows(&mut watcher, "tcp_loss", local);
            let row = told.into_iter().find(|row| row.text("kind") == kind);
            let row = row.unwrap_or_else(|| panic!("{what}: no {kind}"));
            let (start, duration) = (row.u64("start_time"), row.u64("duration_ns"));
            assert_close(start + duration - sent, opened - sent, &format!("{what}: {kind} ends"));
            duration
        };
        let peers = first(peer, "zero_window_peer");
        assert_close(peers, kernels + opened - reads, &what);
        // Either end may learn of it first: what was sent is on its way, and acknowledgements are delayed.
        let own = first(server.local_addr().unwrap(), "zero_window_local");
        assert!(own + 45 * MS > peers, "{what}: {own} ns here, {peers} ns there");
    }
    watcher.assert_nothing_lost();
}

/// How long the kernel's tick is.
fn tick() -> u64 {
    let clock = nix::time::ClockId::CLOCK_MONOTONIC_COARSE;
    Duration::from(nix::time::clock_getres(clock).unwrap()).as_nanos() as u64
}

/// Its reader always reads; on a loaded machine it is late for a moment, and the kernel counts that, too.
#[test]
fn a_large_transfer_is_held_up_no_longer_than_the_kernel_says() {
    let (mut watcher, wire) = watched();
    let cases = Family::BOTH.into_iter().flat_map(|family| [(family, 1_500), (family, 65_535)]);
    for (family, mtu) in cases {
        for end in [&wire.client, &wire.server] {
            end.ip(&format!("link set wire mtu {mtu} gso_max_segs 65535"));
        }
        let (client, mut server) = super::connected(&wire, family);
        let bytes = 64 << 20;
        thread::scope(|scope| {
            scope.spawn(|| (&client).write_all(&vec![1; bytes]).unwrap());
            let mut read = vec![0; 1 << 20];
            for _ in 0..bytes / read.len() {
                server.read_exact(&mut read).unwrap();
            }
        });
        settle();
        let told = rows(&mut watcher, "tcp_loss", client.local_addr().unwrap());
        let what = format!("{family:?}, mtu {mtu}: {told:#?}");
        assert!(told.iter().all(|row| row.text("kind") == "zero_window_peer"), "{what}");
        let sum: u64 = told.iter().map(|row| row.u64("duration_ns")).sum();
        let kernels = window_limited(&client);
        // The kernel counts each of them from one tick to another; a row is as long as it was.
        let ticks = told.len() as u64 * tick();
        assert!(
            sum <= kernels + ticks.max(5 * MS).max(kernels / 20),
            "{kernels} ns counted; {what}"
        );
        let own = rows(&mut watcher, "tcp_loss", server.local_addr().unwrap());
        assert!(own.iter().all(|row| row.text("kind") == "zero_window_local"), "{own:#?}");
        println!("{family:?}, mtu {mtu}: {} of {} ms told", sum as f64 / 1e6, kernels as f64 / 1e6);
    }
    watcher.assert_nothing_lost();
}
