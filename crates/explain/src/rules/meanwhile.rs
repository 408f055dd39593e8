//! What went on in the host meanwhile. None of it is of this request alone, so it can only coincide.

use std::collections::BTreeMap;

use serde::Serialize;
use underspan_model::{HostCounter, State};

use crate::case::Case;
use crate::finding::{Finding, INTERFERENCE, Kind, Relation};
use crate::interval::{Cover, Interval};
use crate::rules::cpu::RAISE_QUOTA;
use crate::words;

/// A rate of the host matters from this share of the time on.
const MUCH: f64 = 0.10;
/// What a stage of the receive stack must add to a packet, on average.
const LATE_NS: u64 = 1_000_000;
/// Fewer packets make no average.
const PACKETS: u64 = 10;

/// Something in the request's host that may have mattered to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Circumstance {
    /// `host_throttled` (by the cloud, the hypervisor, a quota), `packets_dropped` or `packets_late` (in
    /// the receive stack).
    pub kind: &'static str,
    /// Always `coincided`: time that it caused is a finding.
    pub relation: Relation,
    /// The counter, or the stage: `firewall`, `transport`, `application`, `softirq`.
    pub what: String,
    /// The interface, CPU, cgroup or disk.
    pub subject: String,
    /// By how much it counted, or nanoseconds that the stage added to a packet on average.
    pub amount: u64,
    /// `ns` or `count`.
    pub unit: String,
    /// What happened, in words.
    pub text: String,
    /// What would help, in words.
    pub advice: &'static str,
}

/// Everything that fits to where this request's time went, and is not in a finding already.
pub(super) fn find(case: &Case<'_>, findings: &[Finding]) -> Vec<Circumstance> {
    let by_quota = |finding: &Finding| {
        let culprit = finding.culprit.as_ref();
        finding.kind == Kind::Throttled || culprit.is_some_and(|culprit| !culprit.cgroup.is_empty())
    };
    let told = findings.iter().any(by_quota);
    let counted = counters(case).filter(|(source, _)| !(told && *source == CGROUP));
    let mut found: Vec<_> = counted.map(|(_, what)| what).chain(late(case)).collect();
    found.sort_by(|a, b| (a.kind, &a.what, &a.subject).cmp(&(b.kind, &b.what, &b.subject)));
    found
}

/// What the threads of a cgroup did not get of its quota. A finding has what the request's own did not.
const CGROUP: &str = "cgroup";

/// A kind of counter: where its rows come from, for whom it matters, and what it means.
struct Meaning {
    source: &'static str,
    metric: fn(&str) -> bool,
    kind: &'static str,
    states: &'static [State],
    words: &'static str,
    advice: &'static str,
}

const NETWORK: &[State] = &[State::NetRead, State::NetWrite, State::NetConnect, State::PollWait];
const CPU: &[State] = &[State::Running, State::GcRun, State::Runnable, State::Throttled];
const DISK: &[State] = &[State::DiskIo, State::PageFault];

const MEANINGS: [Meaning; 7] = [
    Meaning {
        source: "ena",
        metric: |metric| metric.ends_with("_allowance_exceeded"),
        kind: "host_throttled",
        states: NETWORK,
        words: "the instance used up a network allowance, and its packets were queued or dropped",
        advice: "Take a larger instance, or spread the traffic over more of them",
    },
    Meaning {
        source: "ebs",
        metric: |metric| metric.contains("_exceeded_"),
        kind: "host_throttled",
        states: DISK,
        words: "the volume or instance asked for more than its provisioned storage performance",
        advice: "Provision more IOPS or throughput, or take a larger instance",
    },
    Meaning {
        source: "cpu",
        metric: |_| true,
        kind: "host_throttled",
        states: CPU,
        words: "the hypervisor ran somebody else on this CPU (steal)",
        advice: "Take an instance with CPUs of its own, or one that does not run on credits",
    },
    Meaning {
        source: CGROUP,
        metric: |metric| metric == "container_cpu_cfs_throttled_seconds_total",
        kind: "host_throttled",
        states: CPU,
        words: "threads of the cgroup were held back by its CPU quota",
        advice: RAISE_QUOTA,
    },
    Meaning {
        source: "pressure",
        metric: |metric| metric.contains("_memory_stalled_"),
        kind: "host_throttled",
        states: DISK,
        words: "every task of the host that could run was stalled for want of memory",
        advice: "Give the host more memory, or run less on it",
    },
    Meaning {
        source: "softnet",
        metric: |metric| metric.contains("_dropped_"),
        kind: "packets_dropped",
        states: NETWORK,
        words: "packets were dropped since this CPU's input queue was full",
        advice: "Raise net.core.netdev_max_backlog, and spread packets over CPUs (RSS, RPS)",
    },
    Meaning {
        source: "interface",
        metric: |metric| metric.contains("_drop_total") || metric.contains("_fifo_total"),
        kind: "packets_dropped",
        states: NETWORK,
        words: "the interface dropped packets",
        advice: "Look at the interface's queues and rings (ethtool -S, ethtool -G, tc -s qdisc)",
    },
];

