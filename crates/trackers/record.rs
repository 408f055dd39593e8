//! The records that BPF writes, made from the C headers, and how to read them from bytes.

use std::borrow::Cow;

use underspan_model::{Ledger, STATES, State};

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::undocumented_unsafe_blocks)]
mod generated {
    #![allow(non_camel_case_types, non_upper_case_globals, non_snake_case, dead_code)]
    include!(concat!(env!("OUT_DIR"), "/records.rs"));
}

pub(crate) use generated::*;

/// Why a record could not be read. Both mean that agent and programs do not belong together, or
/// that memory was corrupted: the record is counted and left out.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Shorter than its kind.
    #[error("a record of kind {kind} has {len} bytes, {wanted} are needed")]
    Short {
        /// What it says it is.
        kind: u32,
        /// Its length.
        len: usize,
        /// The length of its kind.
        wanted: usize,
    },
    /// A value that its field cannot have.
    #[error("a record of kind {kind} has {field} = {value}")]
    Value {
        /// What it says it is.
        kind: u32,
        /// The field.
        field: &'static str,
        /// What it holds.
        value: u64,
    },
}

/// Types that may be read from any bytes.
///
/// # Safety
///
/// Every bit pattern must be a valid value: C structs of integers and arrays of integers.
pub(crate) unsafe trait Record: Copy {}

macro_rules! records {
    ($($name:ident),* $(,)?) => {$(
        // SAFETY: made by bindgen from a C struct of integers and arrays of integers.
        unsafe impl Record for $name {}
    )*};
}

records!(
    event_header,
    lifecycle_event,
    thread_exit_event,
    wait_event,
    gil_event,
    off_cpu_event,
    gc_event,
    loop_event,
    tcp_accept_event,
    tcp_listener_event,
    tcp_connect_event,
    tcp_loss_event,
    request_read_event,
    request_head_event,
    request_answer_event,
    config,
    request_sent_event,
    netstack_clock,
    netstack_config,
    netstack_histogram,
    netstack_interface,
    netstack_key,
    thread,
    process,
    stack_event,
    python_frame,
    python_layout,
    unwind_mapping,
    unwind_process,
);

// SAFETY: an integer.
unsafe impl Record for u32 {}

// SAFETY: an integer.
unsafe impl Record for u64 {}

/// The kind of a record, 0 if it is too short to have one.
pub(crate) fn kind(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |kind| u32::from_ne_bytes(*kind))
}

