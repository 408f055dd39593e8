//! From looks at goroutines to rows: looks that saw the same are one row.

use std::collections::HashMap;
use std::sync::Arc;

use underspan_model::StackEnd;

use crate::goroutine::{Round, Sample};
use crate::rows::span_row;
use crate::stack::{Ends, RawStack};
use crate::{Context, Decoder, Rows, Thread};

/// A row is about no longer time than this: who looks at the last minute must find what lasts.
const LONGEST_NS: u64 = 1_000_000_000;
/// A goroutine that was not seen for so long does something else, has ended, or is not looked at.
const UNSEEN_NS: u64 = 500_000_000;

/// A row that may still grow.
struct Open {
    sample: Sample,
    start: u64,
    end: u64,
    weight_ns: u64,
}

pub(super) struct GoroutineDecoder {
    columns: Vec<String>,
    /// By process and goroutine.
    open: HashMap<(u32, u64), Open>,
}

impl GoroutineDecoder {
    pub(super) fn new(columns: Vec<String>) -> Self {
        GoroutineDecoder { columns, open: HashMap::new() }
    }

    fn write(&self, pid: u32, row: &Open, context: &mut dyn Context, rows: &mut Rows) {
        let sample = &row.sample;
        let process = context.thread(pid, pid, "");
        let ns_tid = match sample.tid {
            0 => 0,
            tid => context.thread(pid, tid, "").ns_tid,
        };
        // A goroutine has no thread of its own; it goes by the function it was started with.
        let name = Arc::clone(&sample.function);
        let thread = Thread { pid, tid: sample.tid, ns_tid, name, ..process };
        let stack_id = match sample.stack.is_empty() {
            true => 0,
            false => context.stack(RawStack {
                pid,
                native: sample.stack.to_vec(),
                ends: Ends {
                    kernel: StackEnd::Absent,
                    native: sample.end,
                    python: StackEnd::Absent,
                },
                ..RawStack::default()
            }),
        };
        let batch = rows.table("goroutine", &self.columns);
        let mut out = span_row(batch, context, &thread, row.start, row.weight_ns);
        out.u64(sample.goid).str(sample.status).str(&sample.wait_reason).u64(sample.wait_ns);
        out.u64(stack_id);
    }

    fn write_all(
        &mut self,
        context: &mut dyn Context,
        rows: &mut Rows,
        is_over: impl Fn(&Open) -> bool,
    ) {
        let over: Vec<_> = self.open.extract_if(|_, row| is_over(row)).collect();
        for ((pid, _), row) in over {
            self.write(pid, &row, context, rows);
        }
    }
}

impl Decoder for GoroutineDecoder {
    fn goroutines(&mut self, round: &Round, context: &mut dyn Context, rows: &mut Rows) {
        if round.torn > 0 {
            context.count_lost("goroutine", "torn", round.torn);
        }
        for sample in &round.samples {
            let key = (round.pid, sample.goid);
            if let Some(open) = self.open.get_mut(&key) {
                let young = round.at.saturating_sub(open.start) <= LONGEST_NS;
                if young && open.end == round.since && does_the_same(&open.sample, sample) {
                    open.end = round.at;
                    open.weight_ns = open.weight_ns.saturating_add(sample.weight_ns);
                    open.sample.wait_ns = sample.wait_ns;
                    continue;
                }
            }
            let weight_ns = sample.weight_ns;
            let row = Open { sample: sample.clone(), start: round.since, end: round.at, weight_ns };
            if let Some(before) = self.open.insert(key, row) {
                self.write(round.pid, &before, context, rows);
            }
        }
    }

    fn tick(&mut self, now: u64, context: &mut dyn Context, rows: &mut Rows) {
        self.write_all(context, rows, |row| {
            now.saturating_sub(row.end) > UNSEEN_NS
                || row.end.saturating_sub(row.start) >= LONGEST_NS
        });
    }

    fn finish(&mut self, _now: u64, context: &mut dyn Context, rows: &mut Rows) {
        self.write_all(context, rows, |_| true);
    }
}

fn does_the_same(before: &Sample, now: &Sample) -> bool {
    let same_stack = Arc::ptr_eq(&before.stack, &now.stack) || before.stack == now.stack;
    same_stack
        && before.status == now.status
        && before.wait_reason == now.wait_reason
        && before.tid == now.tid
        && before.function == now.function
}
