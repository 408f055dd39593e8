//! Reads all counters, once a round. Slow devices may hold it up: it wants a thread of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::cgroup::{self, Cgroup, Mount};
use super::metric::named;
use super::{Absent, Reading, Round, Source, Status, Subject, ebs, ethtool, parse};

/// More counters than this are not read in one round: a host with thousands of namespaces.
const MAX_READINGS: usize = 20_000;
/// Which driver publishes allowances.
const ENA: &str = "ena";

/// Where the kernel's files are.
#[derive(Clone, Debug)]
struct Places {
    proc: PathBuf,
    sys: PathBuf,
    dev: PathBuf,
}

/// Reads the host's counters.
#[derive(Debug)]
pub struct Reader {
    places: Places,
    /// Nanoseconds in a tick of `/proc/stat`.
    tick_ns: u64,
    last: u64,
    round: Round,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    /// Of this host.
    pub fn new() -> Self {
        let places = Places { proc: "/proc".into(), sys: "/sys".into(), dev: "/dev".into() };
        Self::at(places)
    }

    fn at(places: Places) -> Self {
        let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten();
        let ticks = ticks.and_then(|ticks| u64::try_from(ticks).ok()).filter(|ticks| *ticks > 0);
        let tick_ns = 1_000_000_000 / ticks.unwrap_or(100);
        Reader { places, tick_ns, last: 0, round: Round::default() }
    }

    /// Reads everything now, at the monotonic time `at`, for these watched processes. Whatever cannot
    /// be read is in [`Round::absent`], with the reason.
    pub fn round(&mut self, at: u64, pids: &[u32]) -> Round {
        self.round = Round { since: self.last, at, ..Round::default() };
        self.last = at;
        self.adapters();
        self.volumes();
        self.steal();
        self.cgroups(pids);
        self.softnet();
        self.pressure();
        self.namespaces(pids);
        std::mem::take(&mut self.round)
    }

    fn read(&mut self, name: &str, subject: &Subject, identity: u64, value: u64) {
        // Names are constants of this folder, and tests read each.
        let Some(metric) = named(name) else { return };
        if self.round.readings.len() >= MAX_READINGS {
            self.round.left_out += 1;
            return;
        }
        self.round.readings.push(Reading { metric, subject: subject.clone(), identity, value });
    }

    fn absent(&mut self, source: Source, subject: &Subject, status: Status, note: String) {
        self.round.absent.push(Absent { source, subject: subject.clone(), status, note });
    }

    /// A whole file; its absence and damage become rows.
    fn file<T>(
        &mut self,
        source: Source,
        path: &Path,
        parse: impl FnOnce(&str) -> Result<T, parse::Damaged>,
    ) -> Option<T> {
        let (status, note) = match fs::read_to_string(path) {
            Ok(text) => match parse(&text) {
                Ok(parsed) => return Some(parsed),
                Err(damaged) => (Status::Refused, damaged.to_string()),
            },
            Err(error) => (status_of(&error), format!("{}: {error}", path.display())),
        };
        self.absent(source, &Subject::default(), status, note);
        None
    }

    fn adapters(&mut self) {
        let class = self.places.sys.join("class/net");
        let mut any = false;
        for interface in entries(&class) {
            // Others are software.
            if !class.join(&interface).join("device").exists() {
                continue;
            }
            any = true;
            self.adapter(&interface);
        }
        if !any {
            let note = "no network adapter in this network namespace".to_owned();
            self.absent(Source::Ena, &Subject::default(), Status::Unsupported, note);
        }
    }

    fn adapter(&mut self, interface: &str) {
        let subject = Subject::new(interface);
        let found = match ethtool::driver(interface) {
            Ok(driver) if driver == ENA => ethtool::adapter(interface),
            Ok(driver) => {
                let note = no_allowances(&driver);
                return self.absent(Source::Ena, &subject, Status::Unsupported, note);
            }
            Err(error) => Err(error),
        };
        match found {
            Ok(adapter) => self.allowances(&subject, &adapter),
            // It has gone since it was listed.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
            Err(error) => {
                let note = format!("ethtool: {error}");
                self.absent(Source::Ena, &subject, status_of(&error), note);
            }
        }
    }

