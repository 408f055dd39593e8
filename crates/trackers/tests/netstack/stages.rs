//! What makes packets late is seen at its own stage, and at no other.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use underspan_trackers::netstack::{Histogram, Options, Point, verdict};

use crate::lab::{Family, Lab, Watch, at};

const MS: u64 = 1_000_000;

/// Messages over TCP and UDP, each read so long after it was sent, or as much later as a busy machine makes it.
fn exchange(lab: &Lab, watch: &mut Watch, family: Family, late: Duration) -> Vec<Histogram> {
    timed_exchange(lab, watch, family, late).0
}

/// The same, and for how long at most they were there when they were read, on average: over TCP, over UDP.
fn timed_exchange(
    lab: &Lab,
    watch: &mut Watch,
    family: Family,
    late: Duration,
) -> (Vec<Histogram>, [u64; 2]) {
    const MESSAGES: u64 = 20;
    let mut ages = [0; 2];
    let (mut sender, mut receiver) = lab.tcp(family);
    let (from, to) = lab.udp(family);
    watch.news();
    for _ in 0..MESSAGES {
        let tcp = Instant::now();
        sender.write_all(b"twelve bytes").unwrap();
        let udp = Instant::now();
        from.send(b"twelve bytes").unwrap();
        std::thread::sleep(Duration::from_micros(300) + late);
        let mut bytes = [0; 12];
        receiver.read_exact(&mut bytes).unwrap();
        ages[0] += tcp.elapsed().as_nanos() as u64;
        to.recv(&mut bytes).unwrap();
        ages[1] += udp.elapsed().as_nanos() as u64;
    }
    std::thread::sleep(Duration::from_millis(20));
    (watch.news(), ages.map(|age| age / MESSAGES))
}

#[test]
fn every_packet_is_seen_at_every_point() {
    let lab = Lab::new();
    for family in Family::BOTH {
        let mut watch = lab.watch(Options::default());
        let new = exchange(&lab, &mut watch, family, Duration::ZERO);
        for point in Point::ALL {
            let count = at(&new, point).count();
            let (least, most) = match point {
                Point::TcpSocketReadAfterGap => (0, 0),
                // Acknowledgements and the close as well, and neighbours' questions.
                Point::IpStart | Point::TcpStart => (20, 60),
                _ => (20, 20),
            };
            let lost = watch.lost();
            assert!((least..=most).contains(&count), "{family:?} {point:?}: {count}, {lost:?}");
            let right = new.iter().filter(|one| one.point == point);
            let v6 = family == Family::V6;
            assert!(right.clone().all(|one| one.ipv6 == v6), "{family:?} {point:?}");
        }
        assert_eq!(watch.lost(), [], "{family:?}");
        assert_eq!(verdict(&new), []);
    }
}

#[test]
fn a_late_reader_is_late_at_the_socket_only() {
    let lab = Lab::new();
    for family in Family::BOTH {
        let mut watch = lab.watch(Options::default());
        let (new, ages) = timed_exchange(&lab, &mut watch, family, Duration::from_millis(30));
        for (point, age) in [Point::TcpSocketRead, Point::UdpSocketRead].into_iter().zip(ages) {
            let late = at(&new, point).average_ns().unwrap();
            assert!(
                (30 * MS..=age).contains(&late),
                "{family:?} {point:?}: {late} ns, no more than {age} ns"
            );
        }
        for point in [Point::IpStart, Point::TcpSocketEnqueued, Point::UdpSocketEnqueued] {
            let early = at(&new, point).average_ns().unwrap();
            assert!(early < MS, "{family:?} {point:?}: {early} ns");
        }
        let said: Vec<_> = verdict(&new).iter().map(|late| late.cause()).collect();
        assert_eq!(said, ["the application reads late"; 2], "{family:?}");
    }
}

#[test]
fn ten_thousand_rules_are_between_ip_start_and_the_transport() {
    let lab = Lab::new();
    let rule = |number: u32| format!("ip saddr 192.0.2.{} tcp dport {number} drop\n", number % 250);
    let rules: String = (0..10_000).map(rule).collect();
    lab.nft(&format!(
        "table inet useless {{ chain in {{ type filter hook input priority 0;\n{rules}}}\n}}\n"
    ));
    for family in Family::BOTH {
        let mut watch = lab.watch(Options::default());
        let new = exchange(&lab, &mut watch, family, Duration::ZERO);
        let average = |point| at(&new, point).average_ns().unwrap();
        let (before, after) = (average(Point::IpStart), average(Point::TcpStart));
        assert!(after > before + 50_000, "{family:?}: {before} ns, {after} ns");
        // What comes after the transport's start is counted from the arrival too.
        let later = average(Point::TcpSocketEnqueued);
        assert!(later > after - after / 4, "{family:?}: {after} ns, {later} ns");
        let causes: Vec<_> = verdict(&new).iter().map(|late| late.cause()).collect();
        assert!(causes.contains(&"the firewall"), "{family:?}: {causes:?}");
    }
}

/// For how long the kernel has let this thread wait for a CPU. So late it reads.
fn runnable() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn bytes_behind_a_missing_segment_are_told_apart() {
    let lab = Lab::new();
    // The first packet of that length is dropped, its retransmission is not.
    lab.nft(
        "table inet gap { chain in { type filter hook input priority 0; \
         meta length 1052 quota until 1060 bytes drop; }\n}\n",
    );
    let mut watch = lab.watch(Options::default());
    let (mut sender, mut receiver) = lab.tcp(Family::V4);
    watch.news();
    let before = runnable();
    sender.write_all(&[1; 1000]).unwrap();
    sender.write_all(&[2; 100]).unwrap();
    let mut bytes = [0; 1100];
    receiver.read_exact(&mut bytes[..1000]).unwrap();
    receiver.read_exact(&mut bytes[1000..]).unwrap();
    sender.write_all(&[3; 10]).unwrap();
    receiver.read_exact(&mut bytes[..10]).unwrap();
    let late = runnable() - before;
    let new = watch.news();
    let after_gap = at(&new, Point::TcpSocketReadAfterGap);
    assert_eq!(after_gap.count(), 1, "{new:?}");
    let usual = at(&new, Point::TcpSocketRead);
    assert_eq!(usual.count(), 2);
    assert!(usual.sum_ns < 5 * MS + late, "{} ns, {late} ns late", usual.sum_ns);
}
