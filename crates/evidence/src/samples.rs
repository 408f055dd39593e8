//! Stacks taken while a request ran, of the threads that matter to it.

use std::collections::BTreeSet;

use serde::Deserialize;
use underspan_model::{Class, Request, Sample};
use underspan_store::Store;

use crate::Error;
use crate::flame::stacks::Stacks;
use crate::query::{OLDEST_NS, START, Select, TOLD_WITHIN_NS};

/// Samples that are read at most, the longest waits first.
const SAMPLES: u64 = 5_000;

/// A row of `off_cpu` or `on_cpu`, its stacks by id.
#[derive(Deserialize)]
struct SampleRow {
    stack_id: u64,
    #[serde(default)]
    waker_stack_id: u64,
    #[serde(flatten)]
    sample: Sample,
}

/// Stacks taken on a request's host while it ran, of these threads.
pub(crate) async fn samples_during(
    store: &Store,
    request: &Request,
    threads: &BTreeSet<u32>,
) -> Result<Vec<Sample>, Error> {
    let end = request.start_time.saturating_add(request.duration_ns);
    let threads: Vec<_> = threads.iter().copied().filter(|tid| *tid != 0).collect();
    let select = |table: &'static str, sql: &str| {
        Select::new(store, table, sql)
            .param("host", &request.host)
            .param("threads", &threads)
            .time("from", request.start_time.saturating_sub(crate::rows::LONGEST_NS))
            .time("begin", request.start_time)
            .time("end", end)
            .param("rows", SAMPLES)
    };
    let off = format!(
        "SELECT {START}, host, pid, tid, thread, duration_ns, state, weight_ns, stack_id, waker_pid, \
             waker_tid, waker_thread, waker_stack_id, lock_addr, peer FROM off_cpu AS t \
         WHERE host = {{host:String}} AND tid IN {{threads:Array(UInt32)}} \
            AND t.start_time >= fromUnixTimestamp64Nano({{from:Int64}}) \
            AND t.start_time <= fromUnixTimestamp64Nano({{end:Int64}}) \
            AND toUnixTimestamp64Nano(t.start_time) + duration_ns >= {{begin:Int64}} \
         ORDER BY duration_ns DESC LIMIT {{rows:UInt64}}"
    );
    let on = format!(
        "SELECT {START}, host, pid, tid, thread, duration_ns, state, duration_ns AS weight_ns, \
             stack_id FROM on_cpu AS t \
         WHERE host = {{host:String}} AND tid IN {{threads:Array(UInt32)}} \
            AND t.start_time >= fromUnixTimestamp64Nano({{begin:Int64}}) \
            AND t.start_time <= fromUnixTimestamp64Nano({{end:Int64}}) \
         ORDER BY t.start_time LIMIT {{rows:UInt64}}"
    );
    let (off, on) = tokio::try_join!(
        select("off_cpu", &off).rows::<SampleRow>(),
        select("on_cpu", &on).rows::<SampleRow>()
    )?;
    let rows: Vec<_> = off.into_iter().chain(on).collect();
    let host = request.host.as_str();
    let ids = rows.iter().flat_map(|row| [row.stack_id, row.waker_stack_id]);
    let stacks = Stacks::load(store, ids.map(|id| (host, id))).await?;
    let stack = |id: u64| stacks.get(host, id).cloned().unwrap_or_default();
    let named = rows.into_iter().map(|row| {
        let (stack, waker_stack) = (stack(row.stack_id), stack(row.waker_stack_id));
        // A sample on the CPU stands for the time around the moment it was taken.
        let before =
            if row.sample.state.class() == Class::Cpu { row.sample.duration_ns } else { 0 };
        let start_time = row.sample.start_time.saturating_sub(before);
        Sample { stack, waker_stack, start_time, ..row.sample }
    });
    Ok(named.collect())
}

