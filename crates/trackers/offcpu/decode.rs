//! From the pieces of a sample to its rows in `off_cpu`: one for each state that the wait consists of.

use underspan_model::{StackEnd, State};

use super::join::{Join, Sample, UserStack};
use super::ongoing::{Asleep, OngoingWait};
use crate::record::{
    DecodeError, comm, event_kind, kind, off_cpu_event, read, stack_event, stack_moment,
    thread_exit_event,
};
use crate::rows::span_row;
use crate::stack::{Ends, RawStack, Told, raw_stack};
use crate::{Context, Decoder, Rows, Thread};

const TRACKER: &str = "offcpu";

/// The operation by which glibc waits on semaphores and condition variables; its mutexes use another.
const FUTEX_WAIT_BITSET: u32 = 9;
const FUTEX_COMMAND: u32 = 0x7f;
/// What malloc() aligns to.
const ALLOCATED: u64 = 16;

pub(super) struct OffCpuDecoder {
    columns: Vec<String>,
    join: Join,
    told: Told,
    asleep: Asleep,
}

/// A stretch of the wait in one state.
struct Stretch {
    state: State,
    start: u64,
    duration: u64,
    weight: u64,
}

/// Who had what was waited for, and why we think so.
#[derive(Default)]
struct Holder {
    thread: Thread,
    reason: &'static str,
}

impl OffCpuDecoder {
    pub(super) fn new(columns: Vec<String>) -> Self {
        OffCpuDecoder {
            columns,
            join: Join::default(),
            told: Told::default(),
            asleep: Asleep::default(),
        }
    }

    fn write(&mut self, sample: Sample, context: &mut dyn Context, rows: &mut Rows) {
        let Sample { event: Some(event), kernel, user, .. } = sample else {
            // Its record was lost, and counted where it was.
            return;
        };
        let stretches = match stretches(&event) {
            Ok(stretches) => stretches,
            Err(_) => return,
        };
        let thread = context.thread(event.h.tgid, event.h.tid, &comm(&event.h.comm));
        let waker = known(context, event.waker_tgid, event.waker_tid, &comm(&event.waker_comm));
        let lock = user.as_ref().map_or(0, |user| user.lock);
        let stack = whole(&event, kernel, user, context);
        let stack = context.stack(stack);
        let waker_stack = self.join.take_waker(event.h.tid, event.sequence);
        let waker_stack = waker_stack.map_or(0, |stack| context.stack(stack));
        let peer = crate::request::address(event.family, &event.peer, event.peer_port);

        for Stretch { state, start, duration, weight } in stretches {
            let (lock_addr, lock_kind) = lock_of(&event, state, lock);
            let holder = holder(context, &event, state, &waker);
            let batch = rows.table("off_cpu", &self.columns);
            let mut row = span_row(batch, context, &thread, start, duration);
            row.str(state.name()).u64(weight).u64(stack);
            row.u32(waker.pid).u32(waker.tid).str(&waker.name).u64(waker_stack);
            row.u64(lock_addr).str(lock_kind);
            row.u32(holder.thread.pid).u32(holder.thread.tid).str(&holder.thread.name);
            row.str(holder.reason).u8(event.in_request.min(1)).u64(event.runnable);
            row.i32(event.syscall).str(&peer);
        }
    }

    fn write_all(&mut self, samples: Vec<Sample>, context: &mut dyn Context, rows: &mut Rows) {
        for sample in samples {
            self.write(sample, context, rows);
        }
    }

    fn stack(
        &mut self,
        bytes: &[u8],
        context: &mut dyn Context,
        rows: &mut Rows,
    ) -> Result<(), DecodeError> {
        let event: stack_event = read(bytes)?;
        let tid = event.h.tid;
        match u32::from(event.moment) {
            stack_moment::STACK_ASLEEP => {
                self.join.kernel(tid, event.sequence, raw_stack(&event, bytes)?);
            }
            stack_moment::STACK_AFTER_WAIT => {
                let user = UserStack { stack: self.told.stack(&event, bytes)?, lock: event.lock };
                let complete = self.join.user(tid, event.oldest, event.sequence, &user);
                self.write_all(complete, context, rows);
            }
            stack_moment::STACK_OF_WAKER => {
                let sleeper = (event.sequence >> 32) as u32;
                self.join.waker(sleeper, event.sequence as u32, self.told.stack(&event, bytes)?);
            }
            stack_moment::STACK_ONGOING => self.asleep.told(&event, raw_stack(&event, bytes)?),
            _ => {}
        }
        Ok(())
    }
}

