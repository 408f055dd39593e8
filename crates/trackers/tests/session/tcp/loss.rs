//! Segments lost in known places.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::wire::{DATA, Family, Packet};
use super::{assert_close, connected, row, settle, watched};

/// From when the first lost segment was sent until its last byte was acknowledged.
fn lost_time(sent: &[Packet], answers: &[Packet]) -> u64 {
    let lost = sent.iter().find(|packet| packet.lost).expect("a loss");
    let answer = answers
        .iter()
        .find(|answer| answer.time > lost.time && answer.acknowledges(lost.end()))
        .expect("an acknowledgement");
    answer.time - lost.time
}

/// So that the kernel knows how long a round trip is.
fn talk(client: &mut TcpStream, server: &mut TcpStream) {
    for _ in 0..5 {
        client.write_all(b"hello").unwrap();
        server.read_exact(&mut [0; 5]).unwrap();
        server.write_all(b"hello").unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
    }
}

#[test]
fn the_last_segment_lost_is_a_tail_loss_probe() {
    let (mut watcher, wire) = watched();
    for family in Family::BOTH {
        let (mut client, mut server) = connected(&wire, family);
        talk(&mut client, &mut server);
        let before = (wire.sent(&wire.client).len(), wire.sent(&wire.server).len());
        wire.lose(&wire.client, DATA, 0, 1);
        client.write_all(b"lost").unwrap();
        server.read_exact(&mut [0; 4]).unwrap();
        settle();
        let lost =
            lost_time(&wire.sent(&wire.client)[before.0..], &wire.sent(&wire.server)[before.1..]);
        let row = row(&mut watcher, "tcp_loss", client.local_addr().unwrap());
        assert_eq!(row.text("kind"), "tail_loss_probe");
        assert_close(row.u64("duration_ns"), lost, "until it was acknowledged");
        assert_eq!((row.u64("retransmits"), row.u64("bytes")), (1, 4));
        assert_eq!(row.text("peer"), server.local_addr().unwrap().to_string());
    }
    watcher.assert_nothing_lost();
}
