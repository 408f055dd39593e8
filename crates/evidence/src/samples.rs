//! Stacks taken while a request ran, of the threads that matter to it.

use std::collections::BTreeSet;

use serde::Deserialize;
use underspan_model::{Class, Request, Sample};
use underspan_store::Store;

use crate::Error;
use crate::flame::stacks::Stacks;
use crate::query::{START, Select};

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