/// Reads a record. Extra bytes at its end are padding.
pub(crate) fn read<T: Record>(bytes: &[u8]) -> Result<T, DecodeError> {
    let wanted = size_of::<T>();
    if bytes.len() < wanted {
        return Err(DecodeError::Short { kind: kind(bytes), len: bytes.len(), wanted });
    }
    // SAFETY: there are enough bytes, and any bytes are a valid `T`.
    Ok(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// Reads a value of a map. `None`: it is shorter.
pub(crate) fn from_bytes<T: Record>(bytes: &[u8]) -> Option<T> {
    // SAFETY: there are enough bytes, and any bytes are a valid `T`.
    (bytes.len() >= size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// Reads what stands at an offset in a record.
pub(crate) fn read_at<T: Record>(bytes: &[u8], at: usize) -> Result<T, DecodeError> {
    let short = || DecodeError::Short {
        kind: kind(bytes),
        len: bytes.len(),
        wanted: at.saturating_add(size_of::<T>()),
    };
    let rest = bytes.get(at..).filter(|rest| rest.len() >= size_of::<T>()).ok_or_else(short)?;
    // SAFETY: there are enough bytes, and any bytes are a valid `T`.
    Ok(unsafe { rest.as_ptr().cast::<T>().read_unaligned() })
}

/// The bytes of a value for a map.
pub(crate) fn bytes_of<T: Record>(value: &T) -> &[u8] {
    // SAFETY: `T` is a C struct without implicit padding (bindgen's layout tests and the headers'
    // explicit `_pad` fields), so all its bytes are initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// A C string in a fixed field.
pub(crate) fn comm(field: &[std::ffi::c_char]) -> Cow<'_, str> {
    // SAFETY: the same bytes, all of them initialised; C's characters are bytes.
    let bytes = unsafe { std::slice::from_raw_parts(field.as_ptr().cast::<u8>(), field.len()) };
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text)
}

/// What became of a process or thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifecycleKind {
    /// A watched process got a child, which is watched too.
    ProcessFork,
    /// A process started a program.
    ProcessExec,
    /// A watched process ended.
    ProcessExit,
    /// A watched process got a thread.
    ThreadStart,
    /// A watched thread ended.
    ThreadExit,
    /// A process that is not watched began to accept connections.
    Listen,
}

/// Something that the agent, not a table, wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifecycle {
    /// What happened.
    pub kind: LifecycleKind,
    /// To which process.
    pub pid: u32,
    /// To which thread.
    pub tid: u32,
    /// The parent, for a fork.
    pub parent: u32,
    /// When, monotonic.
    pub time: u64,
    /// The thread's name in the kernel.
    pub comm: String,
}

/// Reads a life-cycle record; `None` for records of other kinds.
pub fn lifecycle(bytes: &[u8]) -> Result<Option<Lifecycle>, DecodeError> {
    let kind = match kind(bytes) {
        event_kind::EVENT_PROCESS_FORK => LifecycleKind::ProcessFork,
        event_kind::EVENT_PROCESS_EXEC => LifecycleKind::ProcessExec,
        event_kind::EVENT_PROCESS_EXIT => LifecycleKind::ProcessExit,
        event_kind::EVENT_THREAD_START => LifecycleKind::ThreadStart,
        event_kind::EVENT_THREAD_EXIT => LifecycleKind::ThreadExit,
        event_kind::EVENT_LISTEN => LifecycleKind::Listen,
        _ => return Ok(None),
    };
    let (h, parent) = if kind == LifecycleKind::ThreadExit {
        (read::<thread_exit_event>(bytes)?.h, 0)
    } else {
        let event: lifecycle_event = read(bytes)?;
        (event.h, event.parent_tgid)
    };
    let comm = comm(&h.comm).into_owned();
    Ok(Some(Lifecycle { kind, pid: h.tgid, tid: h.tid, parent, time: h.time, comm }))
}

/// A thread's ledger, copied from the map while the thread may be running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadSnapshot {
    /// Its process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// When its ledger began, monotonic.
    pub born: u64,
    /// Up to when the ledger is settled, monotonic.
    pub since: u64,
    /// What time after that is charged to.
    pub state: u8,
    /// The thread's name in the kernel.
    pub comm: String,
    /// The ledger at `since`.
    pub ledger: Ledger,
    /// When the wait began that it is in, monotonic; of a GIL wait in slices, the first. If it runs,
    /// of the wait before.
    pub waiting_since: u64,
    /// Who held the GIL when it last went to sleep for it, 0: it waits for something else, or that is
    /// not known.
    pub gil_holder: u32,
    /// Its `pthread_self()`.
    pub pthread: u64,
    /// It has read a request and not answered it.
    pub in_request: bool,
    /// The futex that it waits on, or waited on last; 0: none.
    pub futex: u64,
    /// The system call that it waits in, or waited in last; -1: none.
    pub syscall: i32,
}

/// A ledger whose cells do not sum: it changed while it was copied, or it is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Off {
    /// The thread.
    pub(crate) tid: u32,
    /// Nanoseconds that its cells have too many.
    pub(crate) by: i64,
}

