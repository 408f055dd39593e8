//! `underspan doctor`: what can be seen here, tracker by tracker, and why not.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde::Serialize;
use underspan_agent::{Agent, Budget, Options, Python, Watched};
use underspan_explain::words;
use underspan_trackers::netstack::{self, Netstack, NetstackTracker};
use underspan_trackers::throttle::{Reader, Source};
use underspan_trackers::{ALL, Hook, HookStatus, Tracker as _};

use crate::watch::{SelectArgs, host_name};
use crate::{Global, output};

/// Options of `underspan doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    select: SelectArgs,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    /// The kernel's release.
    kernel: String,
    /// Why nothing can be seen, if so.
    error: Option<String>,
    trackers: Vec<TrackerReport>,
    processes: Vec<ProcessReport>,
}

#[derive(Debug, Serialize)]
struct TrackerReport {
    name: &'static str,
    question: &'static str,
    /// Whether everything it must hear of can be heard of.
    runs: bool,
    hooks: Vec<HookReport>,
}

#[derive(Debug, Serialize)]
struct HookReport {
    what: &'static str,
    /// The way that was taken, or null.
    attached: Option<String>,
    /// The ways that were tried before and why each failed.
    failed: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ProcessReport {
    pid: u32,
    process: String,
    /// Why it is watched.
    why: String,
    /// Python's version, or why it is not read; empty for a process without.
    python: String,
    /// How its waits for the GIL are seen, or why not.
    gil: String,
    /// `read`, or why its Python stacks are not.
    stacks: String,
    /// Its Go and how many goroutines there are, or why they are not read; empty for others.
    go: String,
    /// `usdt`, `symbol`, `watchpoint` or `none`.
    gc_rung: &'static str,
    /// Why no better rung.
    gc_notes: Vec<String>,
}

/// Runs the command. Its status is 1 if some tracker cannot run.
pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    crate::watch::log_to_stderr();
    let options = Options {
        host: host_name()?,
        selection: args.select.selection()?,
        wait_threshold: std::time::Duration::from_secs(3600),
        off_cpu_period: underspan_trackers::OFF_CPU_PERIOD,
        ongoing_threshold: std::time::Duration::ZERO,
        on_cpu_hz: underspan_trackers::ON_CPU_HZ,
        goroutine_hz: 0,
        measure_bpf: false,
        budget: Budget::default(),
        netstack: None,
        metrics: None,
    };
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned();
    let report = match Agent::open(options) {
        Ok(mut agent) => {
            agent.watch(&[]);
            Report {
                kernel,
                error: None,
                trackers: trackers(
                    &[agent.hooks(), &netstack_hooks()].concat(),
                    &agent.watched().map(|(pid, _)| pid).collect::<Vec<_>>(),
                ),
                processes: agent.watched().map(|(pid, watched)| process(pid, watched)).collect(),
            }
        }
        Err(error) => Report {
            kernel,
            error: Some(error.to_string()),
            trackers: trackers(&[], &[]),
            processes: Vec::new(),
        },
    };
    if global.json {
        output::print_json(&report)?;
    } else {
        output::print(text(&report).as_bytes())?;
    }
    let well = report.error.is_none() && report.trackers.iter().all(|tracker| tracker.runs);
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The receive stack's programs are an object of their own, which the agent loads if it is told to.
fn netstack_hooks() -> Vec<HookStatus> {
    let error = match Netstack::open(netstack::Options::default()) {
        Ok(netstack) => return netstack.hooks().to_vec(),
        Err(error) => error.to_string(),
    };
    let refused = |hook: &Hook| HookStatus {
        tracker: NetstackTracker.name(),
        what: hook.what,
        required: hook.required,
        outcome: None,
        failed: hook.programs.iter().map(|program| (program.attach, error.clone())).collect(),
    };
    NetstackTracker.hooks().iter().map(refused).collect()
}

fn trackers(hooks: &[HookStatus], watched: &[u32]) -> Vec<TrackerReport> {
    let report = |status: &HookStatus| HookReport {
        what: status.what,
        attached: status.outcome.as_ref().map(ToString::to_string),
        failed: status.failed.iter().map(|(attach, why)| format!("{attach}: {why}")).collect(),
    };
    ALL.iter()
        .map(|tracker| {
            let own = || hooks.iter().filter(|status| status.tracker == tracker.name());
            TrackerReport {
                name: tracker.name(),
                question: tracker.question(),
                runs: !hooks.is_empty()
                    && own().all(|status| status.outcome.is_some() || !status.required),
                hooks: match tracker.name() {
                    // It has none, and reads files and devices.
                    "throttle" if !hooks.is_empty() => sources(watched),
                    _ => own().map(report).collect(),
                },
            }
        })
        .collect()
}

/// What can be read of the host's counters: what is missing is not zero.
fn sources(watched: &[u32]) -> Vec<HookReport> {
    let round = Reader::new().round(0, watched);
    let report = |source: Source| {
        let read = round.readings.iter().filter(|reading| reading.metric.source == source).count();
        let absent = round.absent.iter().filter(|absent| absent.source == source);
        let why = absent.map(|absent| match &*absent.subject.name {
            "" => format!("here: {}", absent.note),
            name => format!("{name}: {}", absent.note),
        });
        HookReport {
            what: source.name(),
            attached: (read > 0).then(|| words::count(read, "counter")),
            failed: why.collect(),
        }
    };
    Source::ALL.map(report).into()
}

fn process(pid: u32, watched: &Watched) -> ProcessReport {
    let (python, gil, stacks) = match &watched.python {
        Python::None => Default::default(),
        Python::Starting { .. } if !watched.why.python => Default::default(),
        Python::Starting { why, .. } if why.is_empty() => ("starting".into(), "not yet", "not yet"),
        Python::Starting { why, .. } => (format!("not read yet: {why}"), "not seen", "not read"),
        Python::Known { version, gil, stacks } => (version.clone(), gil.as_str(), stacks.note()),
        Python::Refused(why) => (format!("not read: {why}"), "not seen", "not read"),
    };
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    ProcessReport {
        pid,
        process: comm.trim().to_owned(),
        why: watched.why.to_string(),
        python,
        gil: gil.to_owned(),
        stacks: stacks.to_owned(),
        go: underspan_agent::goroutines(pid).unwrap_or_default(),
        gc_rung: watched.gc.name(),
        gc_notes: watched.gc_notes.clone(),
    }
}

fn text(report: &Report) -> String {
    let mut text = format!("kernel {}\n", report.kernel);
    if let Some(error) = &report.error {
        let _ = writeln!(text, "\nnothing can be seen: {error}");
        return text;
    }
    for tracker in &report.trackers {
        let runs = if tracker.runs { "runs" } else { "CANNOT RUN" };
        let _ = writeln!(text, "\n{}  {runs}  {}", tracker.name, tracker.question);
        if tracker.hooks.is_empty() {
            let _ = writeln!(text, "  needs no hook of its own");
        }
        for hook in &tracker.hooks {
            let attached = hook.attached.as_deref().unwrap_or("NOT SEEN");
            let _ = writeln!(text, "  {:<34} {attached}", hook.what);
            for failed in &hook.failed {
                let _ = writeln!(text, "  {:<34}   not {failed}", "");
            }
        }
    }
    let processes = match report.processes.len() {
        1 => String::from("1 process"),
        n => format!("{n} processes"),
    };
    let _ = writeln!(text, "\n{processes} would be watched");
    for process in &report.processes {
        let _ = write!(text, "  {:>7} {:<15} {}", process.pid, process.process, process.why);
        if !process.python.is_empty() {
            let _ = write!(
                text,
                "; Python {}; GIL waits: {}; collections: {}; Python stacks: {}",
                process.python, process.gil, process.gc_rung, process.stacks
            );
        }
        if !process.go.is_empty() {
            let _ = write!(text, "; {}", process.go);
        }
        text.push('\n');
        for note in &process.gc_notes {
            let _ = writeln!(text, "  {:>7} {:<15}   {note}", "", "");
        }
    }
    text
}
