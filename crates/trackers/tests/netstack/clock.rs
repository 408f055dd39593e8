//! A step of the wall clock makes no packet late. Nobody's clock is set for that, but where it is asked for:
//! programs and user space disagree about it in the same way if what user space last told them is changed.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime, clock_settime};
use underspan_trackers::netstack::{Histogram, Options, Point, buckets};

use crate::lab::{Family, Lab, Watch, at};

const MESSAGES: u64 = 10;
const LATE: u64 = 500_000_000;

/// What programs were told of the clocks, as in `netstack.h`: offsets of two, and from when on stamps count.
struct Told(MapHandle);

impl Told {
    fn find() -> Self {
        let ids = std::fs::read_dir("/proc/self/fdinfo").unwrap().filter_map(|entry| {
            let info = std::fs::read_to_string(entry.ok()?.path()).ok()?;
            info.lines().find_map(|line| line.strip_prefix("map_id:")?.trim().parse().ok())
        });
        let maps = ids.map(|id| MapHandle::from_map_id(id).unwrap());
        Told(maps.into_iter().find(|map| map.name() == ".data.clock").expect("programs' clocks"))
    }

    fn words(&self) -> [u64; 4] {
        let bytes = self.0.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
        std::array::from_fn(|word| u64::from_ne_bytes(*bytes[8 * word..].first_chunk().unwrap()))
    }

    fn tell(&self, words: [u64; 4]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.0.update(&0_u32.to_ne_bytes(), &bytes, MapFlags::ANY).unwrap();
    }
}

/// Messages over TCP and UDP, sent and read at once.
fn exchange(lab: &Lab) {
    for family in Family::BOTH {
        let (mut sender, mut receiver) = lab.tcp(family);
        let (from, to) = lab.udp(family);
        for _ in 0..MESSAGES {
            sender.write_all(b"twelve bytes").unwrap();
            from.send(b"twelve bytes").unwrap();
            receiver.read_exact(&mut [0; 12]).unwrap();
            to.recv(&mut [0; 12]).unwrap();
        }
    }
}

/// Those that seem to be older than anything here can be.
fn late(histograms: &[Histogram]) -> u64 {
    let first = buckets::bucket_of(LATE);
    histograms.iter().flat_map(|histogram| &histogram.buckets[first..]).sum()
}

fn clock_steps(watch: &Watch) -> u64 {
    let lost = watch.lost();
    lost.iter().find(|(reason, _)| *reason == "clock_step").map_or(0, |(_, count)| *count)
}

#[test]
fn a_step_of_a_second_makes_no_packet_late() {
    const SECOND: u64 = 1_000_000_000;
    let lab = Lab::new();
    let mut watch = lab.watch(Options::default());
    let told = Told::find();
    let [real, tai, valid_from, _] = told.words();
    let mut before = 0;
    for step in [SECOND, SECOND.wrapping_neg()] {
        // As if the clock had been set since it was read.
        told.tell([real.wrapping_sub(step), tai.wrapping_sub(step), valid_from, 0]);
        exchange(&lab);
        let told_of_it = told.words()[3];
        let new = watch.news();
        assert_eq!(late(&new), 0, "{new:?}");
        assert_eq!(told_of_it, 1, "a program has noticed");
        // Both families' messages at both sockets, each when it is read.
        let lost = clock_steps(&watch);
        let read = at(&new, Point::TcpSocketRead).count() + at(&new, Point::UdpSocketRead).count();
        assert!(lost - before >= 4 * MESSAGES - read, "{lost} lost, {read} counted");
        assert!(lost - before > 2 * MESSAGES, "{lost} lost");
        before = lost;

        // User space has read the clocks; what was stamped before stays uncounted.
        let now = Duration::from(clock_gettime(ClockId::CLOCK_REALTIME).unwrap());
        told.tell([real, tai, now.as_nanos() as u64, 0]);
        exchange(&lab);
        let new = watch.news();
        assert_eq!(late(&new), 0, "{new:?}");
        for point in [Point::TcpSocketRead, Point::UdpSocketRead] {
            assert_eq!(at(&new, point).count(), 2 * MESSAGES, "{point:?}");
        }
        assert_eq!(clock_steps(&watch), before);
    }
    assert_eq!(watch.lost(), [("clock_step", before)]);
}

/// Sets the machine's clock by so many seconds.
fn set_clock(seconds: i64) {
    let now = clock_gettime(ClockId::CLOCK_REALTIME).unwrap();
    let then = TimeSpec::new(now.tv_sec() + seconds, now.tv_nsec());
    clock_settime(ClockId::CLOCK_REALTIME, then).unwrap();
}

/// What was read at the sockets.
fn reads(histograms: &[Histogram]) -> u64 {
    let points = [Point::TcpSocketRead, Point::UdpSocketRead];
    points.iter().map(|point| at(histograms, *point).count()).sum()
}

#[test]
#[ignore = "it sets the machine's clock"]
fn a_clock_that_is_set_makes_no_packet_late() {
    let lab = Lab::new();
    let mut watch = lab.watch(Options::default());
    let mut before = 0;
    for seconds in [1, -1] {
        set_clock(seconds);
        exchange(&lab);
        let new = watch.news();
        assert_eq!(late(&new), 0, "{new:?}");
        let lost = clock_steps(&watch) - before;
        assert!(lost >= 4 * MESSAGES - reads(&new), "{lost} lost, {} counted", reads(&new));
        before += lost;

        // User space has read the clocks by now.
        exchange(&lab);
        let new = watch.news();
        assert_eq!((late(&new), reads(&new)), (0, 4 * MESSAGES), "{new:?}");
        assert_eq!(clock_steps(&watch), before);
    }
    // At least once nobody knew of it yet.
    assert!(before > 0);
    assert_eq!(watch.lost(), [("clock_step", before)]);
}
