//! Only what was asked for is counted, and all of it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use underspan_trackers::netstack::{Histogram, Options, Point};

use crate::lab::{Family, Lab, Watch, at};
use crate::reader::Reader;

const MESSAGES: u64 = 20;

/// Somebody else's packets, of every kind.
fn others(lab: &Lab) {
    for family in Family::BOTH {
        let (mut sender, mut receiver) = lab.tcp(family);
        let (from, to) = lab.udp(family);
        for _ in 0..MESSAGES {
            sender.write_all(b"not asked for").unwrap();
            from.send(b"not asked for").unwrap();
            receiver.read_exact(&mut [0; 13]).unwrap();
            to.recv(&mut [0; 13]).unwrap();
        }
    }
}

/// Messages to the reader, each when the one before was read: segments that wait may become one.
fn tell(reader: &mut Reader, watch: &mut Watch) -> Vec<Histogram> {
    for _ in 0..MESSAGES {
        reader.sender.write_all(b"a message").unwrap();
        reader.sender.read_exact(&mut [0]).unwrap();
    }
    watch.news()
}

/// Each of the reader's messages is counted once at the socket, and before the socket nothing is.
#[track_caller]
fn only_the_readers(all: &[Histogram]) {
    assert_eq!(at(all, Point::TcpSocketRead).count(), MESSAGES);
    // Whose a socket is is not known before the first read of it.
    let enqueued = at(all, Point::TcpSocketEnqueued).count();
    assert!((MESSAGES - 1..=MESSAGES).contains(&enqueued), "{enqueued}");
    for point in [
        Point::IpStart,
        Point::TcpStart,
        Point::UdpStart,
        Point::UdpSocketEnqueued,
        Point::UdpSocketRead,
    ] {
        assert_eq!(at(all, point).count(), 0, "{point:?}");
    }
}

#[test]
fn a_process_is_told_by_what_it_reads() {
    let lab = Lab::new();
    let mut reader = Reader::start(&lab, None);
    let mut watch = lab.watch(Options { pids: vec![reader.pid()], ..Options::default() });
    others(&lab);
    assert_eq!(watch.news(), []);
    only_the_readers(&tell(&mut reader, &mut watch));
    assert_eq!(watch.lost(), []);
    // It ends, and is said to.
    drop(reader);
    watch.notice("has ended");
    watch.news(); // the end of its connection may be in it
    others(&lab);
    assert_eq!(watch.news(), []);
}

/// A cgroup and one in it. They go when it is dropped; whoever is in them must have ended.
struct Cgroups {
    outer: PathBuf,
    inner: PathBuf,
    /// As it is known below the root.
    path: String,
}

impl Cgroups {
    fn new() -> Self {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let root = fields.find(|fields| fields[2] == "cgroup2").expect("cgroup2 is mounted")[1];
        let path = format!("/underspan-netstack-{}", std::process::id());
        let outer = PathBuf::from(format!("{root}{path}"));
        let inner = outer.join("inner");
        fs::create_dir_all(&inner).unwrap();
        Cgroups { outer, inner, path }
    }

    fn remove(&self) {
        for folder in [&self.inner, &self.outer] {
            // The kernel takes a moment to empty it.
            let is_gone = |_: &i32| fs::remove_dir(folder).is_ok() || !folder.exists();
            let again = |wait: &i32| std::thread::sleep(Duration::from_millis(*wait as u64));
            assert!((0..100).inspect(again).any(|wait| is_gone(&wait)), "{}", folder.display());
        }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.inner);
        let _ = fs::remove_dir(&self.outer);
    }
}

