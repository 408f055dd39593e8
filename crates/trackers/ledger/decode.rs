//! From records of waits, and from ledgers read once a second, to rows.

use std::collections::{HashMap, HashSet};

use underspan_model::{Ledger, State};

use crate::record::{
    DecodeError, ThreadSnapshot, comm, event_kind, kind, read, thread_exit_event, wait_event,
};
use crate::rows::{span_row, write_ledger};
use crate::{Context, Decoder, Measure, Rows, Thread};

/// How far a thread's time has been written to `thread_states`.
struct Written {
    born: u64,
    ledger: Ledger,
    /// How often in a row the thread was not in the map. Its end may still be in the ring.
    absent: u8,
}

/// So often; then its end was lost.
const ABSENT: u8 = 30;

pub(super) struct LedgerDecoder {
    wait_columns: Vec<String>,
    states_columns: Vec<String>,
    written: HashMap<u32, Written>,
}

impl LedgerDecoder {
    pub(super) fn new() -> Self {
        LedgerDecoder {
            wait_columns: super::wait_columns(),
            states_columns: super::thread_states_columns(),
            written: HashMap::new(),
        }
    }

    fn wait(
        &self,
        wait: &wait_event,
        context: &mut dyn Context,
        rows: &mut Rows,
    ) -> Result<(), DecodeError> {
        let state = State::from_index(wait.state).ok_or(DecodeError::Value {
            kind: event_kind::EVENT_WAIT,
            field: "state",
            value: wait.state.into(),
        })?;
        let thread = context.thread(wait.h.tgid, wait.h.tid, &comm(&wait.h.comm));
        let waker = known(context, wait.waker_tgid, wait.waker_tid, &comm(&wait.waker_comm));
        let holder = holder(context, state, wait, &waker);

        let batch = rows.table("waits", &self.wait_columns);
        let mut row = span_row(batch, context, &thread, wait.h.time, wait.duration);
        row.str(state.name()).u64(wait.runnable);
        row.u32(waker.pid).u32(waker.tid).str(&waker.name);
        row.u32(holder.tid).str(&holder.name);
        row.u64(wait.futex).i32(wait.syscall).i32(wait.fd).str(&peer(wait)).u32(1);
        row.str(&local(wait));
        row.u32(holder.pid).str(&holder.process);
        Ok(())
    }

    /// Writes what a thread did since the last time.
    fn states(
        &mut self,
        (pid, tid, comm): (u32, u32, &str),
        born: u64,
        ledger: Ledger,
        context: &mut dyn Context,
        rows: &mut Rows,
    ) {
        let before = match self.written.get(&tid) {
            Some(written) if written.born == born => written.ledger,
            _ => Ledger::default(),
        };
        // Settled differently than expected, as when a thread is taken up in the middle of a wait:
        // its time is written once the ledger has passed what was written.
        let Some(done) = ledger.since(&before) else { return };
        if done.total() == 0 {
            return;
        }
        self.written.insert(tid, Written { born, ledger, absent: 0 });
        let thread = context.thread(pid, tid, comm);
        let batch = rows.table("thread_states", &self.states_columns);
        let mut row =
            span_row(batch, context, &thread, born.saturating_add(before.total()), done.total());
        row.str(&thread.process);
        write_ledger(&mut row, &done);
        context.measure(&Measure::ThreadTime { process: &thread.process, ledger: &done });
    }
}

impl Decoder for LedgerDecoder {
    fn event(
        &mut self,
        bytes: &[u8],
        context: &mut dyn Context,
        rows: &mut Rows,
    ) -> Result<(), DecodeError> {
        match kind(bytes) {
            event_kind::EVENT_WAIT => self.wait(&read(bytes)?, context, rows),
            event_kind::EVENT_THREAD_EXIT => {
                let exit: thread_exit_event = read(bytes)?;
                let who = (exit.h.tgid, exit.h.tid, &*comm(&exit.h.comm));
                self.states(who, exit.h.time, Ledger::new(exit.ns), context, rows);
                self.written.remove(&exit.h.tid);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn ledgers(
        &mut self,
        threads: &[ThreadSnapshot],
        now: u64,
        context: &mut dyn Context,
        rows: &mut Rows,
    ) {
        for thread in threads {
            let who = (thread.pid, thread.tid, &*thread.comm);
            self.states(who, thread.born, thread.at(now), context, rows);
        }
        if self.written.len() > threads.len() {
            let alive: HashSet<u32> = threads.iter().map(|thread| thread.tid).collect();
            self.written.retain(|tid, written| {
                written.absent = if alive.contains(tid) { 0 } else { written.absent + 1 };
                written.absent < ABSENT
            });
        }
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

/// Only addresses have two ends.
fn local(wait: &wait_event) -> String {
    match i32::from(wait.family) {
        libc::AF_INET | libc::AF_INET6 => {
            crate::request::address(wait.family, &wait.local, wait.local_port)
        }
        _ => String::new(),
    }
}
