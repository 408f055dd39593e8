//! Rows of `goroutine` as samples.

use std::sync::Arc;

use serde::Deserialize;
use underspan_flame::{Place, Sample};
use underspan_model::{State, idle_goroutine};
use underspan_store::Store;

use super::rows::{Conditions, Found, Table};
use super::stacks::Stacks;
use super::threads::Threads;
use super::{FlameQuery, ROWS, running};
use crate::Error;

#[derive(Deserialize)]
struct Row {
    host: String,
    pid: u32,
    thread: String,
    status: String,
    wait_reason: String,
    stack_id: u64,
    start_time: u64,
    weight: u64,
    samples: u64,
}

/// Goroutines of a time range, summed by the function they were started with, status, reason and
/// stack. Which thread one was on last says nothing: that function takes the thread's place.
pub(super) async fn goroutines(
    store: &Store,
    query: &FlameQuery,
    threads: &mut Threads,
) -> Result<Found, Error> {
    let conditions = Conditions::range(query);
    let sql = format!(
        "SELECT t.host AS host, t.pid AS pid, toString(t.thread) AS thread, \
            toString(t.status) AS status, toString(t.wait_reason) AS wait_reason, \
            t.stack_id AS stack_id, \
            toUInt64(greatest(0, toUnixTimestamp64Nano(min(t.start_time)))) AS start_time, \
            toUInt64(round(sum(t.duration_ns * {}))) AS weight, count() AS samples \
         FROM goroutine AS t WHERE {} GROUP BY host, pid, thread, status, wait_reason, stack_id \
         ORDER BY weight DESC LIMIT {{rows:UInt64}}",
        Table::Goroutine.share(),
        conditions.sql(),
    );
    let rows: Vec<Row> = conditions.select(store, "goroutine", &sql).rows().await?;
    let is_cut = rows.len() as u64 >= ROWS;
    let stacks =
        Stacks::load(store, rows.iter().map(|row| (row.host.as_str(), row.stack_id))).await?;
    let samples = rows.into_iter().map(|row| {
        let reason = if row.wait_reason.is_empty() { &row.status } else { &row.wait_reason };
        let place = stacks.place(&row.host, row.stack_id);
        Sample {
            thread: threads.goroutines(&row.host, row.pid, &row.thread),
            start_time: row.start_time,
            duration_ns: row.weight / row.samples.max(1),
            weight_ns: row.weight,
            unsure_ns: 0,
            count: row.samples,
            state: state(&row.status, reason),
            wait: Some(Arc::from(reason.as_str())),
            idle: is_idle(reason) || is_idle_at(&row.status, &place),
            place,
            request: None,
            counters: None,
        }
    });
    let samples: Vec<_> = samples.collect();
    let samples = running::placed(store, query, threads, samples).await?;
    Ok(Found { samples, is_cut })
}

/// What Go's statuses and reasons (`runtime2.go`) are in the ledger's terms, for the colour.
fn state(status: &str, reason: &str) -> State {
    match (status, reason) {
        ("running", _) => State::Running,
        ("runnable" | "preempted", _) => State::Runnable,
        (_, reason) if reason.starts_with("GC ") || reason.contains("garbage collection") => {
            State::GcWait
        }
        (_, "IO wait") => State::NetRead,
        (_, "sleep") => State::Sleep,
        (_, reason) if reason.starts_with("sync.") || reason.starts_with("semacquire") => {
            State::LockWait
        }
        (_, reason) if reason.starts_with("chan ") => State::PipeIpc,
        (_, reason) if reason.starts_with("select") => State::PollWait,
        _ => State::Other,
    }
}

/// A goroutine that runs or could run is not idle, whatever it was started for.
fn is_idle_at(status: &str, place: &Place) -> bool {
    match place {
        Place::Stack(stack) if matches!(status, "waiting" | "syscall") => {
            idle_goroutine(&stack.frames).is_some()
        }
        _ => false,
    }
}

/// The runtime's own goroutines, while they have nothing to do.
fn is_idle(reason: &str) -> bool {
    reason.ends_with("(idle)")
        || matches!(
            reason,
            "finalizer wait" | "GC sweep wait" | "GC scavenge wait" | "cleanup wait" | "debug call"
        )
}
