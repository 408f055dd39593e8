//! Segments lost by chance: all that was sent again is told of, as often as the kernel counts it.

use std::io::{Read as _, Write as _};
use std::thread;

use super::wire::{DATA, Family, Packet, Wire};
use super::{connected, rows, settle, talk, watched};

/// Slow enough that every recovery takes longer than the threshold of a row.
const RATE: &str = "8mbit";
const BYTES: usize = 600_000;

/// What the client's namespace has sent again, ever: `TcpRetransSegs`.
fn sent_again(wire: &Wire) -> u64 {
    // That of the calling thread; `/proc/net` is the process's.
    let read = || std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let text = wire.client.within(read);
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut fields = names.split(' ').zip(values.split(' '));
    fields.find(|(name, _)| *name == "RetransSegs").unwrap().1.parse().unwrap()
}

/// Those whose bytes had been sent before.
fn repeated(sent: &[Packet]) -> Vec<&Packet> {
    let mut end = None;
    let again = sent.iter().filter(|packet| packet.len > 0).filter(|packet| {
        let before = end.is_some_and(|end: u32| packet.end().wrapping_sub(end) as i32 <= 0);
        if !before {
            end = Some(packet.end());
        }
        before
    });
    again.collect()
}

/// One transfer, of which `lose` has something lost. Everything is made good before the end.
fn transfers(lose: impl Fn(&Wire), stop: impl Fn(&Wire)) {
    let (mut watcher, wire) = watched();
    for family in Family::BOTH {
        let (mut client, mut server) = connected(&wire, family);
        talk(&mut client, &mut server);
        let (kernel, log) = (sent_again(&wire), wire.sent(&wire.client).len());
        lose(&wire);
        thread::scope(|scope| {
            scope.spawn(|| client.write_all(&vec![1; BYTES]).unwrap());
            server.read_exact(&mut vec![0; BYTES]).unwrap();
        });
        stop(&wire);
        settle();
        let kernel = sent_again(&wire) - kernel;
        let sent = wire.sent(&wire.client).split_off(log);
        let again = repeated(&sent);
        let told = rows(&mut watcher, "tcp_loss", client.local_addr().unwrap());
        let sum = |column| told.iter().map(|row| row.u64(column)).sum::<u64>();
        println!(
            "{family:?}: {kernel} sent again, {} told in {} rows",
            sum("retransmits"),
            told.len()
        );
        assert!(kernel > 5, "too few were lost: {kernel}");
        assert_eq!(again.len() as u64, kernel, "the wire and the kernel disagree");
        assert_eq!(sum("retransmits"), kernel, "{told:#?}");
        let bytes: u64 = again.iter().map(|packet| u64::from(packet.len)).sum();
        assert_eq!(sum("bytes"), bytes, "{told:#?}");
        for row in &told {
            let kind = row.text("kind");
            assert!(["fast_retransmit", "tail_loss_probe", "rto"].contains(&kind), "{row:#?}");
        }
    }
    watcher.assert_nothing_lost();
}

#[test]
fn all_that_was_sent_again_is_told_of() {
    transfers(
        |wire| {
            wire.client.tc(&format!(
                "qdisc replace dev wire root tbf rate {RATE} burst 3000 limit 1000000"
            ));
            wire.lose_some(&wire.client, DATA, 50);
        },
        |wire| {
            wire.lose(&wire.client, DATA, 0, 0);
            wire.client.tc("qdisc del dev wire root");
        },
    );
}

/// The same with the network emulator's own dice, after the wire has taken note of the segment.
#[test]
#[ignore = "needs a kernel with sch_netem"]
fn all_that_netem_made_the_kernel_send_again_is_told_of() {
    transfers(
        |wire| wire.client.tc(&format!("qdisc replace dev wire root netem rate {RATE} loss 5%")),
        |wire| wire.client.tc("qdisc del dev wire root"),
    );
}
