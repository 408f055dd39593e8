//! Segments lost in known places.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;

use super::wire::{DATA, Family, Packet, SYN, SYN_ACK, Wire};
use super::{
    MS, assert_close, assert_took, connect, connected, handshake, listen, row, rows, set_option,
    settle, talk, watched,
};
use crate::machine::Since;
use crate::support::Row;
use crate::watcher::Watcher;
use crate::workload::eventually;

/// What both ends have sent since `before`.
struct Log {
    sent: Vec<Packet>,
    answers: Vec<Packet>,
}

impl Log {
    fn start(wire: &Wire) -> (usize, usize) {
        (wire.sent(&wire.client).len(), wire.sent(&wire.server).len())
    }

    fn since(wire: &Wire, before: (usize, usize)) -> Self {
        Log {
            sent: wire.sent(&wire.client).split_off(before.0),
            answers: wire.sent(&wire.server).split_off(before.1),
        }
    }

    fn lost(&self) -> &Packet {
        self.sent.iter().find(|packet| packet.lost).expect("a loss")
    }

    /// How often the lost segment was sent again.
    fn again(&self) -> u64 {
        let same =
            self.sent.iter().filter(|packet| packet.seq == self.lost().seq && packet.len > 0);
        same.count() as u64 - 1
    }

    /// From when the first lost segment was sent until this was acknowledged.
    fn until(&self, seq: u32) -> u64 {
        let lost = self.lost();
        let answers = &mut self.answers.iter();
        let answer = answers.find(|answer| answer.time > lost.time && answer.acknowledges(seq));
        answer.expect("an acknowledgement").time - lost.time
    }

    /// Everything that had been sent when the lost segment was sent again.
    fn flight_end(&self) -> u32 {
        let lost = self.lost();
        let again = self.sent.iter().find(|sent| sent.seq == lost.seq && sent.time > lost.time);
        let again = again.expect("it is sent again").time;
        let flight = self.sent.iter().filter(|packet| packet.time < again);
        let ends = flight.map(|packet| packet.end().wrapping_sub(lost.seq) as i32);
        lost.seq.wrapping_add(ends.max().expect("a flight") as u32)
    }
}

/// The only row of the client's end. An end of which the kernel told nobody is noticed at the next segment.
#[track_caller]
fn told(watcher: &mut Watcher, client: &mut TcpStream, server: &mut TcpStream) -> Row {
    let local = client.local_addr().unwrap();
    if rows(watcher, "tcp_loss", local).is_empty() {
        talk(client, server);
    }
    row(watcher, "tcp_loss", local)
}

#[test]
fn the_last_segment_is_a_tail_loss_probe() {
    let (mut watcher, wire) = watched();
    for family in Family::BOTH {
        let (mut client, mut server) = connected(&wire, family);
        talk(&mut client, &mut server);
        let before = Log::start(&wire);
        wire.lose(&wire.client, DATA, 0, 1);
        client.write_all(b"lost").unwrap();
        server.read_exact(&mut [0; 4]).unwrap();
        settle();
        let log = Log::since(&wire, before);
        let row = told(&mut watcher, &mut client, &mut server);
        assert_eq!(row.text("kind"), "tail_loss_probe");
        assert_close(row.u64("duration_ns"), log.until(log.lost().end()), "the stall");
        assert_eq!((row.u64("retransmits"), row.u64("bytes")), (1, 4));
        assert_eq!(row.text("peer"), server.local_addr().unwrap().to_string());
    }
    watcher.assert_nothing_lost();
}

#[test]
fn one_in_the_middle_is_a_fast_retransmit() {
    let (mut watcher, wire) = watched();
    // Slow enough that a round trip is some milliseconds: 1,500 bytes take 3 ms.
    wire.client.tc("qdisc add dev wire root tbf rate 4mbit burst 3000 limit 1000000");
    for family in Family::BOTH {
        let (mut client, mut server) = connected(&wire, family);
        talk(&mut client, &mut server);
        let before = Log::start(&wire);
        wire.lose(&wire.client, DATA, 5, 1);
        let bytes = 60_000;
        thread::scope(|scope| {
            scope.spawn(|| client.write_all(&vec![1; bytes]).unwrap());
            server.read_exact(&mut vec![0; bytes]).unwrap();
        });
        settle();
        let log = Log::since(&wire, before);
        let row = told(&mut watcher, &mut client, &mut server);
        assert_eq!(row.text("kind"), "fast_retransmit");
        let stall = log.until(log.flight_end());
        assert!(stall > 10 * MS, "a stall that can be told from none: {stall}");
        assert_close(row.u64("duration_ns"), stall, "the stall");
        assert_eq!((row.u64("retransmits"), row.u64("backoff")), (1, 0));
        assert_eq!(row.u64("bytes"), u64::from(log.lost().len));
    }
    watcher.assert_nothing_lost();
}

