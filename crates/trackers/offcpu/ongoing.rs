//! Waits that are not over: where their threads stand, as seen from outside.

use std::collections::HashMap;

use underspan_model::{StackEnd, State};

use crate::record::{ThreadSnapshot, stack_event};
use crate::rows::{columns, span_row};
use crate::stack::{Ends, PythonFrame, RawStack};
use crate::{Context, Rows, Thread};

/// So long, in nanoseconds, what the kernel told of a stack waits for Python's part.
const PATIENCE: u64 = 60_000_000_000;

const COLUMNS: [&str; 7] =
    ["state", "stack_id", "lock_addr", "holder_tid", "holder_thread", "in_request", "syscall"];

pub(super) fn columns_of_ongoing() -> Vec<String> {
    columns(&COLUMNS)
}

/// A wait that goes on, and what was read of its thread's memory. The thread has not moved meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OngoingWait {
    /// The thread, before its memory was read.
    pub thread: ThreadSnapshot,
    /// When it still waited after that, monotonic.
    pub seen: u64,
    /// Its Python frames, innermost first.
    pub python: Vec<PythonFrame>,
    /// Why the walk of these ended.
    pub python_end: StackEnd,
}

/// Where in the kernel and in native code threads sleep.
#[derive(Debug)]
pub(super) struct Asleep {
    columns: Vec<String>,
    told: HashMap<u32, (u64, RawStack)>,
}

impl Default for Asleep {
    fn default() -> Self {
        Asleep { columns: columns_of_ongoing(), told: HashMap::new() }
    }
}

impl Asleep {
    pub(super) fn told(&mut self, event: &stack_event, stack: RawStack) {
        self.told.insert(event.h.tid, (event.h.time, stack));
    }

    pub(super) fn tick(&mut self, now: u64) {
        self.told.retain(|_, (time, _)| now.saturating_sub(*time) < PATIENCE);
    }

    /// Returns why the walk of the native frames ended; `None`: the thread does not wait.
    pub(super) fn write(
        &mut self,
        wait: &OngoingWait,
        context: &mut dyn Context,
        rows: &mut Rows,
    ) -> Option<StackEnd> {
        let thread = &wait.thread;
        let (state, since) = thread.waits()?;
        let told = self.told.remove(&thread.tid);
        // One of an earlier wait is another stack.
        let told = told.filter(|(time, _)| *time >= since).map(|(_, stack)| stack);
        // Python's frames are a whole stack; without any there is nothing in user mode.
        let native = if wait.python.is_empty() { StackEnd::Missed } else { StackEnd::Absent };
        let told = told.unwrap_or_else(|| RawStack {
            pid: thread.pid,
            kernel: Vec::new(),
            native: Vec::new(),
            python: Vec::new(),
            ends: Ends { kernel: StackEnd::Missed, native, python: StackEnd::Absent },
        });
        let ends = Ends { python: wait.python_end, ..told.ends };
        let stack = context.stack(RawStack { python: wait.python.clone(), ends, ..told });
        let lock = if state == State::LockWait { thread.futex } else { 0 };
        let holder = match thread.gil_holder {
            0 => Thread::default(),
            tid => context.thread(thread.pid, tid, ""),
        };
        let who = context.thread(thread.pid, thread.tid, &thread.comm);
        let batch = rows.table("off_cpu_ongoing", &self.columns);
        let mut row = span_row(batch, context, &who, since, wait.seen.saturating_sub(since));
        row.str(state.name()).u64(stack).u64(lock);
        row.u32(holder.tid).str(&holder.name).u8(thread.in_request.into()).i32(thread.syscall);
        Some(ends.native)
    }
}
