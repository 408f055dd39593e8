//! The critical path of a slow request, from the waits that were told of all watched threads.

use underspan_model::{Blocked, State, Waits};

use super::assemble::Finished;
use crate::record::{
    DecodeError, ThreadSnapshot, event_kind, gil_event, kind, lifecycle_event, read, wait_event,
};
use crate::rows::{columns, span_row};
use crate::{Context, Rows};

/// Quicker handlers get no path: what would it be good for?
const SLOW_NS: u64 = 100_000_000;
/// Waits are remembered for so long, as long as there are not too many.
const REMEMBER_NS: u64 = 120_000_000_000;
/// If there are too many, for so long.
const REMEMBER_AT_LEAST_NS: u64 = 5_000_000_000;
/// So many are too many: some 10 MiB.
const WAITS: usize = 200_000;

pub(super) fn columns_of_paths() -> Vec<String> {
    columns(&["request_id", "step", "depth", "kind", "state"])
}

/// Waits of all watched threads in the last minutes.
#[derive(Default)]
pub(super) struct Paths {
    waits: Waits,
}

impl Paths {
    /// Remembers a wait.
    pub(super) fn event(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        let (h, duration, runnable, state, waker_tid) = match kind(bytes) {
            event_kind::EVENT_WAIT => {
                let wait: wait_event = read(bytes)?;
                let state = State::from_index(wait.state).unwrap_or_default();
                (wait.h, wait.duration, wait.runnable, state, wait.waker_tid)
            }
            event_kind::EVENT_GIL => {
                let wait: gil_event = read(bytes)?;
                (wait.h, wait.duration, wait.runnable_ns, State::GilWait, wait.waker_tid)
            }
            event_kind::EVENT_THREAD_START => {
                let start: lifecycle_event = read(bytes)?;
                self.waits.watch_one(start.h.tid, start.h.time);
                return Ok(());
            }
            _ => return Ok(()),
        };
        let end = h.time.saturating_add(duration);
        // A thread that was ready all the time was never blocked, and nobody woke it.
        let never = matches!(state, State::Runnable | State::Throttled);
        let woken = if never { h.time } else { end.saturating_sub(runnable) };
        self.waits.push(h.tid, Blocked { start: h.time, woken, end, state, waker_tid });
        Ok(())
    }

    /// The threads of which every wait is told, since their ledger began.
    pub(super) fn watch(&mut self, threads: &[ThreadSnapshot]) {
        self.waits.watch(threads.iter().map(|thread| (thread.tid, thread.born)));
    }

    /// `now` is monotonic.
    pub(super) fn forget(&mut self, now: u64) {
        let remember = if self.waits.len() > WAITS { REMEMBER_AT_LEAST_NS } else { REMEMBER_NS };
        self.waits.forget_before(now.saturating_sub(remember));
    }

    /// Writes the path of a slow request's handler: back from who answered it, if that is known. One that ran on an
    /// event loop has none of its own.
    pub(super) fn write(&self, finished: &Finished, context: &mut dyn Context, rows: &mut Rows) {
        let (asked, told) = (&finished.asked, &finished.told);
        let answered_elsewhere = told.sent_tid != asked.tid && self.waits.knows(told.sent_tid);
        let on_loop = told.shared_thread && !answered_elsewhere;
        if on_loop || told.until.saturating_sub(asked.read) < SLOW_NS {
            return;
        }
        let last = if answered_elsewhere { told.sent_tid } else { asked.tid };
        let id = format!("{:016x}", asked.id);
        let columns = columns_of_paths();
        for (number, step) in self.waits.path(last, asked.read, told.until).iter().enumerate() {
            let thread = context.thread(0, step.tid, "");
            let batch = rows.table("critical_path", &columns);
            let mut row = span_row(batch, context, &thread, step.start, step.end - step.start);
            row.str(&id).u16(u16::try_from(number).unwrap_or(u16::MAX)).u16(step.depth);
            row.str(step.kind.name()).str(step.state.name());
        }
    }
}
