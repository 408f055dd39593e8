//! The reader on trees of files that are damaged, refused or gone, and on this host.

use std::os::unix::fs::symlink;
use std::process::Command;

use super::*;

/// A host made of files.
struct Host(tempfile::TempDir);

impl Host {
    fn new() -> Self {
        let host = Host(tempfile::tempdir().unwrap());
        host.write("proc/stat", "cpu0 1 2 3 4 5 6 7 8 0 0\n");
        host.write("proc/net/softnet_stat", "1 2 3 0 0 0 0 0 0 0 0 0 0 0 0\n");
        for file in ["cpu", "io", "memory", "irq"] {
            host.write(&format!("proc/pressure/{file}"), "some total=1\nfull total=2\n");
        }
        host.process("self", 1);
        host
    }

    fn process(&self, pid: &str, netns: u64) {
        let heading = "Inter-|\n face |\n";
        let numbers = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16";
        self.write(&format!("proc/{pid}/net/dev"), &format!("{heading}  eth0: {numbers}\n"));
        let netstat = "TcpExt: ListenOverflows ListenDrops\nTcpExt: 3 4\n";
        self.write(&format!("proc/{pid}/net/netstat"), netstat);
        let links = self.0.path().join(format!("proc/{pid}/ns"));
        fs::create_dir_all(&links).unwrap();
        let _ = fs::remove_file(links.join("net"));
        symlink(format!("net:[{netns}]"), links.join("net")).unwrap();
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, path: &str) {
        let path = self.0.path().join(path);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap()
        } else {
            fs::remove_file(path).unwrap()
        }
    }

    fn reader(&self) -> Reader {
        let at = |name| self.0.path().join(name);
        Reader::at(Places { proc: at("proc"), sys: at("sys"), dev: at("dev") })
    }
}

fn value(round: &Round, name: &str, subject: &str, netns: u64) -> Option<u64> {
    let wanted = Subject { name: subject.into(), netns };
    let mut readings = round.readings.iter();
    readings.find(|r| r.metric.name == name && r.subject == wanted).map(|reading| reading.value)
}

fn absences(round: &Round, source: Source) -> Vec<(Status, &str)> {
    let of = round.absent.iter().filter(|absent| absent.source == source);
    of.map(|absent| (absent.status, absent.note.as_str())).collect()
}

#[test]
fn every_source_is_read_or_said_to_be_absent() {
    let host = Host::new();
    let round = host.reader().round(5, &[]);
    assert_eq!(value(&round, "node_cpu_seconds_total", "0", 0), Some(8 * 10_000_000));
    assert_eq!(value(&round, "node_softnet_dropped_total", "0", 0), Some(2));
    assert_eq!(value(&round, "node_pressure_io_stalled_seconds_total", "", 0), Some(2_000));
    assert_eq!(value(&round, "node_network_receive_drop_total", "eth0", 0), Some(4));
    assert_eq!(value(&round, "node_netstat_TcpExt_ListenOverflows", "", 0), Some(3));
    for source in [Source::Ena, Source::Ebs, Source::Cgroup] {
        let absences = absences(&round, source);
        assert_eq!(absences.len(), 1, "{source:?}");
        assert_eq!(absences[0].0, Status::Unsupported, "{source:?}");
    }
    assert_eq!((round.since, round.at, round.left_out), (0, 5, 0));
}

#[test]
fn damaged_and_missing_files_give_no_number_and_a_reason() {
    let host = Host::new();
    host.write("proc/net/softnet_stat", "1 2 nonsense\n");
    host.write("proc/self/net/dev", "Inter-|\n face |\n eth0: 1 2 3\n");
    host.remove("proc/pressure");
    let round = host.reader().round(1, &[]);
    let softnet = absences(&round, Source::Softnet);
    assert_eq!(softnet, [(Status::Refused, "softnet_stat, line 1: not a hexadecimal number")]);
    let interface = absences(&round, Source::Interface);
    assert_eq!(interface, [(Status::Refused, "net/dev, line 3: not sixteen numbers")]);
    let pressure = absences(&round, Source::Pressure);
    assert_eq!(pressure.len(), 4);
    assert!(pressure.iter().all(|(status, _)| *status == Status::Unsupported));
    let left: Vec<_> = round.readings.iter().map(|reading| reading.metric.source).collect();
    for source in [Source::Softnet, Source::Interface, Source::Pressure] {
        assert!(!left.contains(&source), "{source:?}");
    }
    // The others are read all the same.
    assert_eq!(value(&round, "node_netstat_TcpExt_ListenDrops", "", 0), Some(4));
}