impl Decoder for OffCpuDecoder {
    fn event(
        &mut self,
        bytes: &[u8],
        context: &mut dyn Context,
        rows: &mut Rows,
    ) -> Result<(), DecodeError> {
        match kind(bytes) {
            event_kind::EVENT_OFF_CPU => {
                let event: off_cpu_event = read(bytes)?;
                stretches(&event)?;
                if let Some(sample) = self.join.event(event) {
                    self.write(sample, context, rows);
                }
            }
            event_kind::EVENT_STACK => self.stack(bytes, context, rows)?,
            event_kind::EVENT_THREAD_EXIT => {
                let exit: thread_exit_event = read(bytes)?;
                self.told.ended(exit.h.tid);
                let samples = self.join.ended(exit.h.tid);
                self.write_all(samples, context, rows);
            }
            _ => {}
        }
        Ok(())
    }

    fn ongoing(&mut self, wait: &OngoingWait, context: &mut dyn Context, rows: &mut Rows) -> bool {
        self.asleep.write(wait, context, rows) == Some(StackEnd::NoMapping)
    }

    fn tick(&mut self, now: u64, context: &mut dyn Context, rows: &mut Rows) {
        self.asleep.tick(now);
        let samples = self.join.tick(now);
        self.write_all(samples, context, rows);
    }

    fn finish(&mut self, _now: u64, context: &mut dyn Context, rows: &mut Rows) {
        self.tick(u64::MAX, context, rows);
    }
}

/// What the wait consists of, as far as it is sampled.
fn stretches(event: &off_cpu_event) -> Result<Vec<Stretch>, DecodeError> {
    let state = |field, value: u8| {
        State::from_index(value).ok_or(DecodeError::Value {
            kind: event_kind::EVENT_OFF_CPU,
            field,
            value: value.into(),
        })
    };
    let runnable = event.runnable.min(event.duration);
    let blocked = event.duration - runnable;
    let gc = event.gc_ns.min(blocked);
    let start = event.h.time;
    let ready = start.saturating_add(blocked);
    let mut stretches = vec![
        (state("state", event.state)?, start, blocked - gc, event.weight),
        (State::GcWait, start, gc, event.gc_weight),
        (state("ready_state", event.ready_state)?, ready, runnable, event.ready_weight),
    ];
    stretches.retain(|(.., weight)| *weight > 0);
    let stretch = |(state, start, duration, weight)| Stretch { state, start, duration, weight };
    Ok(stretches.into_iter().map(stretch).collect())
}

fn known(context: &mut dyn Context, pid: u32, tid: u32, comm: &str) -> Thread {
    if tid == 0 { Thread::default() } else { context.thread(pid, tid, comm) }
}

/// Puts the parts of a stack together; what is missing, or was cut short, is counted.
fn whole(
    event: &off_cpu_event,
    kernel: Option<RawStack>,
    user: Option<UserStack>,
    context: &mut dyn Context,
) -> RawStack {
    let missed = || RawStack {
        ends: Ends { kernel: StackEnd::Missed, native: StackEnd::Missed, ..Ends::default() },
        ..RawStack::default()
    };
    let kernel = kernel.unwrap_or_else(missed);
    let user = user.map_or_else(missed, |user| user.stack);
    let ends = Ends { kernel: kernel.ends.kernel, ..user.ends };
    for end in [ends.kernel, ends.native, ends.python].into_iter().filter(|end| end.is_truncated())
    {
        context.count_lost(TRACKER, end.name(), 1);
    }
    RawStack {
        pid: event.h.tgid,
        kernel: kernel.kernel,
        native: user.native,
        python: user.python,
        ends,
    }
}

/// Which lock was waited for, and of what kind it is.
fn lock_of(event: &off_cpu_event, state: State, lock: u64) -> (u64, &'static str) {
    match state {
        State::GilWait | State::GcWait if event.gil != 0 => (event.futex, "gil"),
        State::LockWait if event.futex != 0 => {
            // A `threading.Lock` is a semaphore that malloc() made (to 3.13), or leads to one on the
            // waiter's stack (3.14).
            let waits = event.futex_op & FUTEX_COMMAND == FUTEX_WAIT_BITSET;
            if event.python == 0 || !waits {
                (event.futex, "futex")
            } else if lock != 0 {
                (lock, "python_lock")
            } else if event.futex.is_multiple_of(ALLOCATED) {
                (event.futex, "python_lock")
            } else {
                (event.futex, "futex")
            }
        }
        _ => (0, ""),
    }
}

/// Who had the lock. Of the GIL the interpreter names the holder, or the collector is; any lock was
/// probably held by the sibling that ended the wait, since it released it.
fn holder(
    context: &mut dyn Context,
    event: &off_cpu_event,
    state: State,
    waker: &Thread,
) -> Holder {
    let released = event.waker_tid != 0 && event.waker_tgid == event.h.tgid;
    let (tid, reason) = match state {
        State::GcWait => (event.gc_tid, "collector"),
        State::GilWait if event.holder != 0 => (event.holder, "gil_state"),
        State::GilWait | State::LockWait if released => {
            return Holder { thread: waker.clone(), reason: "released_it" };
        }
        _ => (0, ""),
    };
    if tid == 0 {
        return Holder::default();
    }
    Holder { thread: context.thread(event.h.tgid, tid, ""), reason }
}
