//! `underspan diff`: did the fix work, by how much, per route and per cause.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde::Serialize;
use underspan_evidence::flame::{FlameQuery, RequestFilter, lost_events, requests_for_flame};
use underspan_explain::{CauseChange, RouteChange, Summary, compare};
use underspan_flame::Kind;
use underspan_model::Request;
use underspan_store::Store;

use crate::failure::{Failure, USAGE};
use crate::flame::time::{self, Range};
use crate::render::{self, Ink};
use crate::{Global, output, session};

/// Requests that are compared at most, on each side: the latest.
const REQUESTS: u64 = 50_000;

/// Options of `underspan diff`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The time before, as FROM..UNTIL, such as 40m..20m, or 12:00..12:10 (UTC)
    #[arg(long, value_name = "RANGE", value_parser = Range::parse)]
    #[arg(help_heading = "Time ranges")]
    before: Range,
    /// The time after; without an end it is now
    #[arg(long, value_name = "RANGE", value_parser = Range::parse)]
    #[arg(help_heading = "Time ranges")]
    after: Range,
    /// Only this route, such as 'GET /export' or '/export'
    #[arg(long, value_name = "ROUTE", default_value = "", hide_default_value = true)]
    #[arg(help_heading = "Which requests")]
    route: String,
    /// Only this process
    #[arg(long, value_name = "PID")]
    #[arg(help_heading = "Which requests")]
    pid: Option<u32>,
    /// Only processes with this name
    #[arg(long, value_name = "NAME", visible_alias = "comm")]
    #[arg(help_heading = "Which requests")]
    process: Option<String>,
}

/// Both sides: what `--json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct Difference {
    /// The time before.
    pub(crate) before: Side,
    /// The time after.
    pub(crate) after: Side,
    /// Per cause, nanoseconds of a request, the largest change first.
    pub(crate) causes: Vec<CauseChange>,
    /// Per method and path, the largest change of the 95th percentile first.
    pub(crate) routes: Vec<RouteChange>,
}

/// The requests of one time range.
#[derive(Debug, Serialize)]
pub(crate) struct Side {
    /// Its begin, in nanoseconds since the Unix epoch.
    pub(crate) since: u64,
    /// Its end.
    pub(crate) until: u64,
    /// Requests a second; null if there were more than are read.
    pub(crate) requests_per_second: Option<f64>,
    #[serde(flatten)]
    pub(crate) summary: Summary,
    /// Whether there were more than are read.
    pub(crate) is_cut: bool,
    /// Events that were lost meanwhile.
    pub(crate) lost_events: u64,
}

/// Runs the command.
pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let now = time::now();
    let (before, after) = session::with_store(global, async |store| {
        let before = requests(&store, &args, args.before.resolve(now)).await?;
        let after = requests(&store, &args, args.after.resolve(now)).await?;
        Ok((before, after))
    })?;
    let comparison = compare(&before.requests, &after.requests);
    let difference = Difference {
        before: before.side(comparison.before),
        after: after.side(comparison.after),
        causes: comparison.causes,
        routes: comparison.routes,
    };
    refuse_empty(&difference)?;
    if global.json {
        output::print_json(&difference)?;
    } else {
        let text = render::difference(&difference, Ink::new(global.colour()));
        output::print(text.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What was read of one side.
struct Read {
    since: u64,
    until: u64,
    requests: Vec<Request>,
    lost_events: u64,
}

impl Read {
    fn side(&self, summary: Summary) -> Side {
        let is_cut = self.requests.len() as u64 >= REQUESTS;
        let seconds = (self.until - self.since) as f64 / 1e9;
        Side {
            since: self.since,
            until: self.until,
            requests_per_second: (!is_cut).then(|| self.requests.len() as f64 / seconds),
            summary,
            is_cut,
            lost_events: self.lost_events,
        }
    }
}

async fn requests(store: &Store, args: &Args, (since, until): (u64, u64)) -> anyhow::Result<Read> {
    if since >= until {
        return Err(Failure::new("a time range is empty: it ends before it begins")
            .hint("durations count back from now: --before 40m..20m --after 20m..")
            .status(USAGE)
            .into());
    }
    let (method, path) = method_and_path(&args.route);
    let query = FlameQuery {
        kind: Kind::Wall,
        since,
        until,
        pid: args.pid,
        process: args.process.clone(),
        thread: None,
    };
    let filter = RequestFilter { query, method, path, unhandled: true, limit: REQUESTS };
    let requests = requests_for_flame(store, &filter).await?;
    // Ends of stacks say nothing of requests.
    let mut lost: BTreeMap<(String, String), u64> = BTreeMap::new();
    for event in lost_events(store, since, until).await? {
        if !event.leaves_no_gap() {
            *lost.entry((event.tracker, event.reason)).or_default() += event.count;
        }
    }
    Ok(Read { since, until, requests, lost_events: lost.values().sum() })
}

/// `GET /export`, `/export` or `GET`: method and path; each may be empty.
pub(crate) fn method_and_path(route: &str) -> (String, String) {
    match route.trim() {
        route if route.starts_with('/') => (String::new(), route.to_owned()),
        route => match route.split_once(' ') {
            Some((method, path)) => (method.to_ascii_uppercase(), path.trim().to_owned()),
            None => (route.to_ascii_uppercase(), String::new()),
        },
    }
}

fn refuse_empty(difference: &Difference) -> anyhow::Result<()> {
    for (name, side) in [("before", &difference.before), ("after", &difference.after)] {
        if side.summary.requests == 0 {
            let range = (render::instant(side.since), render::instant(side.until));
            let message = format!("no requests in --{name}, {} to {}, that fit", range.0, range.1);
            return Err(Failure::new(message)
                .hint("`underspan requests --since 1d` lists recent ones; programs without requests are compared by `underspan flame --before … --after …`")
                .into());
        }
    }
    Ok(())
}