    fn allowances(&mut self, subject: &Subject, adapter: &ethtool::Adapter) {
        let identity = self.ifindex(&subject.name);
        let ours = super::METRICS.iter().filter(|metric| metric.source == Source::Ena);
        for metric in ours {
            let Some(name) = metric.name.strip_prefix("node_ethtool_") else { continue };
            match adapter.counters.iter().find(|(own, _)| own == name) {
                Some((_, value)) => self.read(metric.name, subject, identity, *value),
                None => {
                    let note = format!("this version of the ena driver has no {name}");
                    self.absent(Source::Ena, subject, Status::Unsupported, note);
                }
            }
        }
    }

    fn volumes(&mut self) {
        let class = self.places.sys.join("class/nvme");
        let mut any = false;
        for controller in entries(&class) {
            let model = fs::read_to_string(class.join(&controller).join("model"));
            if !model.is_ok_and(|model| model.trim_start().starts_with(ebs::MODEL)) {
                continue;
            }
            any = true;
            self.volume(&controller);
        }
        if !any {
            let note = "no EBS volume is attached".to_owned();
            self.absent(Source::Ebs, &Subject::default(), Status::Unsupported, note);
        }
    }

    fn volume(&mut self, controller: &str) {
        let subject = Subject::new(controller);
        let path = self.places.dev.join(controller);
        let (status, note) = match ebs::read(&path) {
            Ok(page) => match ebs::exceeded(&page) {
                Ok(exceeded) => return self.exceeded(&subject, &exceeded),
                Err(not @ ebs::NotEbs::Magic(_)) => (Status::Unsupported, not.to_string()),
                Err(damaged) => (Status::Refused, damaged.to_string()),
            },
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                let note = "reading its statistics needs CAP_SYS_ADMIN: run with --keep-root";
                (Status::Refused, note.to_owned())
            }
            Err(error) => (Status::Refused, format!("{}: {error}", path.display())),
        };
        self.absent(Source::Ebs, &subject, status, note);
    }

    fn exceeded(&mut self, subject: &Subject, exceeded: &ebs::Exceeded) {
        for (name, value) in [
            ("underspan_ebs_volume_exceeded_iops_seconds_total", exceeded.volume_iops),
            ("underspan_ebs_volume_exceeded_throughput_seconds_total", exceeded.volume_throughput),
            ("underspan_ebs_instance_exceeded_iops_seconds_total", exceeded.instance_iops),
            (
                "underspan_ebs_instance_exceeded_throughput_seconds_total",
                exceeded.instance_throughput,
            ),
        ] {
            self.read(name, subject, 0, value);
        }
    }

    fn steal(&mut self) {
        let path = self.places.proc.join("stat");
        let Some(cpus) = self.file(Source::Cpu, &path, parse::steal) else { return };
        for (cpu, ticks) in cpus {
            let value = ticks.saturating_mul(self.tick_ns);
            self.read("node_cpu_seconds_total", &Subject::new(&cpu.to_string()), 0, value);
        }
    }

    fn cgroups(&mut self, pids: &[u32]) {
        let mountinfo = self.places.proc.join("self/mountinfo");
        let mounts = fs::read_to_string(mountinfo).map(|text| cgroup::mounts(&text));
        let mounts: Vec<Mount> = mounts.unwrap_or_default();
        let mut cgroups = BTreeSet::new();
        for pid in pids {
            let path = self.places.proc.join(pid.to_string()).join("cgroup");
            // It may be gone.
            let Ok(text) = fs::read_to_string(path) else { continue };
            cgroups.extend(cgroup::above(&text, &mounts));
        }
        let mut any = false;
        for cgroup in &cgroups {
            any |= self.quota(cgroup);
        }
        if !any {
            let note = "no watched process is in a cgroup that could have a CPU quota".to_owned();
            self.absent(Source::Cgroup, &Subject::default(), Status::Unsupported, note);
        }
    }

    /// Whether it can have a quota.
    fn quota(&mut self, cgroup: &Cgroup) -> bool {
        let subject = Subject::new(&cgroup.path);
        // Tells it from one that is made under the same name later.
        let identity = fs::metadata(&cgroup.directory).map_or(0, |directory| directory.ino());
        let path = cgroup.directory.join("cpu.stat");
        let note = match fs::read_to_string(&path) {
            Ok(text) => match parse::quota(&text) {
                Ok(Some(quota)) => {
                    for (name, value) in [
                        ("container_cpu_cfs_periods_total", quota.periods),
                        ("container_cpu_cfs_throttled_periods_total", quota.throttled_periods),
                        ("container_cpu_cfs_throttled_seconds_total", quota.throttled_ns),
                    ] {
                        self.read(name, &subject, identity, value);
                    }
                    return true;
                }
                Ok(None) => return false,
                Err(damaged) => damaged.to_string(),
            },
            // It was removed since it was named.
            Err(error) if is_gone(&error) => return false,
            Err(error) => format!("{}: {error}", path.display()),
        };
        self.absent(Source::Cgroup, &subject, Status::Refused, note);
        true
    }

    fn softnet(&mut self) {
        let path = self.places.proc.join("net/softnet_stat");
        let Some(cpus) = self.file(Source::Softnet, &path, parse::softnet) else { return };
        for cpu in cpus {
            let subject = Subject::new(&cpu.cpu.to_string());
            self.read("node_softnet_processed_total", &subject, 0, cpu.processed.into());
            self.read("node_softnet_dropped_total", &subject, 0, cpu.dropped.into());
            self.read("node_softnet_times_squeezed_total", &subject, 0, cpu.squeezed.into());
        }
    }

    fn pressure(&mut self) {
        let host = Subject::default();
        let files = [
            ("cpu", "node_pressure_cpu_waiting_seconds_total", ""),
            (
                "io",
                "node_pressure_io_waiting_seconds_total",
                "node_pressure_io_stalled_seconds_total",
            ),
            (
                "memory",
                "node_pressure_memory_waiting_seconds_total",
                "node_pressure_memory_stalled_seconds_total",
            ),
            ("irq", "", "node_pressure_irq_stalled_seconds_total"),
        ];
        for (file, some, full) in files {
            let path = self.places.proc.join("pressure").join(file);
            let Some(pressure) = self.file(Source::Pressure, &path, parse::pressure) else {
                continue;
            };
            for (name, total) in [(some, pressure.some), (full, pressure.full)] {
                if let Some(us) = total.filter(|_| !name.is_empty()) {
                    self.read(name, &host, 0, us.saturating_mul(1_000));
                }
            }
        }
    }

    /// Interfaces and listeners, in each network namespace with a watched process and in our own.
    fn namespaces(&mut self, pids: &[u32]) {
        let own = self.netns("self");
        let mut namespaces: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        namespaces.insert(0, vec!["self".to_owned()]);
        for pid in pids {
            match self.netns(&pid.to_string()) {
                Ok(netns) if own.as_ref().is_ok_and(|own| *own == netns) => {}
                Ok(netns) => namespaces.entry(netns).or_default().push(pid.to_string()),
                Err(error) if is_gone(&error) => {}
                Err(error) => {
                    let note = format!("the network namespace of {pid} cannot be told: {error}");
                    self.absent(Source::Interface, &Subject::default(), Status::Refused, note);
                }
            }
        }
        for (netns, processes) in namespaces {
            // Any of them will do; the first may just be ending.
            for process in processes {
                if self.namespace(netns, &process) {
                    break;
                }
            }
        }
    }

    /// Reads one, by way of one of its processes. `false`: that one is gone.
    fn namespace(&mut self, netns: u64, process: &str) -> bool {
        let net = self.places.proc.join(process).join("net");
        let before = self.round.readings.len();
        let mut read = Vec::new();
        for (source, file) in [(Source::Interface, "dev"), (Source::Listen, "netstat")] {
            match fs::read_to_string(net.join(file)) {
                Ok(text) => read.push((source, text)),
                Err(error) if netns != 0 && is_gone(&error) => return false,
                Err(error) => {
                    let subject = Subject { netns, ..Subject::default() };
                    let note = format!("{}: {error}", net.join(file).display());
                    self.absent(source, &subject, status_of(&error), note);
                }
            }
        }
        for (source, text) in read {
            let damaged = match source {
                Source::Interface => self.interfaces(netns, &text).err(),
                _ => self.listeners(netns, &text).err(),
            };
            if let Some(damaged) = damaged {
                let subject = Subject { netns, ..Subject::default() };
                self.absent(source, &subject, Status::Refused, damaged.to_string());
            }
        }
        // A pid that ended meanwhile may be another process's now, in another namespace.
        if netns != 0 && self.netns(process).ok() != Some(netns) {
            self.round.readings.truncate(before);
            return false;
        }
        true
    }

    fn interfaces(&mut self, netns: u64, text: &str) -> Result<(), parse::Damaged> {
        for interface in parse::interfaces(text)? {
            // In another namespace a number can be of another interface.
            let identity = if netns == 0 { self.ifindex(&interface.name) } else { 0 };
            let subject = Subject { name: interface.name.as_str().into(), netns };
            for (name, value) in [
                ("node_network_receive_drop_total", interface.receive_drop),
                ("node_network_transmit_drop_total", interface.transmit_drop),
                ("node_network_receive_errs_total", interface.receive_errs),
                ("node_network_transmit_errs_total", interface.transmit_errs),
                ("node_network_receive_fifo_total", interface.receive_fifo),
            ] {
                self.read(name, &subject, identity, value);
            }
        }
        Ok(())
    }

    fn listeners(&mut self, netns: u64, text: &str) -> Result<(), parse::Damaged> {
        let listen = parse::listen(text)?;
        let subject = Subject { netns, ..Subject::default() };
        self.read("node_netstat_TcpExt_ListenOverflows", &subject, 0, listen.overflows);
        self.read("node_netstat_TcpExt_ListenDrops", &subject, 0, listen.drops);
        Ok(())
    }

    /// An interface's number in our namespace: its name can be given again, that cannot.
    fn ifindex(&self, interface: &str) -> u64 {
        let path = self.places.sys.join("class/net").join(interface).join("ifindex");
        fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// A process's network namespace, by its inode.
    fn netns(&self, process: &str) -> io::Result<u64> {
        let link = fs::read_link(self.places.proc.join(process).join("ns/net"))?;
        let link = link.to_string_lossy();
        let inode = link.strip_prefix("net:[").and_then(|rest| rest.strip_suffix(']'));
        let inode = inode.and_then(|inode| inode.parse().ok());
        inode.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "it is not net:[number]"))
    }
}

/// Names in a directory, sorted; none if it is not there.
fn entries(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn no_allowances(driver: &str) -> String {
    match driver {
        "gve" => "Google's gve driver publishes no allowances".to_owned(),
        "hv_netvsc" | "mana" => format!("Azure's {driver} driver publishes no allowances"),
        other => format!("driver {other}: only AWS's ena publishes allowances"),
    }
}

/// A process or cgroup that ended.
fn is_gone(error: &io::Error) -> bool {
    let gone = [libc::ENOENT, libc::ESRCH, libc::ENODEV];
    error.raw_os_error().is_some_and(|code| gone.contains(&code))
}

/// The kernel does not have it, or does not hand it out.
fn status_of(error: &io::Error) -> Status {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENOSYS) => Status::Unsupported,
        _ => Status::Refused,
    }
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