/// Waits of the request's process that went on at its end, its thread's among them, from their beginning to
/// that end. For a request that is answered there are none to tell.
pub(crate) async fn ongoing(store: &Store, request: &Request) -> Result<Vec<Sample>, Error> {
    #[derive(Deserialize)]
    struct Ended {
        tid: u32,
        end: u64,
    }
    if request.end != "open" {
        return Ok(Vec::new());
    }
    let end = request.start_time.saturating_add(request.duration_ns);
    let select = |table: &'static str, sql: &str| {
        Select::new(store, table, sql)
            .param("host", &request.host)
            .param("pid", request.pid)
            .time("oldest", end.saturating_sub(OLDEST_NS))
            .time("seen", end.saturating_sub(TOLD_WITHIN_NS))
            .time("end", end)
            .param("rows", SAMPLES)
    };
    let sql = format!(
        "SELECT {START}, t.host AS host, t.pid AS pid, t.tid AS tid, any(t.thread) AS thread, \
            max(t.duration_ns) AS duration_ns, toString(t.state) AS state, 0 AS weight_ns, \
            argMax(t.stack_id, t.duration_ns) AS stack_id, any(t.lock_addr) AS lock_addr \
         FROM off_cpu_ongoing AS t WHERE t.host = {{host:String}} AND t.pid = {{pid:UInt32}} \
            AND t.start_time >= fromUnixTimestamp64Nano({{oldest:Int64}}) \
            AND t.start_time < fromUnixTimestamp64Nano({{end:Int64}}) \
            AND toUnixTimestamp64Nano(t.start_time) + t.duration_ns >= {{seen:Int64}} \
         GROUP BY host, pid, tid, state, start_time ORDER BY start_time LIMIT {{rows:UInt64}}"
    );
    let mut rows: Vec<SampleRow> = select("off_cpu_ongoing", &sql).rows().await?;
    let Some(shortest) = rows.iter().map(|row| row.sample.duration_ns).min() else {
        return Ok(Vec::new());
    };
    // One that is over has a row that is at least as long.
    let sql = "SELECT t.tid AS tid, \
            toUInt64(max(toUnixTimestamp64Nano(t.start_time) + t.duration_ns)) AS end \
         FROM off_cpu AS t WHERE t.host = {host:String} AND t.pid = {pid:UInt32} \
            AND t.start_time >= fromUnixTimestamp64Nano({oldest:Int64}) \
            AND t.start_time < fromUnixTimestamp64Nano({end:Int64}) \
            AND t.duration_ns >= {shortest:UInt64} GROUP BY tid";
    let ended: Vec<Ended> = select("off_cpu", sql).param("shortest", shortest).rows().await?;
    rows.retain(|SampleRow { sample, .. }| {
        let seen = sample.start_time.saturating_add(sample.duration_ns);
        !ended.iter().any(|ended| ended.tid == sample.tid && ended.end > seen)
    });
    let host = request.host.as_str();
    let stacks = Stacks::load(store, rows.iter().map(|row| (host, row.stack_id))).await?;
    let named = rows.into_iter().map(|SampleRow { stack_id, sample, .. }| {
        let ns = end.saturating_sub(sample.start_time);
        let stack = stacks.get(host, stack_id).cloned().unwrap_or_default();
        Sample { stack, duration_ns: ns, weight_ns: ns, ..sample }
    });
    Ok(named.collect())
}

/// Threads whose code is of interest: the request's own, and whoever was in its way.
pub(crate) fn suspects(
    request: &Request,
    waits: &[underspan_model::Wait],
    gil_waits: &[underspan_model::GilWait],
    pauses: &[underspan_model::GcPause],
) -> BTreeSet<u32> {
    let own = |tid: u32| tid == request.tid || tid == request.accept_tid;
    let mut threads = BTreeSet::from([request.tid, request.accept_tid]);
    threads.extend(waits.iter().filter(|w| own(w.tid)).flat_map(|w| [w.holder_tid, w.waker_tid]));
    threads.extend(gil_waits.iter().filter(|w| own(w.tid)).map(|w| w.holder_tid));
    threads.extend(pauses.iter().map(|pause| pause.tid));
    threads
}
