//! Ages of received packets. Their buckets are those of a native histogram already.

use std::borrow::Cow;
use std::collections::BTreeMap;

use underspan_metrics::{Buckets, Family, Kind, Native, Sample, Value};
use underspan_trackers::netstack::{BUCKETS, Histogram, Point, buckets};

use super::OTHER;

/// So many groups (interfaces, cgroups) have series of their own.
const MOST: usize = 128;
/// A classic bucket for each doubling: 33 of them.
const PER_CLASSIC: usize = 1 << buckets::SCHEMA;

/// What a series is of: point, IPv6, interface, network namespace, cgroup.
type Key = (Point, bool, String, u32, String);

#[derive(Debug, Default)]
pub(super) struct Packets(BTreeMap<Key, Histogram>);

impl Packets {
    /// Adds packets.
    pub(super) fn add(&mut self, new: &Histogram) {
        let or_other = |name: &str| if name.is_empty() { String::new() } else { OTHER.to_owned() };
        let mut key = (new.point, new.ipv6, new.interface.clone(), new.netns, new.cgroup.clone());
        if self.0.len() >= MOST && !self.0.contains_key(&key) {
            key = (new.point, new.ipv6, or_other(&new.interface), 0, or_other(&new.cgroup));
        }
        let empty = || Histogram::new(new.point, new.ipv6);
        self.0.entry(key).or_insert_with(empty).add(new);
    }

    pub(super) fn family(&self) -> Family {
        let mut family = Family::new(
            Kind::Histogram,
            "underspan_netstack_age_seconds",
            "How old received packets are at a point of the receive stack.",
        );
        for ((point, ipv6, interface, netns, cgroup), histogram) in &self.0 {
            let mut labels = vec![
                ("point", Cow::Borrowed(point.name())),
                ("family", Cow::Borrowed(if *ipv6 { "ipv6" } else { "ipv4" })),
            ];
            if !interface.is_empty() {
                labels.push(("device", Cow::Owned(interface.clone())));
            }
            if *netns != 0 {
                labels.push(("netns", Cow::Owned(netns.to_string())));
            }
            if !cgroup.is_empty() {
                labels.push(("id", Cow::Owned(cgroup.clone())));
            }
            family.samples.push(Sample { labels, value: Value::Histogram(told(histogram)) });
        }
        family
    }
}

fn told(histogram: &Histogram) -> Buckets {
    let mut below = 0;
    let mut classic = Vec::new();
    for (bucket, count) in histogram.buckets.iter().enumerate() {
        below += count;
        if let Some(bound) = buckets::upper_bound_seconds(bucket)
            && bucket % PER_CLASSIC == 0
        {
            classic.push((bound, below));
        }
    }
    let native = (1..BUCKETS)
        .filter(|bucket| histogram.buckets[*bucket] > 0)
        .map(|bucket| (buckets::NATIVE_OFFSET + bucket as i32 - 1, histogram.buckets[bucket]));
    Buckets {
        count: below,
        sum: histogram.sum_ns as f64 / 1e9,
        classic,
        native: Some(Native {
            schema: buckets::SCHEMA as i32,
            zero_threshold: buckets::upper_bound_seconds(0).unwrap_or_default(),
            zero_count: histogram.buckets[0],
            buckets: native.collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(point: Point, ages_ns: &[u64]) -> Histogram {
        let mut histogram = Histogram::new(point, true);
        for ns in ages_ns {
            histogram.buckets[buckets::bucket_of(*ns)] += 1;
            histogram.sum_ns += ns;
        }
        histogram
    }

    #[test]
    fn every_packet_is_in_the_native_bucket_around_its_age() {
        let ages = [1, 59, 60, 100, 1_000, 123_456, 999_999_999, 250_000_000_000, u64::MAX / 2];
        for ns in ages {
            let native = told(&packets(Point::IpStart, &[ns])).native.unwrap();
            let seconds = ns as f64 / 1e9;
            if native.zero_count == 1 {
                assert!(seconds <= native.zero_threshold, "{ns}");
                continue;
            }
            let (index, count) = native.buckets.first_key_value().unwrap();
            let bound = |index: i32| (f64::from(index) / 4.0).exp2();
            assert_eq!((native.buckets.len(), *count), (1, 1));
            assert!(seconds > bound(index - 1), "{ns}");
            // The last has no bound, and is told with one.
            assert!(seconds <= bound(*index) || *index == 33, "{ns} in {index}");
        }
    }

    #[test]
    fn classic_buckets_are_the_doublings() {
        let told =
            told(&packets(Point::TcpStart, &[10, 1_000, 2_000, 3_000_000_000, u64::MAX / 2]));
        assert_eq!((told.classic.len(), told.count), (33, 5));
        assert_eq!(told.classic[0], ((-24f64).exp2(), 1));
        assert_eq!(told.classic.last(), Some(&(256.0, 4)));
        let within = told.classic.iter().find(|(bound, _)| *bound == (-18f64).exp2()).unwrap();
        assert_eq!(within.1, 3, "3.8 us");
    }

    #[test]
    fn groups_are_bounded_and_no_packet_is_left_out() {
        let mut all = Packets::default();
        for group in 0..1_000 {
            let mut new = packets(Point::TcpSocketRead, &[5_000]);
            new.cgroup = format!("/pod{group}");
            all.add(&new);
            all.add(&packets(Point::IpStart, &[700]));
        }
        let family = all.family();
        assert!(family.samples.len() <= MOST + 2, "{}", family.samples.len());
        let count = |sample: &Sample| match &sample.value {
            Value::Histogram(buckets) => buckets.count,
            Value::Number(_) => 0,
        };
        assert_eq!(family.samples.iter().map(count).sum::<u64>(), 2_000);
    }
}
