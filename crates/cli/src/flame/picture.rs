//! Collecting what a picture shows.

use std::collections::BTreeMap;

use serde::Serialize;
use underspan_evidence::flame::{
    Collected, FlameQuery, RequestFilter, Serving, requests_for_flame, samples_in_range,
    samples_of_requests,
};
use underspan_evidence::{request_by_id, requests_of_trace};
use underspan_flame::{Kind, Sample, Scaling, Summary, Totals, scale};
use underspan_model::{LostEvents, Request};
use underspan_store::Store;

use super::Args;
use crate::failure::{Failure, UNKNOWN_ID};

/// Requests that are read at most to tell slow from fast.
const REQUESTS: u64 = 20_000;
/// Requests whose samples are read at most: a picture of more looks the same.
const SAMPLED: usize = 2000;

/// One picture, or one side of a comparison.
#[derive(Debug)]
pub(super) struct Picture {
    /// Scaled to the ledger; idle waits among them.
    pub(super) samples: Vec<Sample>,
    /// Waits that are not over; what they account for is among the samples.
    pub(super) ongoing: Vec<Sample>,
    /// What they were scaled to; empty for kinds of which the ledger has no totals.
    pub(super) totals: Totals,
    /// Who can be idle.
    pub(super) serving: Serving,
    /// The requests that it is of, if it is of requests.
    pub(super) requests: Option<Vec<Request>>,
    pub(super) query: FlameQuery,
    pub(super) facts: Facts,
}

/// A picture in numbers: what `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Facts {
    pub(super) kind: Kind,
    /// Begin of the time range, in nanoseconds since the Unix epoch.
    pub(super) since: u64,
    /// Its end.
    pub(super) until: u64,
    /// How many requests the picture is of; none if it is of a time range.
    pub(super) requests: Option<usize>,
    #[serde(flatten)]
    pub(super) summary: Summary,
    /// None for kinds of which the ledger has no totals.
    pub(super) scaling: Option<Scaling>,
    /// Events that were lost meanwhile, most first. Ends of stacks are counted by the summary.
    pub(super) lost: Vec<Lost>,
    /// Whether there were more rows than are read.
    pub(super) is_cut: bool,
}

/// Events of a tracker that were lost for one reason.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Lost {
    pub(super) tracker: String,
    pub(super) reason: String,
    pub(super) count: u64,
}

fn lost(events: Vec<LostEvents>) -> Vec<Lost> {
    let mut counts: BTreeMap<(String, String), u64> = BTreeMap::new();
    for event in events {
        if !event.leaves_no_gap() {
            *counts.entry((event.tracker, event.reason)).or_default() += event.count;
        }
    }
    let counts = counts.into_iter();
    let mut lost: Vec<_> =
        counts.map(|((tracker, reason), count)| Lost { tracker, reason, count }).collect();
    lost.sort_by_key(|lost| std::cmp::Reverse(lost.count));
    lost
}

impl Picture {
    fn new(collected: Collected, query: &FlameQuery, requests: Option<Vec<Request>>) -> Picture {
        let Collected { mut samples, ongoing, totals, is_cut, serving, lost: events } = collected;
        let is_scaled = !matches!(query.kind, Kind::Loop | Kind::Goroutine);
        let scaling = is_scaled.then(|| scale(&mut samples, ongoing.clone(), &totals, query.since));
        serving.mark_rest(&mut samples);
        let facts = Facts {
            kind: query.kind,
            since: query.since,
            until: query.until,
            requests: requests.as_ref().map(Vec::len),
            summary: Summary::of(&samples),
            scaling,
            lost: lost(events),
            is_cut,
        };
        Picture { samples, ongoing, totals, serving, requests, query: query.clone(), facts }
    }

    /// Whether any sample was taken.
    pub(super) fn is_empty(&self) -> bool {
        self.samples.iter().all(|sample| sample.count == 0)
    }

    /// Whether hardware counters were read with any of its samples.
    pub(super) fn is_counted(&self) -> bool {
        self.samples.iter().any(|sample| sample.counters.is_some())
    }

    /// The samples that are shown.
    pub(super) fn shown(&self, with_idle: bool) -> Vec<Sample> {
        self.samples.iter().filter(|sample| with_idle || !sample.idle).cloned().collect()
    }

    /// How many requests it is of, and how long its range is.
    pub(super) fn size(&self) -> (u64, u64) {
        let requests = self.requests.as_ref().map_or(0, |requests| requests.len() as u64);
        (requests, self.query.until - self.query.since)
    }
}