/// Counters that moved, each where the request spent time that fits it.
fn counters(case: &Case<'_>) -> impl Iterator<Item = (&'static str, Circumstance)> {
    let mut sums: BTreeMap<(usize, &str, &str), (u64, u64, &HostCounter)> = BTreeMap::new();
    for row in &case.evidence.counters {
        let time = Interval::new(row.start_time, row.duration_ns);
        let overlaps = time.overlap(case.window.whole).len() > 0;
        if !overlaps || row.host != case.request.host || row.delta == 0 {
            continue;
        }
        let meant =
            |meaning: &Meaning| row.source == meaning.source && (meaning.metric)(&row.metric);
        if let Some(index) = MEANINGS.iter().position(meant)
            && fits(case, row, MEANINGS[index].states)
        {
            let sum = sums.entry((index, &row.metric, &row.subject)).or_insert((0, 0, row));
            sum.0 = sum.0.saturating_add(row.delta);
            sum.1 = sum.1.saturating_add(row.duration_ns);
        }
    }
    sums.into_iter().filter_map(|((index, metric, subject), (amount, during, row))| {
        let is_time = row.unit == "ns";
        if is_time && words::fraction(amount, during) < MUCH {
            return None;
        }
        let meaning = &MEANINGS[index];
        let by = if is_time {
            format!("{} in {}", words::duration(amount), words::duration(during))
        } else {
            let times = words::count(usize::try_from(amount).unwrap_or(usize::MAX), "time");
            format!("{times} in {}", words::duration(during))
        };
        let of = if subject.is_empty() { String::new() } else { format!(" ({subject})") };
        let circumstance = Circumstance {
            kind: meaning.kind,
            relation: Relation::Coincided,
            what: metric.to_owned(),
            subject: subject.to_owned(),
            amount,
            unit: row.unit.clone(),
            text: format!(
                "Meanwhile {}{of}: {by}. Whether it held up this request is not known",
                meaning.words
            ),
            advice: meaning.advice,
        };
        Some((meaning.source, circumstance))
    })
}

/// Whether a counter can have to do with this request at all.
fn fits(case: &Case<'_>, row: &HostCounter, states: &[State]) -> bool {
    let spent = states.iter().fold(0u64, |sum, s| sum.saturating_add(case.window.ledger[*s]));
    let own_cgroup = || {
        let cgroup = case.evidence.process.as_ref().map_or("", |process| &process.cgroup);
        !cgroup.is_empty() && (row.subject == cgroup || is_above(&row.subject, cgroup))
    };
    case.worth(spent, INTERFERENCE) && (row.source != CGROUP || own_cgroup())
}

fn is_above(above: &str, cgroup: &str) -> bool {
    let above = above.trim_end_matches('/');
    cgroup.strip_prefix(above).is_some_and(|rest| rest.starts_with('/')) && !above.is_empty()
}

/// The points that packets pass, in order, and what lies before each.
const WAY: [(&str, &str, &str); 4] = [
    (
        "ip-start",
        "softirq",
        "The kernel takes packets late: look at softnet squeezes and at a CPU that \
        serves all interrupts (RSS, RPS)",
    ),
    (
        "tcp-start",
        "firewall",
        "Look at the firewall's rules (nft list ruleset, iptables-save): thousands \
        of them are looked at one by one; use sets or maps",
    ),
    (
        "tcp-socket-enqueued",
        "transport",
        "Look at what the sockets do: a busy owner, pruned queues, and \
        segments missing before these",
    ),
    (
        "tcp-socket-read",
        "application",
        "The application reads late: more workers, or less work between \
        two reads",
    ),
];

/// Stages of the receive stack that made packets late, on average of all packets meanwhile.
fn late(case: &Case<'_>) -> Vec<Circumstance> {
    let waited = NETWORK.iter().fold(0u64, |sum, s| sum.saturating_add(case.window.ledger[*s]));
    // What is late on its way in delays a request before it is read, or what its thread waits for.
    let phases = case.window.accept_queue.len().saturating_add(case.window.handoff.len());
    if !case.worth(waited.saturating_add(phases), INTERFERENCE) {
        return Vec::new();
    }
    let whole = Cover::from(case.window.whole);
    let mut found = Vec::new();
    let mut before = 0;
    for (point, stage, advice) in WAY {
        let (mut count, mut sum) = (0u64, 0u64);
        for row in case.evidence.packets.iter().filter(|row| row.point == point) {
            let time = Interval::new(row.start_time, row.duration_ns);
            if row.host == case.request.host && whole.within(time).total() > 0 {
                count = count.saturating_add(row.count);
                sum = sum.saturating_add(row.sum_ns);
            }
        }
        if count < PACKETS {
            continue;
        }
        let average = sum / count;
        let added = average.saturating_sub(before);
        before = average;
        if added < LATE_NS {
            continue;
        }
        found.push(Circumstance {
            kind: "packets_late",
            relation: Relation::Coincided,
            what: stage.to_owned(),
            subject: String::new(),
            amount: added,
            unit: String::from("ns"),
            text: format!(
                "Meanwhile packets that this host received were late at {point}: {} more on average \
                 than at the point before ({count} packets, stage: {stage}). Whether this request's \
                 were among them is not known",
                words::duration(added)
            ),
            advice,
        });
    }
    found
}
