//! What viewers with a time axis show.

use serde::Deserialize;
use underspan_flame::{RequestSpan, Timeline, WaitSpan};
use underspan_model::{Request, State};
use underspan_store::Store;

use super::clip::{self, Window};
use super::rows::{self, Conditions, Grain};
use super::threads::Threads;
use super::{FlameQuery, ROWS, RequestFilter, Serving, requests_for_flame};
use crate::Error;
use crate::query::START;

/// Requests that are shown at most.
const REQUESTS: u64 = 20_000;

#[derive(Deserialize)]
struct WaitRow {
    host: String,
    pid: u32,
    tid: u32,
    thread: String,
    start_time: u64,
    duration_ns: u64,
    state: State,
    waker_thread: String,
    holder_thread: String,
    peer: String,
}

/// Single samples, waits and requests: of the given requests, or else of the range. Returns whether
/// there were more rows than are read, too.
///
/// # Errors
///
/// When the store cannot be asked.
pub async fn timeline(
    store: &Store,
    query: &FlameQuery,
    requests: Option<&[Request]>,
) -> Result<(Timeline, bool), Error> {
    let mut timeline = Timeline::default();
    let mut is_cut = false;
    let Some(requests) = requests else {
        let (mut threads, _) = Threads::in_range(store, query).await?;
        let conditions = Conditions::range(query);
        is_cut |= add(store, query, &conditions, &mut threads, &mut timeline, None).await?;
        let filter = RequestFilter {
            unhandled: false,
            query: query.clone(),
            method: String::new(),
            path: String::new(),
            limit: REQUESTS,
        };
        let found = requests_for_flame(store, &filter).await?;
        is_cut |= found.len() as u64 >= REQUESTS;
        timeline.requests = found.iter().map(|request| span(request, &mut threads)).collect();
        sort(&mut timeline);
        return Ok((timeline, is_cut));
    };
    let mut threads = Threads::of_requests(requests);
    let windows = clip::windows(requests, &mut threads);
    for batch in clip::batches(&windows, rows::WINDOWS) {
        let conditions = Conditions::windows(batch);
        is_cut |= add(store, query, &conditions, &mut threads, &mut timeline, Some(batch)).await?;
    }
    timeline.requests = requests.iter().map(|request| span(request, &mut threads)).collect();
    sort(&mut timeline);
    Ok((timeline, is_cut))
}

async fn add(
    store: &Store,
    query: &FlameQuery,
    conditions: &Conditions,
    threads: &mut Threads,
    timeline: &mut Timeline,
    windows: Option<&[Window]>,
) -> Result<bool, Error> {
    let serving = match windows {
        Some(_) => Serving::default(),
        None => Serving::until(store, query.until).await?,
    };
    let grain = Grain::Single;
    let found = rows::samples(store, query.kind, conditions, grain, threads, &serving).await?;
    timeline.samples.extend(match windows {
        Some(windows) => clip::clipped(found.samples, windows),
        None => found.samples,
    });
    let sql = format!(
        "SELECT {START}, host, pid, tid, thread, duration_ns, state, waker_thread, holder_thread, peer \
         FROM waits AS t WHERE {} ORDER BY duration_ns DESC LIMIT {{rows:UInt64}}",
        conditions.sql(),
    );
    let rows: Vec<WaitRow> = conditions.select(store, "waits", &sql).rows().await?;
    let is_cut = found.is_cut || rows.len() as u64 >= ROWS;
    let overlaps = |row: &WaitRow| {
        let end = row.start_time.saturating_add(row.duration_ns);
        windows.is_none_or(|windows| {
            windows.iter().any(|window| {
                window.thread.tid == row.tid && row.start_time < window.end && end > window.begin
            })
        })
    };
    for row in rows.into_iter().filter(overlaps) {
        timeline.waits.push(WaitSpan {
            thread: threads.get(&row.host, row.pid, row.tid, &row.thread),
            start_time: row.start_time,
            duration_ns: row.duration_ns,
            state: row.state,
            waker: row.waker_thread,
            holder: row.holder_thread,
            peer: row.peer,
        });
    }
    Ok(is_cut)
}

fn span(request: &Request, threads: &mut Threads) -> RequestSpan {
    let route = format!("{} {}", request.method, request.path);
    let route = route.trim();
    RequestSpan {
        thread: threads.of_request(request),
        start_time: clip::begin(request),
        duration_ns: request.handler_ns,
        name: if route.is_empty() { format!("from {}", request.peer) } else { route.to_owned() },
        request_id: request.request_id.clone(),
        trace_id: request.trace_id.clone(),
        status: request.status,
    }
}

fn sort(timeline: &mut Timeline) {
    timeline.samples.sort_by_key(|sample| sample.start_time);
    timeline.waits.sort_by_key(|wait| wait.start_time);
    timeline.requests.sort_by_key(|request| request.start_time);
}