#[test]
fn namespaces_are_read_once_each_and_end_with_their_processes() {
    let host = Host::new();
    host.process("70", 1);
    host.process("71", 9);
    host.process("72", 9);
    host.remove("proc/71/net");
    let mut reader = host.reader();
    let round = reader.round(1, &[70, 71, 72, 73]);
    // 71 was ending: 72 is in the same namespace. 73 is gone. 70 is in ours.
    assert_eq!(value(&round, "node_network_receive_drop_total", "eth0", 9), Some(4));
    let drops = |round: &Round| {
        let name = "node_network_receive_drop_total";
        round.readings.iter().filter(|reading| reading.metric.name == name).count()
    };
    assert_eq!(drops(&round), 2);
    host.remove("proc/72");
    assert_eq!(drops(&reader.round(2, &[70, 71, 72, 73])), 1);
}

#[test]
fn a_cgroup_is_read_in_either_version_until_it_is_gone() {
    let host = Host::new();
    let root = host.0.path().display().to_string();
    let mountinfo = format!(
        "1 0 0:1 / {root}/v1 rw - cgroup cgroup rw,cpu\n2 0 0:2 / {root}/v2 rw - cgroup2 none rw\n"
    );
    host.write("proc/self/mountinfo", &mountinfo);
    host.process("70", 1);
    host.write("proc/70/cgroup", "2:cpu:/a/b\n0::/c\n");
    host.write("v1/a/cpu.stat", "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n");
    host.write("v1/a/b/cpu.stat", "nr_periods 9\nnr_throttled 4\nthrottled_time 77\n");
    host.write("v2/c/cpu.stat", "usage_usec 1\nnr_periods 9\nnr_throttled 5\nthrottled_usec 6\n");
    let mut reader = host.reader();
    let round = reader.round(1, &[70]);
    let throttled = "container_cpu_cfs_throttled_seconds_total";
    assert_eq!(value(&round, throttled, "/a", 0), Some(0));
    assert_eq!(value(&round, throttled, "/a/b", 0), Some(77));
    assert_eq!(value(&round, throttled, "/c", 0), Some(6_000));
    assert!(absences(&round, Source::Cgroup).is_empty());

    host.remove("v1/a/b");
    host.write("v2/c/cpu.stat", "nr_periods many\n");
    let round = reader.round(2, &[70]);
    assert_eq!(value(&round, throttled, "/a/b", 0), None);
    let absences = absences(&round, Source::Cgroup);
    assert_eq!(absences, [(Status::Refused, "cpu.stat, line 1: not a number")]);
}

#[test]
fn a_volume_that_refuses_is_not_a_volume_that_was_never_throttled() {
    let host = Host::new();
    host.write("sys/class/nvme/nvme0/model", "Amazon Elastic Block Store              \n");
    host.write("sys/class/nvme/nvme1/model", "Amazon EC2 NVMe Instance Storage\n");
    host.write("dev/nvme0", "");
    let round = host.reader().round(1, &[]);
    let absences = absences(&round, Source::Ebs);
    assert_eq!(absences.len(), 1, "the instance's own disk is not asked");
    assert_eq!(absences[0].0, Status::Refused);
    assert!(absences[0].1.contains("nvme0"), "{absences:?}");
}

