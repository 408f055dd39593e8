//! `underspan netstack`: how long received packets sit in the kernel, stage by stage, live. It needs
//! neither store nor server.

mod render;
mod view;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use underspan_trackers::netstack::{Error, Netstack, Options, Scope};

use crate::failure::Failure;
use crate::interval::interval;
use crate::signals::Signals;
use crate::{Global, output};
use view::{Grouping, View};

/// Programs are told of a step of the wall clock so often.
const REFRESH: Duration = Duration::from_millis(100);

/// Options of `underspan netstack`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Length of an interval
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    #[arg(help_heading = "Output")]
    interval: Duration,
    /// End after so many intervals
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(help_heading = "Output")]
    count: Option<u32>,
    /// Only sockets that this process reads; may be given several times
    #[arg(long = "pid", value_name = "PID")]
    #[arg(help_heading = "Which packets")]
    pids: Vec<u32>,
    /// Only packets that came in by this interface; may be given several times
    #[arg(long = "interface", short = 'i', value_name = "NAME")]
    #[arg(help_heading = "Which packets")]
    interfaces: Vec<String>,
    /// Look at this network namespace: a name that `ip netns` lists, a file such as
    /// /proc/PID/ns/net, or `all`; may be given several times [default: the own one]
    #[arg(long, value_name = "NAME")]
    #[arg(help_heading = "Which packets")]
    netns: Vec<PathBuf>,
    /// Only sockets of this cgroup and those below it: its path, or a container's name or id; may be
    /// given several times
    #[arg(long = "cgroup", value_name = "NAME")]
    #[arg(help_heading = "Which packets")]
    cgroups: Vec<String>,
    /// Only sockets with at least so many packets waiting to be read
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(help_heading = "Which packets")]
    min_queue: u32,
    /// A histogram for each interface, cgroup or address family; may be given several times
    #[arg(long, value_name = "WHAT", value_enum)]
    #[arg(help_heading = "Output")]
    by: Vec<Grouping>,
    /// One line for each stage, without bars
    #[arg(long)]
    #[arg(help_heading = "Output")]
    summary: bool,
    /// Every bucket, four to the octave, instead of one bar for each octave
    #[arg(long, conflicts_with = "summary")]
    #[arg(help_heading = "Output")]
    fine: bool,
}

impl Args {
    fn options(&self) -> Options {
        Options {
            scope: Scope::named(&self.netns),
            pids: self.pids.clone(),
            interfaces: self.interfaces.clone(),
            cgroups: self.cgroups.clone(),
            min_queue: self.min_queue,
            by_interface: self.by.contains(&Grouping::Interface),
            by_cgroup: self.by.contains(&Grouping::Cgroup),
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    crate::watch::log_to_stderr();
    for pid in &args.pids {
        if !std::path::Path::new(&format!("/proc/{pid}")).exists() {
            return Err(Failure::new(format!("there is no process {pid}")).into());
        }
    }
    let netstack = Netstack::open(args.options()).map_err(hinted)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(watch(&args, global, netstack))
}

fn hinted(error: Error) -> anyhow::Error {
    match error {
        Error::Session(session) => session.into(),
        other => Failure::new(other.to_string())
            .hint("underspan netstack --help tells what can be given")
            .into(),
    }
}

async fn watch(args: &Args, global: &Global, mut netstack: Netstack) -> anyhow::Result<ExitCode> {
    let signals = Signals::take()?;
    if !global.json {
        output::print(render::heading(&netstack, args).as_bytes())?;
    }
    let mut view = View::new(&mut netstack, &args.by)?;
    let mut next = Instant::now();
    let mut done = 0;
    loop {
        next += args.interval;
        while Instant::now() < next {
            let pause = next.saturating_duration_since(Instant::now()).min(REFRESH);
            tokio::select! {
                _ = signals.next() => return Ok(ExitCode::SUCCESS),
                () = tokio::time::sleep(pause) => netstack.refresh()?,
            }
        }
        let interval = view.interval(&mut netstack)?;
        if global.json {
            let mut line = serde_json::to_vec(&interval)?;
            line.push(b'\n');
            output::print(&line)?;
        } else {
            output::print(render::interval(&interval, args).as_bytes())?;
        }
        done += 1;
        if args.count == Some(done) {
            return Ok(ExitCode::SUCCESS);
        }
    }
}
