//! Which stage makes packets late, in words.

use std::fmt;
use std::time::Duration;

use super::{Histogram, Point};

/// What a stage of the kernel may add on average. Thousands of firewall rules add more.
const KERNEL_NS: u64 = 100_000;
/// What an application may add: it has to be woken, and may have something else to do.
const APPLICATION_NS: u64 = 5_000_000;

/// So many of the packets must be late for a stage to be accused: an average is moved by a few.
const USUAL: f64 = 0.9;

/// A stage in which packets wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    /// The last point that packets pass in time; `None`: they are late at the first.
    pub after: Option<Point>,
    /// The point at which they are late.
    pub at: Point,
    /// What lies between the two adds on average, in nanoseconds.
    pub added_ns: u64,
}

impl Late {
    /// What is between the two points.
    pub fn cause(self) -> &'static str {
        match self.at {
            Point::IpStart => "the kernel takes packets late (softirq)",
            Point::TcpStart | Point::UdpStart => "the firewall",
            Point::TcpSocketEnqueued | Point::UdpSocketEnqueued => "the transport",
            Point::TcpSocketRead | Point::UdpSocketRead => "the application reads late",
            Point::TcpSocketReadAfterGap => "a segment was missing",
        }
    }
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let added = Duration::from_nanos(self.added_ns / 1_000 * 1_000);
        match self.after {
            None => write!(f, "late at {}", self.at.name())?,
            Some(after) => write!(f, "late between {} and {}", after.name(), self.at.name())?,
        }
        write!(f, " (+{added:?} on average): {}", self.cause())
    }
}

const TCP: [Point; 4] =
    [Point::IpStart, Point::TcpStart, Point::TcpSocketEnqueued, Point::TcpSocketRead];
const UDP: [Point; 4] =
    [Point::IpStart, Point::UdpStart, Point::UdpSocketEnqueued, Point::UdpSocketRead];

/// The stages that make packets late: on average, and more than a tenth of them. A point without packets
/// is left out.
pub fn verdict(histograms: &[Histogram]) -> Vec<Late> {
    let mut found: Vec<Late> = Vec::new();
    for way in [TCP, UDP] {
        let mut before: Option<(Point, u64, u64)> = None;
        for at in way {
            let mut all = Histogram::new(at, false);
            histograms.iter().filter(|one| one.point == at).for_each(|one| all.add(one));
            let Some(average) = all.average_ns() else { continue };
            // Above all buckets there is no bound.
            let usual = all.quantile_ns(USUAL).unwrap_or(u64::MAX);
            let added_ns = average.saturating_sub(before.map_or(0, |(_, average, _)| average));
            let usually_ns = usual.saturating_sub(before.map_or(0, |(_, _, usual)| usual));
            let allowed = match at {
                Point::TcpSocketRead | Point::UdpSocketRead => APPLICATION_NS,
                _ => KERNEL_NS,
            };
            let late = Late { after: before.map(|(point, ..)| point), at, added_ns };
            if added_ns.min(usually_ns) > allowed && !found.contains(&late) {
                found.push(late);
            }
            before = Some((at, average, usual));
        }
    }
    found
}
