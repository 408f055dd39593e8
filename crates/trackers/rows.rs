//! Rows on their way out: one batch per table.

use std::collections::BTreeMap;

use underspan_model::{Ledger, State, column};
use underspan_store::{Batch, RowWriter};

use crate::{Context, Thread};

/// Bytes of a table's memory that are kept for the next rows. A burst's are given back.
const KEPT: usize = 64 << 10;

/// The batches that decoders write to.
#[derive(Default)]
pub struct Rows(BTreeMap<&'static str, Batch>);

impl Rows {
    /// The batch of a table, made on first use.
    pub fn table(&mut self, table: &'static str, columns: &[String]) -> &mut Batch {
        self.0.entry(table).or_insert_with(|| {
            Batch::new(table, &columns.iter().map(String::as_str).collect::<Vec<_>>())
        })
    }

    /// Shows everything that was written, then forgets it. Keeps the tables, and memory for their next rows.
    pub fn pass_on(&mut self, mut to: impl FnMut(&Batch)) {
        for batch in self.0.values_mut().filter(|batch| !batch.is_empty()) {
            to(batch);
            batch.rows = 0;
            batch.bytes.clear();
            batch.bytes.shrink_to(KEPT);
        }
    }

    /// Takes everything that was written.
    pub fn take(&mut self) -> impl Iterator<Item = Batch> {
        std::mem::take(&mut self.0).into_values().filter(|batch| !batch.is_empty())
    }
}

/// The columns that every row about a span of a thread's time begins with.
pub(crate) const SPAN_COLUMNS: [&str; 8] =
    ["host", "pid", "tid", "start_time", "duration_ns", "ns_pid", "ns_tid", "thread"];

/// Starts such a row.
pub(crate) fn span_row<'a>(
    batch: &'a mut Batch,
    context: &dyn Context,
    thread: &Thread,
    start: u64,
    duration: u64,
) -> RowWriter<'a> {
    let mut row = batch.row();
    row.str(context.host()).u32(thread.pid).u32(thread.tid);
    row.time(context.unix_ns(start)).u64(duration);
    row.u32(thread.ns_pid).u32(thread.ns_tid).str(&thread.name);
    row
}

/// Columns of a table whose rows begin with a span of a thread's time.
pub(crate) fn columns(own: &[&str]) -> Vec<String> {
    SPAN_COLUMNS.iter().chain(own).map(|name| (*name).to_owned()).collect()
}

/// The same, with one column per state at the end.
pub(crate) fn columns_with_ledger(own: &[&str]) -> Vec<String> {
    columns(own).into_iter().chain(State::ALL.map(column)).collect()
}

/// Writes those columns.
pub(crate) fn write_ledger(row: &mut RowWriter<'_>, ledger: &Ledger) {
    for ns in ledger.cells() {
        row.u64(*ns);
    }
}