#[test]
fn adapters_of_every_cloud_are_told_apart() {
    let host = Host::new();
    let reader = &mut host.reader();
    let counters = [("bw_in_allowance_exceeded", 0), ("pps_allowance_exceeded", 7)];
    let counters = counters.map(|(name, value)| (name.to_owned(), value)).to_vec();
    let adapter = ethtool::Adapter { driver: ENA.to_owned(), counters };
    reader.allowances(&Subject::new("eth0"), &adapter);
    let round = std::mem::take(&mut reader.round);
    // Zero is a number; what an old driver lacks is not.
    assert_eq!(value(&round, "node_ethtool_bw_in_allowance_exceeded", "eth0", 0), Some(0));
    assert_eq!(value(&round, "node_ethtool_pps_allowance_exceeded", "eth0", 0), Some(7));
    let missing = absences(&round, Source::Ena);
    assert_eq!(missing.len(), 4);
    assert!(missing.iter().all(|(status, _)| *status == Status::Unsupported));
    assert!(missing.iter().any(|(_, note)| note.ends_with("conntrack_allowance_available")));

    assert!(no_allowances("gve").contains("Google"));
    assert!(no_allowances("hv_netvsc").contains("Azure"));
    assert!(no_allowances("mana").contains("Azure"));
    assert!(no_allowances("virtio_net").contains("virtio_net"));
}

#[test]
fn an_interface_that_does_not_know_ethtool_is_refused_by_name() {
    // It is in the files and not in the kernel.
    let host = Host::new();
    host.write("sys/class/net/no-such-if0/device/vendor", "0x1d0f");
    let round = host.reader().round(1, &[]);
    assert!(absences(&round, Source::Ena).is_empty(), "gone since it was listed: {round:?}");
    // lo is in the kernel and has no driver.
    host.write("sys/class/net/lo/device/vendor", "0x1d0f");
    let round = host.reader().round(2, &[]);
    let absences = absences(&round, Source::Ena);
    assert_eq!(absences.len(), 1);
    assert!(absences[0].1.starts_with("ethtool: "), "{absences:?}");
}

#[test]
fn this_host_is_read_as_its_files_say() {
    let mut reader = Reader::new();
    let round = reader.round(1, &[std::process::id()]);
    for source in [Source::Cpu, Source::Softnet, Source::Interface, Source::Listen] {
        assert!(round.readings.iter().any(|r| r.metric.source == source), "{source:?}: {round:?}");
    }
    let softnet = fs::read_to_string("/proc/net/softnet_stat").unwrap();
    let processed = u64::from_str_radix(softnet.split(' ').next().unwrap(), 16).unwrap();
    let read = value(&round, "node_softnet_processed_total", "0", 0).unwrap();
    assert!(processed >= read && processed - read < 100_000, "{read}, then {processed}");
    for absent in &round.absent {
        assert!(!absent.note.is_empty());
        assert_ne!(absent.status, Status::Read);
    }
}

/// A pair of virtual interfaces; the second knows the first's number, and so does its driver.
struct Veth(String);

impl Veth {
    fn new() -> Self {
        let name = format!("us{}", std::process::id() % 100_000_000);
        let made = ip(&["link", "add", &name, "type", "veth", "peer", "name", &format!("{name}p")]);
        assert!(made, "this test needs root, and veth");
        Veth(name)
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        ip(&["link", "del", &self.0]);
    }
}

fn ip(arguments: &[&str]) -> bool {
    Command::new("ip").args(arguments).status().is_ok_and(|status| status.success())
}

#[test]
fn a_real_drivers_counters_are_read_by_name() {
    let veth = Veth::new();
    let adapter = ethtool::adapter(&veth.0).unwrap();
    assert_eq!(adapter.driver, "veth");
    let peer = fs::read_to_string(format!("/sys/class/net/{}p/ifindex", veth.0)).unwrap();
    let counter = adapter.counters.iter().find(|(name, _)| name == "peer_ifindex");
    assert_eq!(counter.map(|(_, value)| value.to_string()).as_deref(), Some(peer.trim()));
    drop(veth);
}
