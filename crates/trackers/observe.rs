//! What happens, as it is told: for who shows it now rather than keeps it. Decoders make rows of the
//! same records.

use underspan_model::{Ledger, State};

use crate::record::{
    DecodeError, event_header, event_kind, gc_event, gil_event, kind, read, request_sent_event,
    stack_event, wait_event,
};
use crate::stack::{RawStack, raw_stack};

/// Something that has happened. Times are monotonic nanoseconds, ids the host's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// A wait of at least the threshold is over.
    Wait(WaitEnded),
    /// A collection is over.
    Collection {
        /// Its process.
        pid: u32,
        /// Who collected.
        tid: u32,
        /// When it began.
        start: u64,
        /// How long it took.
        duration: u64,
    },
    /// A thread has read a request.
    Read(RequestRead),
    /// A request has its answer, or the first part of it; or will get none.
    Answered {
        /// As in [`RequestRead`].
        id: u64,
        /// When.
        time: u64,
        /// The time of the thread that read it, since then; `None`: not known.
        ledger: Option<Ledger>,
    },
    /// A stack was taken.
    Sample(Sample),
    /// A process has ended.
    Ended {
        /// The process.
        pid: u32,
    },
}

/// A wait that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitEnded {
    /// The process.
    pub pid: u32,
    /// Who waited.
    pub tid: u32,
    /// When it left the CPU.
    pub start: u64,
    /// Until it was back on one.
    pub duration: u64,
    /// For what.
    pub state: State,
    /// Who was in its way: the holder of the GIL, who released the lock, who had the CPU. 0: nobody
    /// that is known.
    pub by: (u32, u32),
}

/// A request that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRead {
    /// Its id.
    pub id: u64,
    /// The process.
    pub pid: u32,
    /// Who read it.
    pub tid: u32,
    /// When its first byte was there.
    pub ready: u64,
    /// When it was read.
    pub read: u64,
    /// HTTP method, or empty.
    pub method: String,
    /// HTTP path, or empty.
    pub path: String,
    /// The client.
    pub peer: String,
    /// The ledger of who read it, at that moment; `None`: not known.
    pub ledger: Option<Ledger>,
}

/// A stack, and whose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The thread.
    pub tid: u32,
    /// When it was taken.
    pub time: u64,
    /// It was running, rather than on its way back from a wait.
    pub on_cpu: bool,
    /// Addresses.
    pub stack: RawStack,
}

/// Reads a record. `None`: it tells nothing of the kind.
///
/// # Errors
/// If it is not a record of these programs.
pub fn observe(bytes: &[u8]) -> Result<Option<Observation>, DecodeError> {
    Ok(Some(match kind(bytes) {
        event_kind::EVENT_WAIT => wait(&read(bytes)?)?,
        event_kind::EVENT_GIL => gil(&read(bytes)?),
        event_kind::EVENT_GC => {
            let gc: gc_event = read(bytes)?;
            Observation::Collection {
                pid: gc.h.tgid,
                tid: gc.h.tid,
                start: gc.h.time,
                duration: gc.duration,
            }
        }
        event_kind::EVENT_REQUEST_READ => Observation::Read(crate::request::seen(bytes)?),
        event_kind::EVENT_REQUEST_SENT | event_kind::EVENT_REQUEST_END => {
            let sent: request_sent_event = read(bytes)?;
            let ledger = (sent.ledger_ok != 0).then(|| Ledger::new(sent.ns));
            Observation::Answered { id: sent.id, time: sent.h.time, ledger }
        }
        kind @ (event_kind::EVENT_STACK | event_kind::EVENT_ON_CPU) => {
            let event: stack_event = read(bytes)?;
            Observation::Sample(Sample {
                tid: event.h.tid,
                time: event.h.time,
                on_cpu: kind == event_kind::EVENT_ON_CPU,
                stack: raw_stack(&event, bytes)?,
            })
        }
        event_kind::EVENT_PROCESS_EXIT => {
            let header: event_header = read(bytes)?;
            Observation::Ended { pid: header.tgid }
        }
        _ => return Ok(None),
    }))
}

fn wait(wait: &wait_event) -> Result<Observation, DecodeError> {
    let state = State::from_index(wait.state).ok_or(DecodeError::Value {
        kind: event_kind::EVENT_WAIT,
        field: "state",
        value: wait.state.into(),
    })?;
    let by = match state {
        State::LockWait if wait.waker_tgid == wait.h.tgid => (wait.waker_tgid, wait.waker_tid),
        State::Runnable => (wait.instead_tgid, wait.instead_tid),
        _ => (0, 0),
    };
    Ok(Observation::Wait(WaitEnded {
        pid: wait.h.tgid,
        tid: wait.h.tid,
        start: wait.h.time,
        duration: wait.duration,
        state,
        by,
    }))
}

fn gil(wait: &gil_event) -> Observation {
    let collecting = wait.gc_tid != 0 && wait.gc_ns > wait.duration / 2;
    let by = match (collecting, wait.holder) {
        (true, _) => (wait.h.tgid, wait.gc_tid),
        (_, 0) if wait.waker_tgid != wait.h.tgid => (0, 0),
        (_, 0) => (wait.waker_tgid, wait.waker_tid),
        (_, holder) => (wait.h.tgid, holder),
    };
    Observation::Wait(WaitEnded {
        pid: wait.h.tgid,
        tid: wait.h.tid,
        start: wait.h.time,
        duration: wait.duration,
        state: if collecting { State::GcWait } else { State::GilWait },
        by,
    })
}
