//! From records of waits, and from ledgers read once a second, to rows.

use underspan_model::{Ledger, State};

use crate::record::{DecodeError, comm, event_kind, kind, read, wait_event};
use crate::rows::{span_row, write_ledger};
use crate::{Context, Decoder, Rows, Thread};

#[derive(Default)]
pub(super) struct LedgerDecoder {
    columns: Vec<String>,
}

impl Decoder for LedgerDecoder {
    fn event(
        &mut self,
        bytes: &[u8],
        context: &mut dyn Context,
        rows: &mut Rows,
    ) -> Result<(), DecodeError> {
        if kind(bytes) != event_kind::EVENT_WAIT {
            return Ok(());
        }
        let wait: wait_event = read(bytes)?;
        let state = State::from_index(wait.state).ok_or(DecodeError::Value {
            kind: event_kind::EVENT_WAIT,
            field: "state",
            value: wait.state.into(),
        })?;
        if self.columns.is_empty() {
            self.columns = super::wait_columns();
        }
        let thread = context.thread(wait.h.tgid, wait.h.tid, &comm(&wait.h.comm));
        let waker = known(context, wait.waker_tgid, wait.waker_tid, &comm(&wait.waker_comm));
        let holder = holder(context, state, &wait, &waker);

        let batch = rows.table("waits", &self.columns);
        let mut row = span_row(batch, context, &thread, wait.h.time, wait.duration);
        row.str(state.name()).u64(wait.runnable);
        row.u32(waker.pid).u32(waker.tid).str(&waker.name);
        row.u32(holder.tid).str(&holder.name);
        row.u64(wait.futex).i32(wait.syscall).i32(wait.fd).str(&peer(&wait)).u32(1);
        Ok(())
    }

    fn tick(&mut self, _now: u64, _context: &mut dyn Context, _rows: &mut Rows) {}

    fn finish(&mut self, _now: u64, _context: &mut dyn Context, _rows: &mut Rows) {}
}

fn known(context: &mut dyn Context, pid: u32, tid: u32, comm: &str) -> Thread {
    if tid == 0 { Thread::default() } else { context.thread(pid, tid, comm) }
}

/// Who had what was waited for. A lock: the sibling that ended the wait, since it released it. A
/// CPU: whoever ran on it until then.
fn holder(context: &mut dyn Context, state: State, wait: &wait_event, waker: &Thread) -> Thread {
    match state {
        State::LockWait if wait.waker_tgid == wait.h.tgid => waker.clone(),
        State::Runnable => {
            known(context, wait.instead_tgid, wait.instead_tid, &comm(&wait.instead_comm))
        }
        _ => Thread::default(),
    }
}

fn peer(wait: &wait_event) -> String {
    crate::request::address(wait.family, &wait.peer, wait.peer_port)
}

/// Writes what a thread did between two readings of its ledger.
pub fn thread_states(
    context: &dyn Context,
    rows: &mut Rows,
    thread: &Thread,
    start: u64,
    ledger: &Ledger,
) {
    let batch = rows.table("thread_states", &super::thread_states_columns());
    let mut row = span_row(batch, context, thread, start, ledger.total());
    row.str(&thread.process);
    write_ledger(&mut row, ledger);
}
