//! How long do received packets sit in the kernel, stage by stage?
//!
//! Its programs are an object of their own ([`Netstack`]): they cost something with each packet, so
//! that whoever wants them opens them, and whoever wants only them loads nothing else.

pub mod buckets;
mod cgroups;
mod clock;
mod decode;
mod error;
mod hooks;
mod namespace;
mod probe;
mod verdict;

use std::path::PathBuf;

pub use buckets::BUCKETS;
pub use error::Error;
pub use namespace::Namespace;
pub use probe::Netstack;
pub use verdict::{Late, verdict};

use crate::record::netstack_point;
use crate::rows::columns;
use crate::{Decoder, Hook, Tracker};

/// Ages of received packets at seven points of the receive stack.
pub struct NetstackTracker;

const NAME: &str = "netstack";

/// Where a packet's age is looked at, in the order of its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Point {
    /// The network layer begins.
    IpStart,
    /// TCP begins: firewall and routing are behind it.
    TcpStart,
    /// UDP begins.
    UdpStart,
    /// It is in a TCP socket's receive queue.
    TcpSocketEnqueued,
    /// It is in a UDP socket's receive queue.
    UdpSocketEnqueued,
    /// The application read it.
    TcpSocketRead,
    /// The same, of bytes that had to wait for a segment before them.
    TcpSocketReadAfterGap,
    /// The application read it.
    UdpSocketRead,
}

impl Point {
    /// Every point, in the order of `enum netstack_point`.
    pub const ALL: [Point; netstack_point::NETSTACK_POINTS as usize] = [
        Point::IpStart,
        Point::TcpStart,
        Point::UdpStart,
        Point::TcpSocketEnqueued,
        Point::UdpSocketEnqueued,
        Point::TcpSocketRead,
        Point::TcpSocketReadAfterGap,
        Point::UdpSocketRead,
    ];

    fn from_index(index: u8) -> Option<Self> {
        Point::ALL.get(usize::from(index)).copied()
    }

    /// Its name in tables and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Point::IpStart => "ip-start",
            Point::TcpStart => "tcp-start",
            Point::UdpStart => "udp-start",
            Point::TcpSocketEnqueued => "tcp-socket-enqueued",
            Point::UdpSocketEnqueued => "udp-socket-enqueued",
            Point::TcpSocketRead => "tcp-socket-read",
            Point::TcpSocketReadAfterGap => "tcp-socket-read-after-gap",
            Point::UdpSocketRead => "udp-socket-read",
        }
    }
}

/// The network namespaces to look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// The caller's own.
    #[default]
    Own,
    /// These, by file or by name.
    Namespaces(Vec<PathBuf>),
    /// All.
    All,
}

impl Scope {
    /// What these names mean on a command line: none is the caller's own, `all` is all.
    pub fn named(names: &[PathBuf]) -> Self {
        match names {
            [] => Scope::Own,
            names if names.iter().any(|name| name.as_os_str() == "all") => Scope::All,
            names => Scope::Namespaces(names.to_vec()),
        }
    }
}

/// What to count, and by what.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where to look.
    pub scope: Scope,
    /// Only sockets that one of these processes reads; none: all. An enqueued packet is told to be of
    /// a process from that process's first read on.
    pub pids: Vec<u32>,
    /// Only packets that came in by one of these interfaces; none: all.
    pub interfaces: Vec<String>,
    /// Only sockets of these cgroups and those below them, by path, container name or id; none: all.
    pub cgroups: Vec<String>,
    /// Only sockets with at least so many packets waiting to be read.
    pub min_queue: u32,
    /// A histogram for each interface.
    pub by_interface: bool,
    /// A histogram for each cgroup.
    pub by_cgroup: bool,
}

/// Ages of packets at a point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// Where.
    pub point: Point,
    /// Whether they are IPv6's.
    pub ipv6: bool,
    /// The interface that they came in by. Empty unless grouped by it.
    pub interface: String,
    /// The network namespace's inode. 0 unless grouped by interface.
    pub netns: u32,
    /// The socket's cgroup. Empty unless grouped by it, and before the socket is known.
    pub cgroup: String,
    /// Their sum, in nanoseconds.
    pub sum_ns: u64,
    /// How many, by [`buckets`].
    pub buckets: [u64; BUCKETS],
}

/// What a histogram is of.
pub type Group<'a> = (Point, bool, &'a str, u32, &'a str);

impl Histogram {
    /// An empty one.
    pub fn new(point: Point, ipv6: bool) -> Self {
        Histogram {
            point,
            ipv6,
            interface: String::new(),
            netns: 0,
            cgroup: String::new(),
            sum_ns: 0,
            buckets: [0; BUCKETS],
        }
    }

    /// What it is of.
    pub fn group(&self) -> Group<'_> {
        (self.point, self.ipv6, &self.interface, self.netns, &self.cgroup)
    }

    /// How many packets it tells of.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Their average age in nanoseconds; `None`: there are none.
    pub fn average_ns(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count())
    }

    /// Adds another's packets.
    pub fn add(&mut self, other: &Histogram) {
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
        for (count, more) in self.buckets.iter_mut().zip(other.buckets) {
            *count += more;
        }
    }

    /// What came since an earlier reading. A histogram that began anew meanwhile is all new.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let mut since = self.clone();
        if self.buckets.iter().zip(earlier.buckets).any(|(now, then)| *now < then) {
            return since;
        }
        // The sum is added before the count, and may be read in between.
        since.sum_ns = self.sum_ns.saturating_sub(earlier.sum_ns);
        for (count, before) in since.buckets.iter_mut().zip(earlier.buckets) {
            *count -= before;
        }
        since
    }

    /// A value that so large a share of the packets does not exceed: the bound of its bucket, in
    /// nanoseconds. `None`: there are no packets, or it lies in the last bucket.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let rank = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        buckets::upper_bound_ns(bucket)
    }
}

impl Tracker for NetstackTracker {
    fn name(&self) -> &'static str {
        NAME
    }

    fn question(&self) -> &'static str {
        "How long do received packets sit in the kernel, stage by stage?"
    }

    fn hooks(&self) -> &'static [Hook] {
        hooks::HOOKS
    }

    fn is_separate(&self) -> bool {
        true
    }

    fn sql(&self) -> &'static str {
        include_str!("table.sql")
    }

    fn tables(&self) -> Vec<(&'static str, Vec<String>)> {
        let own = [
            "point",
            "family",
            "interface",
            "netns",
            "cgroup",
            "count",
            "sum_ns",
            "bounds_ns",
            "counts",
        ];
        vec![(NAME, columns(&own))]
    }

    fn readme(&self) -> &'static str {
        include_str!("README.md")
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(decode::NetstackDecoder::new(self.tables().remove(0).1))
    }
}

#[cfg(test)]
mod tests;
