//! `underspan flame`: pictures of where time went.

mod args;
mod picture;
mod summary;
pub(crate) mod time;
mod write;

use std::process::ExitCode;

use underspan_evidence::flame::{Extent, FlameQuery, extents, timeline};
use underspan_flame::{Kind, Per, Timeline, scale};
use underspan_store::Store;

pub(crate) use args::Args;
use args::Format;
use picture::Picture;
use write::{Comparison, Output};

use crate::failure::{Failure, USAGE};
use crate::render::{self, Ink};
use crate::{Global, output, session};

/// Ten periods of sampling: less may well be spread over threads that each had less than one.
const SAMPLED_FROM_NS: u64 = 100_000_000;

/// What was collected.
enum Found {
    One(Box<Picture>, Option<Timeline>),
    Two(Box<Comparison>),
}

/// Runs the command.
pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let format = args.format()?;
    if args.slow.is_some() || args.before.is_some() {
        refuse_single(format)?;
    }
    if args.is_of_requests() {
        refuse_without_requests(args.kind())?;
    }
    let now = time::now();
    let found = session::with_store(global, async |store| find(&store, &args, format, now).await)?;
    let written = format.map(|format| write::bytes(&found, &args, format)).transpose()?;
    let mut report = None;
    if let (Some(bytes), Some(format)) = (&written, format) {
        match &args.output {
            Some(path) => {
                std::fs::write(path, bytes).map_err(|error| {
                    Failure::new(format!("cannot write {}: {error}", path.display()))
                })?;
                report =
                    Some(Output { path: path.clone(), format: format.name(), bytes: bytes.len() });
            }
            None => output::print(bytes)?,
        }
    }
    let ink = Ink::new(global.colour());
    if written.is_some() && report.is_none() {
        // Standard output has the file.
        output::tell(&summary::text(&found, &args, None, Ink::new(false)));
    } else if global.json {
        output::print_json(&summary::json(&found, report))?;
    } else {
        output::print(summary::text(&found, &args, report.as_ref(), ink).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Viewers with a time axis, and speedscope, know of no differences.
fn refuse_single(format: Option<Format>) -> anyhow::Result<()> {
    match format {
        None | Some(Format::Svg | Format::Folded | Format::Pprof) => Ok(()),
        Some(format) => Err(Failure::new(format!("{} cannot hold a difference", format.name()))
            .hint("write it as .svg, .folded or .pb.gz")
            .status(USAGE)
            .into()),
    }
}

/// Requests are known by the threads that serve them.
fn refuse_without_requests(kind: Kind) -> anyhow::Result<()> {
    let (message, hint) = match kind {
        Kind::Goroutine => (
            "which goroutine served a request is not known",
            "choose the goroutines by the function that they began with, such as --thread main.worker",
        ),
        Kind::Loop => (
            "a stall of an event loop is of all its requests, not of one",
            "choose the loop with --process NAME, --pid PID or --thread TID",
        ),
        _ => return Ok(()),
    };
    Err(Failure::new(message).hint(hint).status(USAGE).into())
}

async fn find(
    store: &Store,
    args: &Args,
    format: Option<Format>,
    now: u64,
) -> anyhow::Result<Found> {
    let (before, after, per) = if let Some(slow) = args.slow {
        let query = args.query(now)?;
        let (fast, slow) = picture::slow_and_fast(store, args, &query, slow).await?;
        (fast, slow, Per::Request)
    } else if let (Some(before), Some(after)) = (args.before, args.after) {
        let (since, until) = before.resolve(now);
        let before = picture::one(store, args, &args.query_of(since, until)?).await?;
        let (since, until) = after.resolve(now);
        let after = picture::one(store, args, &args.query_of(since, until)?).await?;
        let per = if before.requests.is_some() { Per::Request } else { Per::Second };
        (before, after, per)
    } else {
        let picture = picture::one(store, args, &args.query(now)?).await?;
        refuse_empty(store, &picture).await?;
        let timeline = match format {
            Some(Format::Firefox | Format::Perfetto) => Some(in_time(store, &picture).await?),
            _ => None,
        };
        return Ok(Found::One(Box::new(picture), timeline));
    };
    if before.is_empty() && after.is_empty() {
        refuse_empty(store, &after).await?;
    }
    Ok(Found::Two(Box::new(Comparison { per: args.per().unwrap_or(per), before, after })))
}

async fn in_time(store: &Store, picture: &Picture) -> anyhow::Result<Timeline> {
    if matches!(picture.query.kind, Kind::Loop | Kind::Goroutine) {
        return Ok(Timeline { samples: picture.samples.clone(), ..Timeline::default() });
    }
    let (mut timeline, _) = timeline(store, &picture.query, picture.requests.as_deref()).await?;
    // What is not sampled has no time of its own: it goes to where the samples begin.
    let begin = timeline.begin();
    scale(&mut timeline.samples, picture.ongoing.clone(), &picture.totals, begin);
    picture.serving.mark_rest(&mut timeline.samples);
    timeline.samples.sort_by_key(|sample| sample.start_time);
    Ok(timeline)
}

/// A picture without a sample: says what there is instead.
async fn refuse_empty(store: &Store, picture: &Picture) -> anyhow::Result<()> {
    if !picture.is_empty() {
        return Ok(());
    }
    let FlameQuery { kind, since, until, .. } = &picture.query;
    let range = format!("{} to {}", render::instant(*since), render::instant(*until));
    let message = format!("no samples of kind {kind} from {range} that fit");
    let tables = extents(store, *kind).await?;
    let known = picture.facts.summary.not_sampled_ns;
    let hint = if known > 0 {
        format!("{}; {}", without_stacks(known), existing(&tables))
    } else {
        format!("{}; {}", existing(&tables), instead(&tables, *since, *until))
    };
    Err(Failure::new(message).hint(hint).into())
}

/// Why there may be time in the ledger, and no stack.
fn without_stacks(known_ns: u64) -> String {
    let known = underspan_explain::words::duration(known_ns);
    if known_ns < SAMPLED_FROM_NS {
        return format!(
            "the ledger has {known} of it, of all threads, which is too short to be sampled: a thread's \
             stack is taken about every 10 ms of it unless --off-cpu-period or --on-cpu-hz said otherwise"
        );
    }
    format!(
        "the ledger has {known} of it, but no stacks were taken: `underspan doctor` says whether the trackers run"
    )
}

/// Another range helps only where this one has no rows.
fn instead(tables: &[Extent], since: u64, until: u64) -> &'static str {
    let reaches = |t: &Extent| t.rows > 0 && t.first <= until && t.last >= since;
    if tables.iter().any(reaches) {
        "so this range was watched: nothing of this kind took long enough to be a sample, or nothing \
         fits what else was asked for. Name a longer range, or leave a filter out"
    } else {
        "name another range with --last, --since and --until"
    }
}

fn existing(tables: &[Extent]) -> String {
    let each = tables.iter().map(|extent| match extent.rows {
        0 => format!("{} has no rows", extent.table),
        _ => format!(
            "{} has rows from {} to {}",
            extent.table,
            render::instant(extent.first),
            render::instant(extent.last)
        ),
    });
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_too_short_to_be_sampled_is_no_fault() {
        let short = without_stacks(7_000_000);
        assert!(short.contains("7 ms") || short.contains("7.0 ms"), "{short}");
        assert!(short.contains("too short") && !short.contains("doctor"), "{short}");
        assert!(without_stacks(5_000_000_000).contains("doctor"));
    }

    #[test]
    fn another_range_is_advised_where_this_one_has_no_rows() {
        let extent = |first, last, rows| Extent { table: "off_cpu".to_owned(), first, last, rows };
        let watched = [extent(100, 900, 7)];
        assert!(instead(&watched, 200, 300).contains("was watched"));
        assert!(instead(&watched, 950, 990).starts_with("name another range"));
        assert!(instead(&[extent(0, 0, 0)], 0, 300).starts_with("name another range"));
    }
}
