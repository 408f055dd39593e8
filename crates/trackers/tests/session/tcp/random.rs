//! Segments lost by chance: all that had to be sent again is told of, as often as the kernel counts it.

use std::io::{Read as _, Write as _};
use std::thread;

use super::wire::{DATA, End, Family, Packet, Wire};
use super::{connected, rows, settle, talk, watched};

/// Slow enough that every recovery takes longer than the threshold of a row.
const RATE: &str = "8mbit";
const BYTES: usize = 600_000;

/// One of the kernel's counters of a namespace, as in `/proc/net/snmp` and `netstat`.
fn counter(end: &End, file: &str, group: &str, wanted: &str) -> u64 {
    // That of the calling thread; `/proc/net` is the process's.
    let read = || std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
    let text = end.within(read);
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut fields = names.split(' ').zip(values.split(' '));
    fields.find(|(name, _)| *name == wanted).unwrap().1.parse().unwrap()
}

/// What the client has sent again, ever.
fn sent_again(wire: &Wire) -> u64 {
    counter(&wire.client, "snmp", "Tcp: ", "RetransSegs")
}

/// What the server has had twice, ever: sent again without need.
fn twice(wire: &Wire) -> u64 {
    let of = |name| counter(&wire.server, "netstat", "TcpExt: ", name);
    of("TCPDSACKOldSent") + of("TCPDSACKOfoSent")
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
        let (kernel, needless) = (sent_again(&wire), twice(&wire));
        let log = wire.sent(&wire.client).len();
        lose(&wire);
        thread::scope(|scope| {
            scope.spawn(|| client.write_all(&vec![1; BYTES]).unwrap());
            server.read_exact(&mut vec![0; BYTES]).unwrap();
        });
        stop(&wire);
        settle();
        let (kernel, needless) = (sent_again(&wire) - kernel, twice(&wire) - needless);
        let sent = wire.sent(&wire.client).split_off(log);
        let again = repeated(&sent);
        let told = rows(&mut watcher, "tcp_loss", client.local_addr().unwrap());
        let sum = |column| told.iter().map(|row| row.u64(column)).sum::<u64>();
        let found = sum("retransmits");
        println!("{family:?}: {kernel} sent again, {needless} needless, {found} told");
        assert!(kernel > 5, "too few were lost: {kernel}");
        assert_eq!(again.len() as u64, kernel, "the wire and the kernel disagree");
        // What was only late is no loss, such as one whose acknowledgement was delayed.
        assert!(found <= kernel && found + needless >= kernel, "{found} of {kernel}: {told:#?}");
        if found == kernel {
            let bytes: u64 = again.iter().map(|packet| u64::from(packet.len)).sum();
            assert_eq!(sum("bytes"), bytes, "{told:#?}");
        }
        for row in &told {
            let kinds = match row.u64("retransmits") {
                // So much is sent that the window is full at times.
                0 => &["zero_window_peer"][..],
                _ => &["fast_retransmit", "tail_loss_probe", "rto"],
            };
            assert!(kinds.contains(&row.text("kind")), "{row:#?}");
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
