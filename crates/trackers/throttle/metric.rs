//! The counters: what each is called, counts, and comes from.
//!
//! Names are node_exporter's where it has the counter, cAdvisor's for cgroups' quotas.

use Kind::{Counter, Gauge, Untyped};
use Source::{Cgroup, Cpu, Ebs, Ena, Interface, Listen, Pressure, Softnet};
use Unit::{Count, Nanoseconds};

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The network adapter of an AWS instance, by ethtool.
    Ena,
    /// An EBS volume, by a log page of its NVMe controller.
    Ebs,
    /// `/proc/stat`.
    Cpu,
    /// `cpu.stat` of the watched processes' cgroups, and of those above them.
    Cgroup,
    /// `/proc/net/softnet_stat`.
    Softnet,
    /// `/proc/pressure`.
    Pressure,
    /// `/proc/PID/net/dev`, for each network namespace with a watched process.
    Interface,
    /// `/proc/PID/net/netstat`, likewise.
    Listen,
}

impl Source {
    /// All of them.
    pub const ALL: [Source; 8] = [Ena, Ebs, Cpu, Cgroup, Softnet, Pressure, Interface, Listen];

    /// Its name in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Ena => "ena",
            Ebs => "ebs",
            Cpu => "cpu",
            Cgroup => "cgroup",
            Softnet => "softnet",
            Pressure => "pressure",
            Interface => "interface",
            Listen => "listen",
        }
    }
}

/// What a value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things: packets, periods, connections.
    Count,
    /// Time; metrics have it in seconds.
    Nanoseconds,
}

impl Unit {
    /// Its name in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Count => "count",
            Nanoseconds => "ns",
        }
    }
}

/// What metrics say that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It only grows, and node_exporter leaves the type open, as the name does not end in `_total`.
    Untyped,
    /// A level: there is no difference to the reading before.
    Gauge,
}

/// A counter.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name, in the table and in metrics.
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
    /// Who is asked for it.
    pub source: Source,
    /// In what.
    pub unit: Unit,
    /// Whether it only grows.
    pub kind: Kind,
    /// The label that tells several apart; empty where there is one.
    pub label: &'static str,
    /// A label that is always the same, as node_exporter's name wants it.
    pub constant: Option<(&'static str, &'static str)>,
    /// The kernel's counter has so many bits, and begins anew after the last.
    pub bits: u32,
}

const fn metric(
    source: Source,
    name: &'static str,
    label: &'static str,
    unit: Unit,
    help: &'static str,
) -> Metric {
    Metric { name, help, source, unit, kind: Counter, label, constant: None, bits: 64 }
}

const fn untyped(mut metric: Metric) -> Metric {
    metric.kind = Untyped;
    metric
}

const fn of_32_bits(mut metric: Metric) -> Metric {
    metric.bits = 32;
    metric
}

