//! From one merged wait for the GIL to its rows: `gil_wait`, and `waits` with every other wait.

use underspan_model::State;

use crate::record::{DecodeError, comm, event_kind, gil_event, kind, read};
use crate::rows::span_row;
use crate::{Context, Decoder, Measure, Rows, Thread, Timing};

/// `SYS_futex` on x86-64.
const FUTEX: i32 = 202;

pub(super) struct GilDecoder {
    columns: Vec<String>,
    wait_columns: Vec<String>,
}

impl GilDecoder {
    pub(super) fn new(columns: Vec<String>) -> Self {
        GilDecoder { columns, wait_columns: crate::ledger::wait_columns() }
    }
}

impl Decoder for GilDecoder {
    fn event(
        &mut self,
        bytes: &[u8],
        context: &mut dyn Context,
        rows: &mut Rows,
    ) -> Result<(), DecodeError> {
        if kind(bytes) != event_kind::EVENT_GIL {
            return Ok(());
        }
        let wait: gil_event = read(bytes)?;
        let thread = context.thread(wait.h.tgid, wait.h.tid, &comm(&wait.h.comm));
        let waker = if wait.waker_tid == 0 {
            Thread::default()
        } else {
            context.thread(wait.waker_tgid, wait.waker_tid, "")
        };
        let (holder, holder_ns) = holder(context, &wait, &waker);

        let batch = rows.table("gil_wait", &self.columns);
        let mut row = span_row(batch, context, &thread, wait.h.time, wait.duration);
        row.u32(holder.tid).str(&holder.name).u64(holder_ns).u64(wait.gc_ns).u32(wait.slices);
        context.measure(&Measure::Lasted {
            what: Timing::GilWait,
            process: &thread.process,
            duration: wait.duration,
        });

        let state = if wait.gc_ns > wait.duration / 2 { State::GcWait } else { State::GilWait };
        let batch = rows.table("waits", &self.wait_columns);
        let mut row = span_row(batch, context, &thread, wait.h.time, wait.duration);
        row.str(state.name()).u64(wait.runnable_ns);
        row.u32(waker.pid).u32(waker.tid).str(&waker.name);
        row.u32(holder.tid).str(&holder.name);
        row.u64(wait.futex).i32(FUTEX).i32(-1).str("").u32(wait.slices).str("");
        row.u32(holder.pid).str(&holder.process);
        Ok(())
    }

    fn tick(&mut self, _now: u64, _context: &mut dyn Context, _rows: &mut Rows) {}

    fn finish(&mut self, _now: u64, _context: &mut dyn Context, _rows: &mut Rows) {}
}

/// Who held the GIL for most of the wait. A collector holds it all along; else the thread the
/// interpreter named; else, for a wait too short to see a holder, the sibling that let it go.
fn holder(context: &mut dyn Context, wait: &gil_event, waker: &Thread) -> (Thread, u64) {
    if wait.gc_tid != 0 && wait.gc_ns > wait.duration / 2 {
        return (context.thread(wait.h.tgid, wait.gc_tid, ""), wait.gc_ns);
    }
    if wait.holder != 0 {
        return (context.thread(wait.h.tgid, wait.holder, ""), wait.holder_ns);
    }
    if wait.waker_tgid == wait.h.tgid {
        return (waker.clone(), 0);
    }
    (Thread::default(), 0)
}
