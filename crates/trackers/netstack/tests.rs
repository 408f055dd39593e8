//! Buckets that are Prometheus' own, and rows that are differences.

use super::{BUCKETS, Histogram, NetstackTracker, Point, buckets, verdict};
use crate::record::NETSTACK_BOUNDS;
use crate::tests::support::{FakeContext, Row, decode};
use crate::{Rows, Tracker as _};

const SECOND: u64 = 1_000_000_000;

/// The bucket as the programs find it: by a table of cells and one comparison.
fn bucket_by_cell(ns: u64) -> usize {
    let octave = 63 - ns.max(1).leading_zeros() as usize;
    if octave < 3 {
        return 0;
    }
    let cell = octave * 8 + (ns >> (octave - 3) & 7) as usize;
    let Some(begins) = buckets::cells().get(cell).copied() else { return BUCKETS - 1 };
    let begins = usize::from(begins);
    let above = buckets::bounds().get(begins).is_some_and(|bound| ns > *bound);
    begins + usize::from(above)
}

#[test]
fn bounds_are_those_of_prometheus_schema_2() {
    let bounds: Vec<_> = (0..BUCKETS).map_while(buckets::upper_bound_seconds).collect();
    assert_eq!(bounds.len(), NETSTACK_BOUNDS as usize);
    assert_eq!((bounds[0], *bounds.last().unwrap()), (2f64.powi(-24), 256.0));
    for (bucket, bound) in bounds.iter().enumerate().skip(1) {
        // The specification: a bucket of index i goes up to base^i, and base is 2^(2^-schema).
        let index = buckets::NATIVE_OFFSET + bucket as i32 - 1;
        let base = 2f64.powf(2f64.powi(-(buckets::SCHEMA as i32)));
        assert!((base.powi(index) / bound - 1.0).abs() < 1e-12, "{bucket}");
    }
}

#[test]
fn programs_find_every_values_bucket() {
    let bounds = (0..BUCKETS).map_while(buckets::upper_bound_ns);
    let edges = bounds.flat_map(|bound| [bound - 1, bound, bound + 1]);
    let powers = (0..64).flat_map(|bit| [1u64 << bit, (1 << bit) - 1, (1 << bit) + 1]);
    for ns in edges.chain(powers).chain([0, u64::MAX]) {
        assert_eq!(bucket_by_cell(ns), buckets::bucket_of(ns), "{ns} ns");
    }
}

/// Packets at a point, each so many nanoseconds old.
fn packets(point: Point, ages: &[u64]) -> Histogram {
    let mut histogram = Histogram::new(point, false);
    for ns in ages {
        histogram.sum_ns += ns;
        histogram.buckets[buckets::bucket_of(*ns)] += 1;
    }
    histogram
}

fn rows(readings: &[&[Histogram]]) -> Vec<Row> {
    let mut decoder = NetstackTracker.decoder();
    let (mut context, mut rows) = (FakeContext::new(), Rows::default());
    for (second, histograms) in (1..).zip(readings) {
        decoder.histograms(histograms, second * SECOND, &mut context, &mut rows);
    }
    decode(&mut rows)
}

#[test]
fn a_row_is_what_was_added_since_the_reading_before() {
    let first = packets(Point::TcpStart, &[1_000]);
    let second = packets(Point::TcpStart, &[1_000, 5_000, 5_000, 300 * SECOND]);
    let found = rows(&[&[first], &[second]]);
    let [row] = &found[..] else { panic!("{} rows", found.len()) };
    assert_eq!(row.text("host"), FakeContext::HOST);
    assert_eq!((row.text("point"), row.text("family")), ("tcp-start", "ipv4"));
    assert_eq!((row.u64("pid"), row.u64("tid"), row.u64("duration_ns")), (0, 0, SECOND));
    assert_eq!((row.u64("count"), row.u64("sum_ns")), (3, 300 * SECOND + 10_000));
    assert_eq!(row.numbers("counts"), [2, 1]);
    let bounds = row.numbers("bounds_ns");
    assert!((5_000..6_000).contains(&bounds[0]), "{bounds:?}");
    assert_eq!(bounds[1], i128::from(u64::MAX));
}

