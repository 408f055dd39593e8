//! The same packets, timed by the program that receives them with SO_TIMESTAMPING. Of a TCP segment of
//! this host's own, sockets only learn when it was handed to the transport; it came some
//! microseconds before.

use std::io::{IoSliceMut, Write as _};
use std::os::fd::{AsFd, AsRawFd as _};
use std::time::Duration;

use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, TimestampingFlag, recvmsg, setsockopt, sockopt,
};
use nix::time::{ClockId, clock_gettime};
use underspan_trackers::netstack::{Options, Point, buckets};

use crate::lab::{Family, Lab, Watch};

fn now() -> u64 {
    Duration::from(clock_gettime(ClockId::CLOCK_REALTIME).unwrap()).as_nanos() as u64
}

fn ask_for_stamps(socket: &impl AsFd) {
    let flags = TimestampingFlag::SOF_TIMESTAMPING_RX_SOFTWARE
        | TimestampingFlag::SOF_TIMESTAMPING_SOFTWARE;
    setsockopt(socket, sockopt::Timestamping, &flags).unwrap();
}

/// Reads a message. Returns its age just before it was asked for, and just after it was there.
fn read(socket: &impl AsFd) -> (u64, u64) {
    let mut bytes = [0; 64];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let mut space = nix::cmsg_space!(nix::sys::socket::Timestamps);
    let before = now();
    let fd = socket.as_fd().as_raw_fd();
    let message = recvmsg::<()>(fd, &mut parts, Some(&mut space), MsgFlags::empty()).unwrap();
    let after = now();
    let stamp = message.cmsgs().unwrap().find_map(|control| match control {
        ControlMessageOwned::ScmTimestampsns(stamps) => Some(Duration::from(stamps.system)),
        _ => None,
    });
    let stamp = stamp.expect("a time stamp with each message").as_nanos() as u64;
    (before.saturating_sub(stamp), after - stamp)
}

/// How long packets wait to be read: 100 µs to 50 ms, evenly on a logarithmic scale.
fn waits() -> impl Iterator<Item = Duration> {
    (0..40).map(|step| Duration::from_secs_f64(1e-4 * 500f64.powf(f64::from(step) / 39.0)))
}

/// Reads messages of all ages, and compares each with what was counted of it.
fn agrees(watch: &mut Watch, point: Point, socket: &impl AsFd, mut send: impl FnMut()) {
    ask_for_stamps(socket);
    for wait in waits() {
        watch.news();
        send();
        std::thread::sleep(wait);
        let (before, after) = read(socket);
        let new = watch.news();
        let counted: Vec<_> = new.iter().filter(|histogram| histogram.point == point).collect();
        let [one] = counted[..] else { panic!("{point:?} after {wait:?}: {new:?}") };
        assert_eq!(one.count(), 1, "{point:?} after {wait:?}");
        let bucket = one.buckets.iter().position(|count| *count > 0).unwrap();
        // The read was looked at between the two; on a busy machine they can be far apart.
        let least = buckets::bucket_of(before).saturating_sub(1);
        let most = buckets::bucket_of(after) + 1;
        assert!((least..=most).contains(&bucket), "{point:?}: {bucket}, {before} to {after} ns");
    }
}

#[test]
fn datagrams_are_as_old_as_their_reader_sees() {
    let lab = Lab::new();
    let mut watch = lab.watch(Options::default());
    for family in Family::BOTH {
        let (from, to) = lab.udp(family);
        agrees(&mut watch, Point::UdpSocketRead, &to, || {
            from.send(b"a datagram").unwrap();
        });
    }
}

#[test]
fn segments_are_as_old_as_their_reader_sees() {
    let lab = Lab::new();
    let mut watch = lab.watch(Options::default());
    for family in Family::BOTH {
        let (mut from, to) = lab.tcp(family);
        agrees(&mut watch, Point::TcpSocketRead, &to, || from.write_all(b"a segment").unwrap());
    }
}