impl ThreadSnapshot {
    /// Reads a value of the map; `None` if it is too short to be one.
    pub(crate) fn copied(bytes: &[u8]) -> Option<Result<Self, Off>> {
        let raw: thread = from_bytes(bytes)?;
        let ledger = Ledger::new(raw.ns);
        if raw.since.checked_sub(raw.born) != Some(ledger.total()) {
            let by = ledger.total().wrapping_sub(raw.since.wrapping_sub(raw.born)).cast_signed();
            return Some(Err(Off { tid: raw.tid, by }));
        }
        Some(Ok(ThreadSnapshot {
            pid: raw.tgid,
            tid: raw.tid,
            born: raw.born,
            since: raw.since,
            state: raw.state,
            comm: comm(&raw.comm).into_owned(),
            ledger,
            waiting_since: match (raw.wait.gil, raw.gil.start) {
                (0, _) | (_, 0) => raw.wait.start,
                (_, first) => first,
            },
            gil_holder: if raw.wait.gil == 0 { 0 } else { raw.wait.holder },
            pthread: raw.pthread,
            in_request: raw.open_requests > 0,
            futex: raw.wait.futex,
            syscall: raw.wait.syscall,
        }))
    }

    /// What it waits for and since when, monotonic; `None`: nothing that keeps it off the CPU. A wait
    /// that is older than the ledger counts from where that began.
    pub fn waits(&self) -> Option<(State, u64)> {
        let state = State::from_index(self.state).filter(|state| state.is_blocked())?;
        Some((state, self.waiting_since.max(self.born)))
    }

    /// Whether it is still in the wait in which it was `then`, and was all the time. A wait for the GIL
    /// is a loop of sleeps in one place.
    pub fn sleeps_on_since(&self, then: &ThreadSnapshot) -> bool {
        let same =
            self.born == then.born && self.state == then.state && self.waits() == then.waits();
        let gil = State::from_index(self.state) == Some(State::GilWait);
        same && self.waits().is_some() && (gil || self.since == then.since)
    }

    /// The ledger as it would be if settled at `now`. The end of a wait that is settled only when
    /// it is over is left out: for the GIL (how much goes to a sibling's collection?) and for a
    /// CPU (how much to the quota?). These are some milliseconds.
    pub(crate) fn at(&self, now: u64) -> Ledger {
        let mut ledger = self.ledger;
        if let Some(state) = State::from_index(self.state)
            && !matches!(state, State::GilWait | State::Runnable | State::Throttled)
        {
            ledger[state] = ledger[state].saturating_add(now.saturating_sub(self.since));
        }
        ledger
    }
}

const _: () = assert!(STATES == generated::STATES as usize);

/// What BPF is told of a watched process. All zero: watched, without a Python that we can read.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessConfig {
    /// Address of the GIL, 0 if there is none or it failed its self-check.
    pub gil: u64,
    /// Offset of `PyThreadState.thread_id`.
    pub tstate_pthread_offset: u32,
    /// Address of the collector's flag, 0 if not known.
    pub gc_collecting: u64,
    /// Address of `generation_stats[3]`, 0 if not known.
    pub gc_stats: u64,
    /// Which probe sees its collections.
    pub gc_rung: crate::gc::Rung,
    /// Where its Python frames are. The default: they cannot be read.
    pub python: crate::stack::PythonLayout,
}

impl ProcessConfig {
    pub(crate) fn to_raw(self) -> process {
        process {
            gil: self.gil,
            gc_collecting: self.gc_collecting,
            gc_stats: self.gc_stats,
            tstate_pthread_offset: self.tstate_pthread_offset,
            gc_rung: self.gc_rung as u32,
            python: self.python.0,
        }
    }
}

/// A wait at least this long is told however much work the agent must save: a request may have been
/// slow for it, and there cannot be many. Nanoseconds.
const ALWAYS_TOLD: u64 = 50_000_000;

/// Whether a record may be left out when the agent must save work: short waits are in the ledgers
/// anyway.
pub fn can_shed(bytes: &[u8]) -> bool {
    let duration = match kind(bytes) {
        event_kind::EVENT_WAIT => read::<wait_event>(bytes).map(|wait| wait.duration),
        event_kind::EVENT_GIL => read::<gil_event>(bytes).map(|wait| wait.duration),
        event_kind::EVENT_OFF_CPU => read::<off_cpu_event>(bytes).map(|wait| wait.duration),
        _ => return false,
    };
    // One that cannot be read is for its decoder to complain about.
    duration.is_ok_and(|duration| duration < ALWAYS_TOLD)
}
