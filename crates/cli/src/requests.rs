//! `underspan requests`.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use underspan_evidence::{Filter, recent_requests, requests_in_flight};
use underspan_model::Request;

use crate::interval::duration;
use crate::render::{self, Ink};
use crate::{Global, output, session};

/// Options of `underspan requests`.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Which requests")]
pub(crate) struct Args {
    /// How far back to look, such as 90s, 15m, 2h or 1d
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    since: Duration,

    /// How many to show
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    limit: u64,

    /// Only those of this process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,

    /// Only those whose path contains this
    #[arg(long, value_name = "TEXT")]
    path: Option<String>,

    /// Only those that took at least this long, such as 250ms
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    min: Option<Duration>,

    /// Those that have no answer yet and have gone on for a second, the longest first
    #[arg(long, conflicts_with_all = ["since", "pid", "path", "min"])]
    open: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let now = SystemTime::now();
    let since = now.checked_sub(args.since).unwrap_or(UNIX_EPOCH);
    let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
    let filter = Filter {
        since: nanoseconds(since),
        limit: args.limit,
        pid: args.pid,
        path: args.path.clone(),
        min_duration_ns: args.min.map_or(0, nanoseconds),
        ..Filter::default()
    };
    let rows: Vec<Request> = session::with_store(global, async |store| {
        Ok(match args.open {
            true => requests_in_flight(&store, nanoseconds(lately(now)), args.limit).await?,
            false => recent_requests(&store, &filter).await?,
        })
    })?;
    if global.json {
        output::print_json(&rows)?;
    } else if rows.is_empty() && args.open {
        output::tell("no request that is watched has gone on for more than a second\n");
    } else if rows.is_empty() {
        // Not a failure: a quiet service has none.
        output::tell(&format!(
            "no requests in the last {} that fit; look further back with --since, or see with \
             `underspan doctor` what is watched\n",
            humantime::format_duration(args.since)
        ));
    } else {
        let text = render::requests(&rows, global.width(), Ink::new(global.colour()));
        output::print(text.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// When requests in flight were told of, at the latest: once a second, and then they have to be sent.
fn lately(now: SystemTime) -> Duration {
    let since = now.checked_sub(Duration::from_secs(15)).unwrap_or(UNIX_EPOCH);
    since.duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
