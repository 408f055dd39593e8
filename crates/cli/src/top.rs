//! `underspan top`: what every thread does, live, in the terminal.

use std::process::ExitCode;
use std::time::Duration;

use underspan_agent::{Capability, DropOptions, LiveOptions, drop_privileges};
use underspan_top::{View, Watch, batch, check_terminal, show, text};

use crate::failure::Failure;
use crate::interval::interval;
use crate::watch::{SelectArgs, host_name, log_to_stderr, progress};
use crate::{Global, output};

/// Options of `underspan top`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    select: SelectArgs,
    /// Length of an interval
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    #[arg(value_parser = interval)]
    #[arg(help_heading = "Output")]
    interval: Duration,
    /// Print one interval as text, or as JSON with --json, and end
    #[arg(long, conflicts_with = "batch")]
    #[arg(help_heading = "Output")]
    once: bool,
    /// Print so many intervals as text, or as one line of JSON each with --json
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(help_heading = "Output")]
    batch: Option<u32>,
    /// Samples of running threads, per second and CPU; 0 takes none
    #[arg(long, value_name = "HZ", default_value_t = underspan_trackers::ON_CPU_HZ)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=10_000))]
    #[arg(help_heading = "What to record")]
    on_cpu_hz: u32,
    /// Stay root
    #[arg(long)]
    #[arg(help_heading = "Privileges")]
    keep_root: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let count =
        if args.once || (global.json && args.batch.is_none()) { Some(1) } else { args.batch };
    if count.is_none() {
        check_terminal()?;
    } else {
        // On the screen there is no place for it.
        log_to_stderr();
    }
    let mut watch = Watch::open(LiveOptions {
        host: host_name()?,
        selection: args.select.selection()?,
        wait_threshold: Duration::from_millis(1),
        on_cpu_hz: args.on_cpu_hz,
    })?;
    if !args.keep_root {
        // The kernel tells where a thread sleeps only to who has this.
        let also_keep = vec![Capability::CAP_SYS_ADMIN];
        drop_privileges(&DropOptions { also_keep, ..DropOptions::default() }).map_err(|error| {
            Failure::new(format!("cannot give up root: {error}")).hint("stay root with --keep-root")
        })?;
    }
    watch.start()?;
    match count {
        None => show(&mut watch, args.interval)?,
        Some(count) => {
            let mut is_told = false;
            let print = |view: &View| {
                if view.processes.is_empty() && !std::mem::replace(&mut is_told, true) {
                    progress("nothing that runs matches what was asked for, and can be watched");
                }
                print(view, global.json, count > 1)
            };
            batch(&mut watch, args.interval, count, print)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print(view: &View, json: bool, many: bool) -> anyhow::Result<()> {
    match (json, many) {
        (true, false) => output::print_json(view),
        (true, true) => {
            let mut line = serde_json::to_vec(view)?;
            line.push(b'\n');
            output::print(&line)
        }
        (false, false) => output::print(text(view).as_bytes()),
        (false, true) => output::print(format!("{}\n", text(view)).as_bytes()),
    }
}
