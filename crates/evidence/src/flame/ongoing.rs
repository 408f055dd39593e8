//! Rows of `off_cpu_ongoing`: where threads stand whose wait is not over, or was not at the time asked
//! about.
//!
//! When a wait is over, its rows in `off_cpu` have its time. A row here counts only up to where the next
//! of these begins that ends after the thread was seen waiting: if it is the wait's own, not at all.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;
use underspan_flame::{Kind, Sample};
use underspan_model::State;
use underspan_store::Store;

use super::clip::Window;
use super::rows::Conditions;
use super::stacks::Stacks;
use super::threads::Threads;
use super::{FlameQuery, Serving};
use crate::Error;
use crate::query::{OLDEST_NS, Select, TOLD_WITHIN_NS};

#[derive(Deserialize)]
struct Row {
    host: String,
    pid: u32,
    tid: u32,
    thread: String,
    state: State,
    stack_id: u64,
    in_request: u8,
    start: u64,
    seen_after: u64,
}

/// A wait that is over.
#[derive(Deserialize)]
struct Ended {
    host: String,
    pid: u32,
    tid: u32,
    start: u64,
    duration: u64,
}

/// Waits that go on within the range, each with the most that it can account for.
pub(super) async fn in_range(
    store: &Store,
    query: &FlameQuery,
    threads: &mut Threads,
    serving: &Serving,
) -> Result<Vec<Sample>, Error> {
    let conditions = Conditions::ongoing(query);
    let waits = select(store, query.kind, &conditions, query.since, threads, serving).await?;
    let clip = |wait| clipped(wait, query.since, query.until);
    Ok(waits.into_iter().filter_map(clip).collect())
}

/// Waits that go on within one of the windows, which are of one host.
pub(super) async fn in_windows(
    store: &Store,
    kind: Kind,
    windows: &[Window],
    threads: &mut Threads,
) -> Result<Vec<Sample>, Error> {
    let Some(since) = windows.iter().map(|window| window.begin).min() else {
        return Ok(Vec::new());
    };
    let conditions = Conditions::ongoing_in(windows);
    let serving = Serving::default();
    let waits = select(store, kind, &conditions, since, threads, &serving).await?;
    let of_window = |window: &Window| {
        let own = waits.iter().filter(|wait| wait.thread == window.thread).cloned();
        let (begin, end, request) = (window.begin, window.end, Arc::clone(&window.request));
        own.filter_map(move |wait| {
            let wait = clipped(wait, begin, end)?;
            Some(Sample { request: Some(Arc::clone(&request)), ..wait })
        })
        .collect::<Vec<_>>()
    };
    Ok(windows.iter().flat_map(of_window).collect())
}

/// The part of a wait between two times, as its weight.
fn clipped(wait: Sample, since: u64, until: u64) -> Option<Sample> {
    let end = wait.start_time.saturating_add(wait.duration_ns).min(until);
    let weight_ns = end.saturating_sub(wait.start_time.max(since));
    (weight_ns > 0).then_some(Sample { weight_ns, ..wait })
}

/// Fills in what [`Conditions::ongoing`] left open.
fn looking_back(select: Select<'_>, since: u64) -> Select<'_> {
    select
        .time("oldest", since.saturating_sub(OLDEST_NS))
        .time("seen", since.saturating_sub(TOLD_WITHIN_NS))
}

/// Waits from their beginning to where they may end; `u64::MAX`: that is not known.
async fn select(
    store: &Store,
    kind: Kind,
    conditions: &Conditions,
    since: u64,
    threads: &mut Threads,
    serving: &Serving,
) -> Result<Vec<Sample>, Error> {
    let states: Vec<_> = kind.states().map(|state| format!("'{}'", state.name())).collect();
    // The latest that was seen of each wait.
    let sql = format!(
        "SELECT t.host AS host, t.pid AS pid, t.tid AS tid, any(t.thread) AS thread, \
            toString(t.state) AS state, argMax(t.stack_id, t.duration_ns) AS stack_id, \
            max(t.in_request) AS in_request, max(t.duration_ns) AS seen_after, \
            toUInt64(greatest(0, toUnixTimestamp64Nano(t.start_time))) AS start \
         FROM off_cpu_ongoing AS t WHERE {} AND t.state IN ({}) \
         GROUP BY host, pid, tid, state, start ORDER BY start LIMIT {{rows:UInt64}}",
        conditions.sql(),
        states.join(", "),
    );
    let rows: Vec<Row> =
        looking_back(conditions.select(store, "off_cpu_ongoing", &sql), since).rows().await?;
    let Some(shortest) = rows.iter().map(|row| row.seen_after).min() else {
        return Ok(Vec::new());
    };
    // One that is over has a row that is at least as long as it had lasted when it was seen.
    let sql = format!(
        "SELECT t.host AS host, t.pid AS pid, t.tid AS tid, t.duration_ns AS duration, \
            toUInt64(greatest(0, toUnixTimestamp64Nano(t.start_time))) AS start \
         FROM off_cpu AS t WHERE t.start_time >= fromUnixTimestamp64Nano({{from:Int64}}) \
            AND t.start_time < fromUnixTimestamp64Nano({{until:Int64}}) \
            AND t.duration_ns >= {{shortest:UInt64}} AND (t.host, t.pid, t.tid) IN \
                (SELECT t.host, t.pid, t.tid FROM off_cpu_ongoing AS t WHERE {}) \
         ORDER BY start LIMIT {{rows:UInt64}}",
        conditions.sql(),
    );
    let ended =
        looking_back(conditions.select(store, "off_cpu", &sql), since).param("shortest", shortest);
    let mut over: HashMap<_, Vec<(u64, u64)>> = HashMap::new();
    for Ended { host, pid, tid, start, duration } in ended.rows().await? {
        let end = start.saturating_add(duration);
        over.entry((host, pid, tid)).or_default().push((start, end));
    }
    let stacks =
        Stacks::load(store, rows.iter().map(|row| (row.host.as_str(), row.stack_id))).await?;
    let samples = rows.into_iter().map(|row| {
        let seen = row.start.saturating_add(row.seen_after);
        let over = over.get(&(row.host.clone(), row.pid, row.tid));
        let next = over.into_iter().flatten().find(|(_, end)| *end > seen);
        let end = match next {
            // Its own. The wall clock may have been set between the two rows.
            Some((start, _)) if *start <= seen => row.start,
            Some((start, _)) => *start,
            None => u64::MAX,
        };
        let mut sample = Sample {
            thread: threads.get(&row.host, row.pid, row.tid, &row.thread),
            start_time: row.start,
            duration_ns: end.saturating_sub(row.start),
            weight_ns: 0,
            unsure_ns: 0,
            count: 1,
            state: row.state,
            wait: None,
            place: stacks.place(&row.host, row.stack_id),
            idle: false,
            request: None,
            counters: None,
        };
        serving.mark(&mut sample, row.in_request != 0);
        sample
    });
    Ok(samples.collect())
}
