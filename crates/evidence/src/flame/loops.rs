//! Rows of `loop_stall` as samples: each split by the ledger, all at the stack of its middle.

use serde::Deserialize;
use underspan_flame::Sample;
use underspan_model::{Ledger, State, column};
use underspan_store::Store;

use super::ROWS;
use super::rows::{Conditions, Found};
use super::stacks::Stacks;
use super::threads::Threads;
use crate::Error;

#[derive(Deserialize)]
struct Row {
    host: String,
    pid: u32,
    tid: u32,
    thread: String,
    stack_id: u64,
    start_time: u64,
    duration: u64,
    stalls: u64,
    #[serde(flatten)]
    ledger: Ledger,
}

pub(super) async fn stalls(
    store: &Store,
    conditions: &Conditions,
    threads: &mut Threads,
) -> Result<Found, Error> {
    let sums = State::ALL.map(|state| {
        let name = column(state);
        format!("sum(t.{name}) AS {name}")
    });
    let sql = format!(
        "SELECT t.host AS host, t.pid AS pid, t.tid AS tid, any(t.thread) AS thread, \
            t.stack_id AS stack_id, \
            toUInt64(greatest(0, toUnixTimestamp64Nano(min(t.start_time)))) AS start_time, \
            max(t.duration_ns) AS duration, count() AS stalls, {} \
         FROM loop_stall AS t WHERE {} GROUP BY host, pid, tid, stack_id \
         ORDER BY sum(t.duration_ns) DESC LIMIT {{rows:UInt64}}",
        sums.join(", "),
        conditions.sql(),
    );
    let rows: Vec<Row> = conditions.select(store, "loop_stall", &sql).rows().await?;
    let is_cut = rows.len() as u64 >= ROWS;
    let stacks =
        Stacks::load(store, rows.iter().map(|row| (row.host.as_str(), row.stack_id))).await?;
    let mut samples = Vec::new();
    for row in rows {
        let thread = threads.get(&row.host, row.pid, row.tid, &row.thread);
        for (state, weight_ns) in row.ledger.iter().filter(|(_, ns)| *ns > 0) {
            samples.push(Sample {
                thread: thread.clone(),
                start_time: row.start_time,
                duration_ns: row.duration,
                weight_ns,
                unsure_ns: 0,
                count: row.stalls,
                state,
                wait: None,
                place: stacks.place(&row.host, row.stack_id),
                idle: false,
                request: None,
                counters: None,
            });
        }
    }
    Ok(Found { samples, is_cut })
}