#[test]
fn groups_that_come_and_go_are_told_once() {
    let of = |interface: &str, ages: &[u64]| Histogram {
        interface: interface.to_owned(),
        netns: 7,
        ..packets(Point::IpStart, ages)
    };
    let found = rows(&[
        &[of("a", &[900])],
        &[of("a", &[900]), of("b", &[900, 900])],
        &[of("a", &[900, 800])],
        // Another interface of that name: it begins anew.
        &[of("a", &[100])],
    ]);
    let seen: Vec<_> = found.iter().map(|row| (row.text("interface"), row.u64("count"))).collect();
    assert_eq!(seen, [("b", 2), ("a", 1), ("a", 1)]);
    assert!(found.iter().all(|row| row.u64("netns") == 7));
}

#[test]
fn nothing_new_is_no_row() {
    let histogram = packets(Point::UdpSocketRead, &[10, 20]);
    assert!(rows(&[&[], &[]]).is_empty());
    assert!(rows(&[std::slice::from_ref(&histogram), std::slice::from_ref(&histogram)]).is_empty());
}

#[test]
fn quantiles_are_bounds_of_buckets() {
    let histogram = packets(Point::UdpSocketRead, &[100, 100, 100, 1_000_000]);
    assert_eq!(histogram.quantile_ns(0.5), buckets::upper_bound_ns(buckets::bucket_of(100)));
    let last = buckets::upper_bound_ns(buckets::bucket_of(1_000_000));
    assert_eq!(histogram.quantile_ns(1.0), last);
    assert_eq!(Histogram::new(Point::IpStart, false).quantile_ns(0.5), None);
}

#[test]
fn points_and_reasons_are_the_headers() {
    let header = include_str!("netstack.h");
    let variants = |name: &str, prefix: &str| -> Vec<String> {
        let (_, rest) = header.split_once(&format!("enum {name} {{")).unwrap();
        let (body, _) = rest.split_once('}').unwrap();
        let name =
            |line: &str| Some(line.trim().split(',').next()?.strip_prefix(prefix)?.to_lowercase());
        body.lines().filter_map(name).collect()
    };
    let mut points: Vec<_> =
        Point::ALL.iter().map(|point| point.name().replace('-', "_")).collect();
    points.push("points".to_owned());
    assert_eq!(variants("netstack_point", "NETSTACK_"), points);
    let mut reasons: Vec<_> = super::probe::REASONS.map(str::to_owned).to_vec();
    reasons.push("reasons".to_owned());
    assert_eq!(variants("netstack_lost", "NETSTACK_LOST_"), reasons);
}

#[test]
fn the_stage_that_adds_most_is_named() {
    let on_the_way = |ages: [u64; 4]| -> Vec<String> {
        use Point::{IpStart, TcpSocketEnqueued, TcpSocketRead, TcpStart};
        let points = [IpStart, TcpStart, TcpSocketEnqueued, TcpSocketRead];
        let histograms: Vec<_> =
            points.into_iter().zip(ages).map(|(point, age)| packets(point, &[age])).collect();
        verdict(&histograms).iter().map(ToString::to_string).collect()
    };
    const US: u64 = 1_000;
    assert!(on_the_way([2 * US, 4 * US, 6 * US, 200 * US]).is_empty());
    assert_eq!(
        on_the_way([2 * US, 402 * US, 405 * US, 600 * US]),
        ["late between ip-start and tcp-start (+400µs on average): the firewall"]
    );
    assert_eq!(
        on_the_way([2 * US, 4 * US, 6 * US, 80_006 * US]),
        [
            "late between tcp-socket-enqueued and tcp-socket-read (+80ms on average): the application \
          reads late"
        ]
    );
    assert_eq!(
        on_the_way([900 * US, 902 * US, 905 * US, 1_000 * US]),
        ["late at ip-start (+900µs on average): the kernel takes packets late (softirq)"]
    );
    // One packet of twenty that took a second is no stage's habit, whatever it does to the average.
    let mut few = vec![4 * US; 19];
    few.push(SECOND);
    let few = [packets(Point::IpStart, &[2 * US; 20]), packets(Point::TcpStart, &few)];
    assert!(few[1].average_ns().is_some_and(|ns| ns > 100 * US));
    assert_eq!(verdict(&few), []);
}
