//! What `agent`, `up` and `run` share: options, and what is said on standard error.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use underspan_agent::{
    Budget, CgroupPath, Metrics, Options, Selection, SpoolOptions, comm_pattern,
};
use underspan_store::embedded::default_folder;
use underspan_trackers::netstack;

use crate::failure::{Failure, USAGE};
use crate::interval::duration;
use crate::{Global, output};

/// 16 TiB: more bytes than anybody has, and far fewer than can be counted.
const MIB_MAX: u64 = 1 << 24;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What to watch.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "What to watch")]
pub(crate) struct SelectArgs {
    /// Watch this process (and those it forks); may be given again
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Vec<u32>,
    /// Watch processes of this name, exact or glob; may be given again
    #[arg(long, value_name = "NAME")]
    pub(crate) comm: Vec<String>,
    /// Watch processes in this cgroup or below; may be given again
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup: Vec<String>,
}

impl SelectArgs {
    /// Checks and converts the options.
    pub(crate) fn selection(&self) -> anyhow::Result<Selection> {
        for pid in &self.pid {
            if !Path::new(&format!("/proc/{pid}")).exists() {
                anyhow::bail!("--pid {pid}: there is no such process");
            }
        }
        let usage = |error: underspan_agent::Error| Failure::new(error.to_string()).status(USAGE);
        let comms = self.comm.iter().map(|comm| comm_pattern(comm)).collect::<Result<_, _>>();
        let comms = comms.map_err(usage)?;
        let mut cgroups = Vec::new();
        for path in &self.cgroup {
            let cgroup = CgroupPath::parse(path).map_err(usage)?;
            if !cgroup.exists() {
                return Err(Failure::new(format!(
                    "--cgroup {path}: there is no cgroup of that path"
                ))
                .hint(
                    "`cat /proc/PID/cgroup` says where a process is; `systemd-cgls` lists them all",
                )
                .into());
            }
            cgroups.push(cgroup);
        }
        Ok(Selection { pids: self.pid.clone(), comms, cgroups, ..Selection::default() })
    }
}

/// How to watch.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "What to record")]
pub(crate) struct AgentArgs {
    /// Waits at least this long get a row of their own
    #[arg(long, value_name = "DURATION", default_value = "1ms")]
    #[arg(value_parser = wait_threshold)]
    pub(crate) wait_threshold: Duration,
    /// Waiting time per sample of where threads wait, but for requests: of that, ten times as much. Every
    /// wait this long has its stack; 0s takes none
    #[arg(long, value_name = "DURATION", default_value = "10ms", value_parser = off_cpu_period)]
    pub(crate) off_cpu_period: Duration,
    /// See where a wait stands that has gone on for this long; 0s never does
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    #[arg(value_parser = duration)]
    pub(crate) ongoing_threshold: Duration,
    /// Samples of running threads, per second and CPU; 0 takes none
    #[arg(long, value_name = "HZ", default_value_t = underspan_trackers::ON_CPU_HZ)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub(crate) on_cpu_hz: u32,
    /// Looks at the goroutines of each Go service, per second; 0 takes none
    #[arg(long, value_name = "HZ", default_value_t = underspan_trackers::goroutine::HZ)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) goroutine_hz: u32,
    /// Time received packets at the points of the kernel's receive stack (see `underspan netstack`)
    #[arg(long)]
    pub(crate) netstack: bool,
    /// With --netstack: a row for each interface or cgroup; may be given again
    #[arg(long, value_name = "WHAT", requires = "netstack")]
    pub(crate) netstack_by: Vec<PacketsBy>,
    /// With --netstack: look at this network namespace: a name that `ip netns` lists, a file such as
    /// /proc/PID/ns/net, or `all`; may be given again [default: the own one]
    #[arg(long, value_name = "NAME", requires = "netstack")]
    pub(crate) netstack_netns: Vec<PathBuf>,
    /// Measure the run time of the BPF programs (some 20 ns a run)
    #[arg(long)]
    pub(crate) measure_bpf: bool,
    /// CPU the agent may use before it leaves out rows of waits below 50 ms, in % of one CPU
    #[arg(long, value_name = "PERCENT", default_value_t = 20.0, value_parser = max_cpu)]
    #[arg(help_heading = "Limits")]
    pub(crate) max_cpu: f64,
    /// Memory the agent may use before it leaves out the same, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=MIB_MAX))]
    #[arg(help_heading = "Limits")]
    pub(crate) max_memory: u64,
    /// Where rows wait while the store is away [default: spool/ in the data folder]
    #[arg(long, value_name = "DIR")]
    #[arg(help_heading = "Limits")]
    pub(crate) spool: Option<PathBuf>,
    /// How much may wait in --spool, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=MIB_MAX))]
    #[arg(help_heading = "Limits")]
    pub(crate) spool_size: u64,
    /// Tell Prometheus at http://HOST:PORT/metrics; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT")]
    #[arg(help_heading = "Addresses")]
    pub(crate) metrics: Option<SocketAddr>,
}