/// The picture that the options ask for.
pub(super) async fn one(store: &Store, args: &Args, query: &FlameQuery) -> anyhow::Result<Picture> {
    let requests = match (&args.request, &args.trace, &args.route) {
        (Some(id), _, _) => Some(vec![by_id(store, id).await?]),
        (_, Some(id), _) => Some(of_trace(store, id).await?),
        (_, _, Some(_)) => Some(of_route(store, args, query).await?),
        _ => None,
    };
    match requests {
        Some(requests) => of_requests(store, query, requests).await,
        None => Ok(Picture::new(samples_in_range(store, query).await?, query, None)),
    }
}

/// Of the requests slower than one percentile, and of those faster than another.
pub(super) async fn slow_and_fast(
    store: &Store,
    args: &Args,
    query: &FlameQuery,
    slow: f64,
) -> anyhow::Result<(Picture, Picture)> {
    let fast = args.fast()?;
    let requests = of_route(store, args, query).await?;
    let mut durations: Vec<_> = requests.iter().map(|request| request.duration_ns).collect();
    durations.sort_unstable();
    let (slow_ns, fast_ns) = (percentile(&durations, slow), percentile(&durations, fast));
    let (mut above, mut below) = (Vec::new(), Vec::new());
    for request in requests {
        if request.duration_ns > slow_ns {
            above.push(request);
        } else if request.duration_ns < fast_ns {
            below.push(request);
        }
    }
    if above.is_empty() || below.is_empty() {
        let message = format!(
            "there are {} requests that fit: too few to tell slow (above p{slow}) from fast (below p{fast})",
            durations.len()
        );
        return Err(Failure::new(message)
            .hint("take a longer range with --last, or percentiles further from the ends")
            .into());
    }
    Ok((of_requests(store, query, below).await?, of_requests(store, query, above).await?))
}

/// Nearest rank: the smallest duration that at least this share of requests did not exceed.
fn percentile(sorted: &[u64], p: f64) -> u64 {
    let rank = (sorted.len() as f64 * p / 100.0).ceil().max(1.0) as usize;
    sorted.get(rank - 1).copied().unwrap_or(0)
}

async fn of_requests(
    store: &Store,
    query: &FlameQuery,
    requests: Vec<Request>,
) -> anyhow::Result<Picture> {
    // Evenly spaced, so that early and late ones are there.
    let step = requests.len().div_ceil(SAMPLED).max(1);
    let is_thinned = step > 1;
    let requests: Vec<_> = requests.into_iter().step_by(step).collect();
    let mut collected = samples_of_requests(store, query.kind, &requests).await?;
    collected.is_cut |= is_thinned;
    let begin = requests.iter().map(|request| request.start_time).min();
    let end = requests.iter().map(|r| r.start_time.saturating_add(r.duration_ns)).max();
    let mut query = query.clone();
    if let (Some(begin), Some(end)) = (begin, end) {
        (query.since, query.until) = (begin, end.max(begin + 1));
    }
    Ok(Picture::new(collected, &query, Some(requests)))
}

async fn of_route(store: &Store, args: &Args, query: &FlameQuery) -> anyhow::Result<Vec<Request>> {
    let (method, path) = args.method_and_path();
    let filter =
        RequestFilter { query: query.clone(), method, path, unhandled: false, limit: REQUESTS };
    let requests = requests_for_flame(store, &filter).await?;
    if requests.is_empty() {
        return Err(Failure::new("no requests in the range that fit")
            .hint("`underspan requests` lists recent ones; a route is a method and a path, such as 'GET /export'")
            .into());
    }
    Ok(requests)
}

async fn by_id(store: &Store, id: &str) -> anyhow::Result<Request> {
    let id = id.trim().to_ascii_lowercase();
    match request_by_id(store, &id).await? {
        Some(request) => Ok(request),
        None => Err(unknown(format!("unknown request {id}: no such row in the store"))),
    }
}

async fn of_trace(store: &Store, id: &str) -> anyhow::Result<Vec<Request>> {
    let id: String =
        id.trim().chars().filter(|c| *c != '-').collect::<String>().to_ascii_lowercase();
    let requests = requests_of_trace(store, &id).await?;
    if requests.is_empty() {
        return Err(unknown(format!("unknown trace {id}: no request that was watched has it")));
    }
    Ok(requests)
}

fn unknown(message: String) -> anyhow::Error {
    Failure::new(message)
        .hint("`underspan requests` lists recent ones; a row is written when its request ends, or has \
                gone on for a second, and kept for 7 days by default")
        .status(UNKNOWN_ID)
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_durations_that_occurred() {
        let sorted: Vec<u64> = (1..=200).collect();
        assert_eq!((percentile(&sorted, 50.0), percentile(&sorted, 95.0)), (100, 190));
        assert_eq!((percentile(&sorted, 0.0), percentile(&[], 50.0)), (1, 0));
    }
}
