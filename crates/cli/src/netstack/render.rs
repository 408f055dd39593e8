//! Histograms as text.

use std::fmt::Write as _;
use std::path::Path;

use underspan_explain::words;
use underspan_trackers::netstack::{Netstack, buckets};

use super::Args;
use super::view::{Bucket, Counted, Interval};

/// The longest bar.
const BAR: usize = 40;
/// Buckets to the octave.
const FINE: usize = 1 << buckets::SCHEMA;

/// What is looked at, and how.
pub(super) fn heading(netstack: &Netstack, args: &Args) -> String {
    let how = match netstack.traces_functions() {
        true => "the kernel's functions",
        false => "tracepoints and netfilter hooks",
    };
    let namespaces: Vec<_> = netstack.namespaces().map(|namespace| name(&namespace.path)).collect();
    let namespaces = match namespaces.is_empty() {
        true => "all network namespaces".to_owned(),
        false => namespaces.join(", "),
    };
    let mut text = format!("ages of received packets by {how}, in {namespaces}\n");
    if !args.pids.is_empty() || !args.cgroups.is_empty() || args.min_queue > 0 {
        text.push_str("by socket: where it is not known yet, packets are not counted\n");
    }
    text
}

/// As its user would name it.
fn name(namespace: &Path) -> String {
    match namespace.to_str() {
        Some("/proc/self/ns/net") => "this network namespace".to_owned(),
        _ => namespace.display().to_string(),
    }
}

/// An interval.
pub(super) fn interval(interval: &Interval, args: &Args) -> String {
    let mut text = format!("\n{}\n", interval.time);
    if args.summary && !interval.histograms.is_empty() {
        let _ =
            writeln!(text, "{:34} {:>9} {:>9} {:>9} {:>9}", "", "packets", "average", "p50", "p99");
    }
    for histogram in &interval.histograms {
        let name = title(histogram);
        let (count, average) = (histogram.count, span(histogram.average_ns));
        if args.summary {
            let (p50, p99) = (bound(histogram.p50_ns), bound(histogram.p99_ns));
            let _ = writeln!(text, "{name:34} {count:>9} {average:>9} {p50:>9} {p99:>9}");
        } else {
            let packets = packets(count);
            let _ = writeln!(text, "{name}  {packets}, {average} on average");
            bars(&mut text, histogram, if args.fine { 1 } else { FINE });
        }
    }
    if interval.histograms.is_empty() {
        text.push_str("no packets\n");
    }
    for lost in &interval.lost {
        let _ = writeln!(text, "not timed: {} ({})", packets(lost.count), lost.reason);
    }
    for line in interval.notices.iter().chain(&interval.verdicts) {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn title(histogram: &Counted) -> String {
    let parts = [histogram.point, histogram.family, &histogram.interface, &histogram.cgroup];
    parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(" ")
}

/// One bar for so many buckets, from the first that is filled to the last.
fn bars(text: &mut String, histogram: &Counted, buckets_a_bar: usize) {
    let bar_of = |bucket: &Bucket| bucket.index.div_ceil(buckets_a_bar);
    let Some((first, last)) = histogram.buckets.first().zip(histogram.buckets.last()) else {
        return;
    };
    let counts: Vec<u64> = (bar_of(first)..=bar_of(last))
        .map(|bar| histogram.buckets.iter().filter(|b| bar_of(b) == bar).map(|b| b.count).sum())
        .collect();
    let most = counts.iter().copied().max().unwrap_or(1).max(1);
    for (bar, count) in (bar_of(first)..).zip(counts) {
        let up_to = bound(buckets::upper_bound_ns(bar * buckets_a_bar));
        let length = (count * BAR as u64).div_ceil(most) as usize;
        let _ = writeln!(text, "  up to {up_to:>9} |{:BAR$}| {count}", "#".repeat(length));
    }
}

fn bound(ns: Option<u64>) -> String {
    ns.map_or_else(|| "longer".to_owned(), span)
}

/// Three digits and a unit.
fn span(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

fn packets(count: u64) -> String {
    words::count(usize::try_from(count).unwrap_or(usize::MAX), "packet")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_packet_is_no_packets() {
        assert_eq!([0, 1, 2].map(packets), ["0 packets", "1 packet", "2 packets"]);
    }

    #[test]
    fn the_own_namespace_is_not_told_as_a_file() {
        assert_eq!(name(Path::new("/proc/self/ns/net")), "this network namespace");
        assert_eq!(name(Path::new("/run/netns/web")), "/run/netns/web");
    }

    #[test]
    fn times_have_three_digits() {
        let spans = [999, 1_000, 59_604, 123_456, 9_999_999, 256_000_000_000].map(span);
        assert_eq!(spans, ["999 ns", "1.00 µs", "59.6 µs", "123 µs", "10.00 ms", "256 s"]);
    }

    #[test]
    fn a_bar_is_an_octave_or_a_bucket() {
        let bucket = |index, count| Bucket { le_ns: buckets::upper_bound_ns(index), count, index };
        let histogram = Counted {
            point: "tcp-start",
            family: "",
            interface: "eth0".to_owned(),
            netns: 0,
            cgroup: String::new(),
            count: 4,
            sum_ns: 4_000,
            average_ns: 1_000,
            p50_ns: None,
            p99_ns: None,
            // The octave from 477 ns to 954 ns, and the end of the one after the next.
            buckets: vec![bucket(13, 1), bucket(16, 2), bucket(24, 1)],
        };
        assert_eq!(title(&histogram), "tcp-start eth0");
        let mut text = String::new();
        bars(&mut text, &histogram, FINE);
        let lines: Vec<_> = text.lines().map(|line| line.replace(' ', "")).collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].starts_with("upto953ns|####") && lines[0].ends_with("|3"), "{text}");
        assert!(lines[1].starts_with("upto1.91µs||") && lines[1].ends_with("|0"), "{text}");
        let mut fine = String::new();
        bars(&mut fine, &histogram, 1);
        assert_eq!(fine.lines().count(), 12, "{fine}");
    }
}
