//! What happened within an interval: the difference of two readings.

use std::time::Instant;

use jiff::Timestamp;
use serde::Serialize;
use underspan_trackers::LostCount;
use underspan_trackers::netstack::{BUCKETS, Histogram, Netstack, buckets, verdict};

/// What there is a histogram for each of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Grouping {
    /// The interface that packets came in by.
    Interface,
    /// The socket's cgroup.
    Cgroup,
    /// IPv4 and IPv6.
    Family,
}

/// An interval, as `--json` prints it, one line each.
#[derive(Debug, Serialize)]
pub(crate) struct Interval {
    /// When it ended.
    pub(crate) time: String,
    pub(crate) duration_ns: u64,
    /// Points that no packet passed are left out.
    pub(crate) histograms: Vec<Counted>,
    /// Packets that are in no histogram, by reason.
    pub(crate) lost: Vec<Lost>,
    /// The stages that make packets late, in words.
    pub(crate) verdicts: Vec<String>,
    /// What happened to what is looked at.
    pub(crate) notices: Vec<String>,
}

/// A histogram.
#[derive(Debug, Serialize)]
pub(crate) struct Counted {
    pub(crate) point: &'static str,
    /// `ipv4` or `ipv6`; empty unless grouped by it.
    pub(crate) family: &'static str,
    pub(crate) interface: String,
    /// The namespace's inode; 0 unless grouped by interface.
    pub(crate) netns: u32,
    pub(crate) cgroup: String,
    pub(crate) count: u64,
    pub(crate) sum_ns: u64,
    pub(crate) average_ns: u64,
    /// Upper bounds of the buckets that these lie in; null: beyond 256 s.
    pub(crate) p50_ns: Option<u64>,
    pub(crate) p99_ns: Option<u64>,
    /// Those with packets in them.
    pub(crate) buckets: Vec<Bucket>,
}

/// A bucket.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Bucket {
    /// Its largest value; null: there is none.
    pub(crate) le_ns: Option<u64>,
    pub(crate) count: u64,
    #[serde(skip)]
    pub(crate) index: usize,
}

#[derive(Debug, Serialize)]
pub(crate) struct Lost {
    pub(crate) reason: &'static str,
    pub(crate) count: u64,
}

/// The last reading.
pub(crate) struct View {
    by_family: bool,
    at: Instant,
    before: Vec<Histogram>,
    lost: Vec<LostCount>,
}

impl View {
    /// Begins with what was counted up to now.
    pub(crate) fn new(netstack: &mut Netstack, by: &[Grouping]) -> anyhow::Result<Self> {
        Ok(View {
            by_family: by.contains(&Grouping::Family),
            at: Instant::now(),
            before: netstack.read()?,
            lost: netstack.lost()?,
        })
    }

    /// What came since the last call.
    pub(crate) fn interval(&mut self, netstack: &mut Netstack) -> anyhow::Result<Interval> {
        let (now, after, lost) = (Instant::now(), netstack.read()?, netstack.lost()?);
        let mut new: Vec<Histogram> = Vec::new();
        for histogram in &after {
            let same = |before: &&Histogram| before.group() == histogram.group();
            let before = self.before.iter().find(same);
            let mut since = before.map_or_else(|| histogram.clone(), |then| histogram.since(then));
            since.ipv6 &= self.by_family;
            match new.iter_mut().find(|one| one.group() == since.group()) {
                Some(one) => one.add(&since),
                None => new.push(since),
            }
        }
        new.retain(|histogram| histogram.count() > 0);
        new.sort_by(|a, b| a.group().cmp(&b.group()));
        let newly_lost = lost.iter().map(|now| {
            let before = self.lost.iter().find(|then| then.reason == now.reason);
            let count = now.count.saturating_sub(before.map_or(0, |then| then.count));
            Lost { reason: now.reason, count }
        });
        let interval = Interval {
            time: format!("{:.3}", Timestamp::now()),
            duration_ns: now.duration_since(self.at).as_nanos() as u64,
            lost: newly_lost.filter(|lost| lost.count > 0).collect(),
            verdicts: verdict(&new).iter().map(ToString::to_string).collect(),
            histograms: new.iter().map(|histogram| self.counted(histogram)).collect(),
            notices: netstack.take_notices(),
        };
        (self.at, self.before, self.lost) = (now, after, lost);
        Ok(interval)
    }

    fn counted(&self, histogram: &Histogram) -> Counted {
        let family = match (self.by_family, histogram.ipv6) {
            (false, _) => "",
            (true, false) => "ipv4",
            (true, true) => "ipv6",
        };
        let filled = (0..BUCKETS).filter(|index| histogram.buckets[*index] > 0);
        Counted {
            point: histogram.point.name(),
            family,
            interface: histogram.interface.clone(),
            netns: histogram.netns,
            cgroup: histogram.cgroup.clone(),
            count: histogram.count(),
            sum_ns: histogram.sum_ns,
            average_ns: histogram.average_ns().unwrap_or(0),
            p50_ns: histogram.quantile_ns(0.5),
            p99_ns: histogram.quantile_ns(0.99),
            buckets: filled
                .map(|index| Bucket {
                    le_ns: buckets::upper_bound_ns(index),
                    count: histogram.buckets[index],
                    index,
                })
                .collect(),
        }
    }
}