#[test]
fn the_same_one_again_and_again_is_a_timeout_with_backoff() {
    let (mut watcher, wire) = watched();
    for family in Family::BOTH {
        let (mut client, mut server) = connected(&wire, family);
        talk(&mut client, &mut server);
        let before = Log::start(&wire);
        // The segment, the probe, and what two timeouts send.
        wire.lose(&wire.client, DATA, 0, 4);
        client.write_all(b"lost").unwrap();
        server.read_exact(&mut [0; 4]).unwrap();
        settle();
        let log = Log::since(&wire, before);
        let row = told(&mut watcher, &mut client, &mut server);
        assert_eq!(row.text("kind"), "rto");
        let stall = log.until(log.lost().end());
        assert!(stall > 1_200 * MS, "{stall}");
        assert_close(row.u64("duration_ns"), stall, "the stall");
        assert_eq!(log.again(), 4);
        assert_eq!((row.u64("retransmits"), row.u64("backoff")), (4, 2), "{row:?}");
        assert_eq!(row.u64("bytes"), 4 * 4);
    }
    watcher.assert_nothing_lost();
}

#[test]
fn one_that_nobody_was_told_of_began_when_the_segment_was_sent() {
    for family in Family::BOTH {
        let mut watcher = Watcher::new();
        let wire = Wire::new();
        let (mut client, mut server) = connected(&wire, family);
        talk(&mut client, &mut server);
        let before = Log::start(&wire);
        wire.lose(&wire.client, DATA, 0, 3);
        client.write_all(b"lost").unwrap();
        // The probe has gone, and the first timeout has not yet sent anything.
        let probed = || (Log::since(&wire, before).again() == 1).then_some(());
        eventually("it is sent again", probed);
        watcher.watch(std::process::id());
        let known = Log::since(&wire, before).again();
        server.read_exact(&mut [0; 4]).unwrap();
        settle();
        let log = Log::since(&wire, before);
        let row = told(&mut watcher, &mut client, &mut server);
        assert_eq!(row.text("kind"), "rto");
        assert_close(row.u64("duration_ns"), log.until(log.lost().end()), "the stall");
        assert_eq!(
            (row.u64("retransmits"), row.u64("backoff")),
            (log.again() - known, 1),
            "{row:?}"
        );
        watcher.assert_nothing_lost();
    }
}

#[test]
fn the_first_of_all_or_its_answer_is_a_syn_retry() {
    let (mut watcher, wire) = watched();
    let cases = Family::BOTH.into_iter().flat_map(|family| [(family, SYN), (family, SYN_ACK)]);
    let mut late = 0;
    for (family, kind) in cases {
        let listener = listen(&wire, family);
        let end = if kind == SYN { &wire.client } else { &wire.server };
        wire.lose(end, kind, 0, 1);
        let before = wire.sent(&wire.client).len();
        let client = connect(&wire, listener.local_addr().unwrap());
        let took = handshake(&wire, before);
        assert!(took > 900 * MS);
        let local = client.local_addr().unwrap();
        if rows(&mut watcher, "tcp_loss", local).is_empty() {
            // The kernel kept the answer's arrival to itself: then the connection's end tells.
            late += 1;
            drop(client);
        }
        let row = row(&mut watcher, "tcp_loss", local);
        assert_eq!((row.text("kind"), row.u64("retransmits")), ("syn_retry", 1));
        assert_close(row.u64("duration_ns"), took, "connecting");
    }
    assert!(late <= 1, "that is rare: {late} of 4");
    watcher.assert_nothing_lost();
}

#[test]
fn a_peer_that_falls_silent_is_a_timeout_until_the_kernel_gives_up() {
    let (mut watcher, wire) = watched();
    for family in Family::BOTH {
        let (mut client, mut server) = connected(&wire, family);
        talk(&mut client, &mut server);
        set_option(&client, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 1_500);
        wire.lose(&wire.client, DATA, 0, 1_000);
        let since = Since::now();
        client.write_all(b"is anybody there").unwrap();
        let error = client.read(&mut [0]).unwrap_err();
        let took = since.took();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        wire.lose(&wire.client, DATA, 0, 0);
        let row = row(&mut watcher, "tcp_loss", client.local_addr().unwrap());
        assert_eq!(row.text("kind"), "rto");
        assert_took(row.u64("duration_ns"), took, "until the kernel gave up");
        assert!(row.u64("backoff") >= 2, "{row:?}");
    }
    watcher.assert_nothing_lost();
}