/// What packets are told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PacketsBy {
    /// The interface they came in by.
    Interface,
    /// The cgroup of the socket they are for.
    Cgroup,
}

impl AgentArgs {
    /// The agent's options for a selection.
    pub(crate) fn options(
        &self,
        selection: Selection,
        metrics: Option<Metrics>,
    ) -> anyhow::Result<Options> {
        Ok(Options {
            host: host_name()?,
            selection,
            wait_threshold: self.wait_threshold,
            off_cpu_period: self.off_cpu_period,
            ongoing_threshold: self.ongoing_threshold,
            on_cpu_hz: self.on_cpu_hz,
            goroutine_hz: self.goroutine_hz,
            measure_bpf: self.measure_bpf,
            netstack: self.netstack.then(|| netstack::Options {
                scope: netstack::Scope::named(&self.netstack_netns),
                by_interface: self.netstack_by.contains(&PacketsBy::Interface),
                by_cgroup: self.netstack_by.contains(&PacketsBy::Cgroup),
                ..netstack::Options::default()
            }),
            budget: Budget { cpu_share: self.max_cpu / 100.0, rss_bytes: self.max_memory << 20 },
            metrics,
        })
    }

    /// The folder of the spool.
    pub(crate) fn spool(&self, global: &Global) -> PathBuf {
        self.spool.clone().unwrap_or_else(|| data_folder(global).join("spool"))
    }

    /// The folder of the spool, and others to take while another agent has it.
    pub(crate) fn spools(&self, global: &Global) -> Vec<PathBuf> {
        let first = self.spool(global);
        if self.spool.is_some() {
            return vec![first];
        }
        let others = (2..=8).map(|n| data_folder(global).join(format!("spool-{n}")));
        std::iter::once(first.clone()).chain(others).collect()
    }

    /// The spool's limits. Rows older than what the tables keep would vanish when they are inserted.
    pub(crate) fn spool_options(&self, tables: &TableArgs) -> SpoolOptions {
        SpoolOptions { max_bytes: self.spool_size << 20, max_age: Some(DAY * tables.ttl) }
    }
}

/// How the store's tables are made.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Tables")]
pub(crate) struct TableArgs {
    /// Drop rows after this many days
    #[arg(long, value_name = "DAYS", default_value_t = 7)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ttl: u32,
    /// Make the tables on this cluster of a ClickHouse server
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
}

/// From 0, where every wait has a row, to what is longer than waits are.
fn wait_threshold(text: &str) -> Result<Duration, String> {
    let threshold = duration(text)?;
    let allowed = Duration::ZERO..=Duration::from_secs(3600);
    let refusal = || "choose 0s to 1h".to_owned();
    allowed.contains(&threshold).then_some(threshold).ok_or_else(refusal)
}

/// With none at all every wait would be left out, always.
fn max_cpu(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| (0.1..=100_000.0).contains(percent));
    percent.ok_or_else(|| "give percents of one CPU, 0.1 to 100000".to_owned())
}

/// A period between samples: none, or what the programs can count.
fn off_cpu_period(text: &str) -> anyhow::Result<Duration> {
    let period = duration(text).map_err(anyhow::Error::msg)?;
    let allowed = Duration::from_micros(100)..=Duration::from_secs(1);
    anyhow::ensure!(period.is_zero() || allowed.contains(&period), "choose 0s, or 100us to 1s");
    Ok(period)
}

/// This host's name, as rows have it.
pub(crate) fn host_name() -> anyhow::Result<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    Ok(name.trim().to_owned())
}

/// Says what is being waited for, on standard error.
pub(crate) fn progress(text: &str) {
    output::tell(&format!("underspan: {text}\n"));
}

/// Warnings and errors go to standard error, or what RUST_LOG asks for.
pub(crate) fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    // An error means that there is a subscriber already.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .with_target(false)
        // It would tell of a failed write on standard error, and panic where that is what failed.
        .log_internal_errors(false)
        .try_init();
}

/// The folder of the embedded store, and of the spool.
pub(crate) fn data_folder(global: &Global) -> PathBuf {
    global.data.clone().unwrap_or_else(default_folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_leave_nothing_to_see_are_refused() {
        assert_eq!(max_cpu("0.5"), Ok(0.5));
        for text in ["0", "-1", "nan", "inf", "1e9", "x"] {
            assert!(max_cpu(text).unwrap_err().contains("0.1 to 100000"), "{text}");
        }
        assert_eq!(wait_threshold("0ms"), Ok(Duration::ZERO));
        assert!(wait_threshold("99d").unwrap_err().contains("0s to 1h"));
    }
}