/// All of them, by source.
#[rustfmt::skip]
pub static METRICS: [Metric; 30] = [
    untyped(metric(Ena, "node_ethtool_bw_in_allowance_exceeded", "device", Count,
        "Packets queued or dropped because inbound bandwidth exceeded the instance's allowance.")),
    untyped(metric(Ena, "node_ethtool_bw_out_allowance_exceeded", "device", Count,
        "Packets queued or dropped because outbound bandwidth exceeded the instance's allowance.")),
    untyped(metric(Ena, "node_ethtool_pps_allowance_exceeded", "device", Count,
        "Packets queued or dropped because packets a second exceeded the instance's allowance.")),
    untyped(metric(Ena, "node_ethtool_conntrack_allowance_exceeded", "device", Count,
        "Packets dropped because the instance tracks as many connections as it may.")),
    untyped(metric(Ena, "node_ethtool_linklocal_allowance_exceeded", "device", Count,
        "Packets dropped because requests to link-local services exceeded the allowance.")),
    Metric { kind: Gauge, ..metric(Ena, "node_ethtool_conntrack_allowance_available", "device", Count,
        "Connections that the instance may track beyond those it does.") },
    metric(Ebs, "underspan_ebs_volume_exceeded_iops_seconds_total", "device", Nanoseconds,
        "Time in which more operations were asked of the volume than it is provisioned for."),
    metric(Ebs, "underspan_ebs_volume_exceeded_throughput_seconds_total", "device", Nanoseconds,
        "Time in which more throughput was asked of the volume than it is provisioned for."),
    metric(Ebs, "underspan_ebs_instance_exceeded_iops_seconds_total", "device", Nanoseconds,
        "Time in which more operations were asked than the instance may have of EBS."),
    metric(Ebs, "underspan_ebs_instance_exceeded_throughput_seconds_total", "device", Nanoseconds,
        "Time in which more throughput was asked than the instance may have of EBS."),
    Metric { constant: Some(("mode", "steal")), ..metric(Cpu, "node_cpu_seconds_total", "cpu", Nanoseconds,
        "Time in which the hypervisor ran something else while this CPU had work (mode steal).") },
    metric(Cgroup, "container_cpu_cfs_periods_total", "id", Count,
        "Periods in which the cgroup's CPU quota was in force."),
    metric(Cgroup, "container_cpu_cfs_throttled_periods_total", "id", Count,
        "Periods in which the cgroup used up its CPU quota."),
    metric(Cgroup, "container_cpu_cfs_throttled_seconds_total", "id", Nanoseconds,
        "Time for which the cgroup's run queues were held back by its CPU quota, summed over CPUs."),
    of_32_bits(metric(Softnet, "node_softnet_processed_total", "cpu", Count,
        "Packets processed.")),
    of_32_bits(metric(Softnet, "node_softnet_dropped_total", "cpu", Count,
        "Packets dropped because the CPU's backlog was full.")),
    of_32_bits(metric(Softnet, "node_softnet_times_squeezed_total", "cpu", Count,
        "Times that the budget or time for packets was used up with packets left.")),
    metric(Pressure, "node_pressure_cpu_waiting_seconds_total", "", Nanoseconds,
        "Time in which some task waited for a CPU."),
    metric(Pressure, "node_pressure_io_waiting_seconds_total", "", Nanoseconds,
        "Time in which some task waited for I/O."),
    metric(Pressure, "node_pressure_io_stalled_seconds_total", "", Nanoseconds,
        "Time in which no task ran because all waited for I/O."),
    metric(Pressure, "node_pressure_memory_waiting_seconds_total", "", Nanoseconds,
        "Time in which some task waited for memory."),
    metric(Pressure, "node_pressure_memory_stalled_seconds_total", "", Nanoseconds,
        "Time in which no task ran because all waited for memory."),
    metric(Pressure, "node_pressure_irq_stalled_seconds_total", "", Nanoseconds,
        "Time in which no task ran because interrupts did."),
    metric(Interface, "node_network_receive_drop_total", "device", Count,
        "Received packets that the interface dropped."),
    metric(Interface, "node_network_transmit_drop_total", "device", Count,
        "Packets to be sent that the interface dropped."),
    metric(Interface, "node_network_receive_errs_total", "device", Count,
        "Packets that were received with an error."),
    metric(Interface, "node_network_transmit_errs_total", "device", Count,
        "Packets that could not be sent because of an error."),
    metric(Interface, "node_network_receive_fifo_total", "device", Count,
        "Packets for which the interface had no room."),
    untyped(metric(Listen, "node_netstat_TcpExt_ListenOverflows", "", Count,
        "Connections that found the accept queue full.")),
    untyped(metric(Listen, "node_netstat_TcpExt_ListenDrops", "", Count,
        "Connections that were not taken for any reason, the accept queue's being full among them.")),
];

/// The one of this name.
pub(super) fn named(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_follow_the_conventions() {
        let names: BTreeSet<_> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
        for metric in &METRICS {
            assert_eq!(metric.name.ends_with("_total"), metric.kind == Counter, "{}", metric.name);
            let is_time = metric.name.contains("_seconds");
            assert_eq!(is_time, metric.unit == Nanoseconds, "{}", metric.name);
            assert!(metric.help.ends_with('.'), "{}", metric.name);
        }
        for source in Source::ALL {
            assert!(METRICS.iter().any(|metric| metric.source == source), "{source:?}");
        }
    }
}