#[test]
fn a_cgroup_is_told_with_those_in_it_until_it_vanishes() {
    let lab = Lab::new();
    let cgroups = Cgroups::new();
    let mut reader = Reader::start(&lab, Some(&cgroups.inner));
    let by_cgroup = true;
    let of_cgroup = vec![cgroups.path.clone()];
    let mut watch =
        lab.watch(Options { cgroups: of_cgroup.clone(), by_cgroup, ..Options::default() });
    others(&lab);
    assert_eq!(watch.news(), []);
    let all = tell(&mut reader, &mut watch);
    only_the_readers(&all);
    let inner = format!("{}/inner", cgroups.path);
    assert!(all.iter().all(|histogram| histogram.cgroup == inner), "{all:?}");
    assert_eq!(watch.lost(), []);

    drop(reader);
    cgroups.remove();
    let notice = watch.notice("has gone");
    assert!(notice.contains(&cgroups.path), "{notice}");
    watch.news(); // the end of its connection may be in it
    others(&lab);
    assert_eq!(watch.news(), []);
    // One of its name is another one, and cannot be asked for any more.
    let error = lab.try_watch(Options { cgroups: of_cgroup, ..Options::default() }).unwrap_err();
    assert!(error.contains(&format!("cgroup {}: there is no cgroup", cgroups.path)), "{error}");
}

#[test]
fn a_short_queue_is_left_out() {
    const LEAST: u32 = 4;
    let lab = Lab::new();
    for family in Family::BOTH {
        let mut watch = lab.watch(Options { min_queue: LEAST, ..Options::default() });
        let (from, to) = lab.udp(family);
        let exchange = |datagrams: u32| {
            for _ in 0..datagrams {
                from.send(b"a datagram").unwrap();
            }
            std::thread::sleep(Duration::from_millis(20));
            for _ in 0..datagrams {
                to.recv(&mut [0; 10]).unwrap();
            }
        };
        exchange(LEAST - 1);
        assert_eq!(watch.news(), [], "{family:?}");
        // When the last of them comes, so many wait; and before the first of them is read.
        for more in 0..3 {
            exchange(LEAST + more);
            let new = watch.news();
            let count = |point| at(&new, point).count();
            let counted = (count(Point::UdpSocketEnqueued), count(Point::UdpSocketRead));
            let expected = u64::from(more) + 1;
            assert_eq!(counted, (expected, expected), "{family:?}");
            assert_eq!(count(Point::IpStart) + count(Point::UdpStart), 0, "{family:?}");
        }
        assert_eq!(watch.lost(), []);
    }
}

#[test]
fn an_interface_is_told_until_it_vanishes_and_when_it_is_back() {
    let lab = Lab::new();
    let interfaces = vec!["wire".to_owned()];
    let options = Options { interfaces, by_interface: true, ..Options::default() };
    let mut watch = lab.watch(options.clone());
    lab.loopback();
    assert_eq!(watch.news(), [], "that was by lo");
    others(&lab);
    let new = watch.news();
    assert!(new.iter().all(|histogram| histogram.interface == "wire"), "{new:?}");
    assert_eq!(at(&new, Point::UdpSocketRead).count(), 2 * MESSAGES);

    lab.cut();
    let notice = watch.notice("has gone");
    assert!(notice.contains("wire"), "{notice}");
    lab.loopback();
    assert_eq!(watch.news(), []);
    let error = lab.try_watch(options).unwrap_err();
    assert!(error.contains("there is no interface wire; there are: lo"), "{error}");

    lab.join();
    watch.notice("is there");
    watch.news();
    others(&lab);
    assert_eq!(at(&watch.news(), Point::UdpSocketRead).count(), 2 * MESSAGES);
    assert_eq!(watch.lost(), []);
}

#[test]
fn a_namespace_that_ends_is_let_go_of() {
    let lab = Lab::new();
    let mut watch = lab.watch(Options::default());
    others(&lab);
    assert!(!watch.news().is_empty());
    lab.end_receiver();
    let notice = watch.notice("has ended");
    assert!(notice.contains(&lab.receiver), "{notice}");
    // With the namespace goes its end of the wire, and with that the other one.
    let give_up = Instant::now() + Duration::from_secs(10);
    while lab.sender_has_wire() {
        assert!(Instant::now() < give_up, "something keeps the namespace alive");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(watch.lost(), []);
}
