//! From an iteration's record to its row. Who held it up, and where the loop was, is in records that
//! came before it: waits, collections and stacks of its thread.

use std::collections::{HashMap, VecDeque};

use underspan_model::{Ledger, State};

use crate::record::{
    DecodeError, comm, event_kind, gc_event, gil_event, kind, loop_event, loop_kind, read,
    stack_event, stack_moment, wait_event,
};
use crate::rows::{span_row, write_ledger};
use crate::stack::{PythonFrame, RawStack, Told, raw_stack};
use crate::{Context, Decoder, Rows, Thread};

/// Stacks remembered of one loop: at the sampling clock's 99 a second, the last seconds.
const STACKS: usize = 512;
/// Waits and collections remembered of all threads.
const CULPRITS: usize = 4096;
/// A loop of which nothing was heard for so long is forgotten. Nanoseconds.
const FORGET: u64 = 60_000_000_000;
/// A wait for the GIL is told when its thread next sleeps for something else (gil/gil.bpf.h): the last one of
/// an iteration, after the iteration. So long an iteration waits for it. Nanoseconds.
const UNTOLD: u64 = 1_000_000_000;

/// Something that held a thread up.
struct HeldUp {
    /// The thread that waited; 0: every thread of the process but the culprit.
    tid: u32,
    pid: u32,
    start: u64,
    end: u64,
    culprit: (u32, u32, String),
    what: State,
}

/// What is remembered of one thread that is a loop.
#[derive(Default)]
struct Loop {
    stacks: VecDeque<(u64, RawStack)>,
    /// Where in the kernel it slept: the rest of this stack is on its way.
    asleep: Option<RawStack>,
    heard: u64,
}

/// An iteration that took long.
struct Stall {
    event: loop_event,
    kind: &'static str,
    thread: Thread,
    stack_id: u64,
}

impl Stall {
    fn end(&self) -> u64 {
        self.event.h.time.saturating_add(self.event.duration)
    }

    /// The state that took most of it.
    fn mostly(&self) -> Option<(State, u64)> {
        Ledger::new(self.event.ns).iter().max_by_key(|(_, ns)| *ns)
    }
}

pub(super) struct LoopDecoder {
    columns: Vec<String>,
    /// Of these it is not known yet who held the GIL.
    unsettled: Vec<Stall>,
    loops: HashMap<u32, Loop>,
    told: Told,
    held_up: VecDeque<HeldUp>,
}

impl LoopDecoder {
    pub(super) fn new(columns: Vec<String>) -> Self {
        LoopDecoder {
            columns,
            unsettled: Vec::new(),
            loops: HashMap::new(),
            told: Told::default(),
            held_up: VecDeque::new(),
        }
    }

    fn remember(&mut self, held_up: HeldUp) {
        if held_up.culprit.1 == 0 {
            return;
        }
        if self.held_up.len() == CULPRITS {
            self.held_up.pop_front();
        }
        self.held_up.push_back(held_up);
    }

    fn stack(&mut self, event: &stack_event, bytes: &[u8]) -> Result<(), DecodeError> {
        let moment = u32::from(event.moment);
        // A waker's stack tells of another thread's wait; one that goes on is part of no iteration yet.
        let other = [stack_moment::STACK_OF_WAKER, stack_moment::STACK_ONGOING].contains(&moment);
        if event.loop_ == 0 || other {
            return Ok(());
        }
        let mut stack = match moment {
            stack_moment::STACK_AFTER_WAIT => self.told.stack(event, bytes)?,
            _ => raw_stack(event, bytes)?,
        };
        let known = self.loops.entry(event.h.tid).or_default();
        known.heard = event.h.time;
        // The kernel's part of a wait comes by itself, before the rest.
        if moment == stack_moment::STACK_ASLEEP {
            known.asleep = Some(stack);
            return Ok(());
        }
        if moment == stack_moment::STACK_AFTER_WAIT
            && let Some(asleep) = known.asleep.take()
        {
            stack.kernel = asleep.kernel;
            stack.ends.kernel = asleep.ends.kernel;
        }
        if known.stacks.len() == STACKS {
            known.stacks.pop_front();
        }
        known.stacks.push_back((event.h.time, stack));
        Ok(())
    }

    fn stall(
        &mut self,
        event: &loop_event,
        context: &mut dyn Context,
        rows: &mut Rows,
    ) -> Result<(), DecodeError> {
        let name = kind_name(event.kind).ok_or(DecodeError::Value {
            kind: event.h.kind,
            field: "kind",
            value: event.kind.into(),
        })?;
        let thread = context.thread(event.h.tgid, event.h.tid, &comm(&event.h.comm));
        let end = event.h.time.saturating_add(event.duration);
        let stacks = self.loops.entry(event.h.tid).or_default();
        stacks.heard = end;
        let stack = mostly(&stacks.stacks, event.h.time, end).cloned();
        let stack_id = stack.map_or(0, |stack| context.stack(stack));
        let stall = Stall { event: *event, kind: name, thread, stack_id };
        let by_gil = stall.mostly().is_some_and(|(state, _)| state == State::GilWait);
        match self.culprit(context, &stall) {
            None if by_gil => self.unsettled.push(stall),
            culprit => self.write(&stall, culprit, context, rows),
        }
        Ok(())
    }

    /// Writes those of which nothing more will be heard.
    fn settle(
        &mut self,
        is_settled: impl Fn(&Stall) -> bool,
        context: &mut dyn Context,
        rows: &mut Rows,
    ) {
        for stall in self.unsettled.extract_if(.., |stall| is_settled(stall)).collect::<Vec<_>>() {
            let culprit = self.culprit(context, &stall);
            self.write(&stall, culprit, context, rows);
        }
    }

    fn write(
        &self,
        stall: &Stall,
        culprit: Option<(Thread, &'static str)>,
        context: &dyn Context,
        rows: &mut Rows,
    ) {
        let (culprit, what) = culprit.unwrap_or_default();
        let batch = rows.table("loop_stall", &self.columns);
        let (start, duration) = (stall.event.h.time, stall.event.duration);
        let mut row = span_row(batch, context, &stall.thread, start, duration);
        row.str(stall.kind).u32(culprit.tid).str(&culprit.name).str(what).u64(stall.stack_id);
        write_ledger(&mut row, &Ledger::new(stall.event.ns));
    }

    /// Who held the loop up for most of the state that took most of the iteration, if that is a state
    /// in which one is held up by a sibling.
    fn culprit(&self, context: &mut dyn Context, stall: &Stall) -> Option<(Thread, &'static str)> {
        let (event, end) = (&stall.event, stall.end());
        let (state, most) = stall.mostly()?;
        if !matches!(state, State::GilWait | State::GcWait | State::LockWait) {
            return None;
        }
        let mut suspects: HashMap<(u32, u32), (u64, &str)> = HashMap::new();
        for held_up in self.held_up.iter().filter(|held_up| held_up.what == state) {
            let victim = held_up.tid == event.h.tid
                || (held_up.tid == 0
                    && held_up.pid == event.h.tgid
                    && held_up.culprit.1 != event.h.tid);
            let ns = held_up.end.min(end).saturating_sub(held_up.start.max(event.h.time));
            if victim && ns > 0 {
                let (pid, tid, name) = &held_up.culprit;
                suspects.entry((*pid, *tid)).or_insert((0, name)).0 += ns;
            }
        }
        match suspects.into_iter().max_by_key(|(_, (ns, _))| *ns) {
            // One of many small waits proves nothing.
            Some(((pid, tid), (ns, name))) if ns.saturating_mul(2) >= most => {
                Some((context.thread(pid, tid, name), state.name()))
            }
            _ => None,
        }
    }
}

impl Decoder for LoopDecoder {
    fn event(
        &mut self,
        bytes: &[u8],
        context: &mut dyn Context,
        rows: &mut Rows,
    ) -> Result<(), DecodeError> {
        match kind(bytes) {
            event_kind::EVENT_LOOP => self.stall(&read(bytes)?, context, rows)?,
            event_kind::EVENT_STACK | event_kind::EVENT_ON_CPU => {
                self.stack(&read(bytes)?, bytes)?;
            }
            event_kind::EVENT_WAIT => {
                let wait: wait_event = read(bytes)?;
                if State::from_index(wait.state) == Some(State::LockWait) {
                    self.remember(HeldUp {
                        tid: wait.h.tid,
                        pid: wait.h.tgid,
                        start: wait.h.time,
                        end: wait.h.time.saturating_add(wait.duration),
                        culprit: (
                            wait.waker_tgid,
                            wait.waker_tid,
                            comm(&wait.waker_comm).into_owned(),
                        ),
                        what: State::LockWait,
                    });
                }
            }
            event_kind::EVENT_GIL => {
                let wait: gil_event = read(bytes)?;
                self.remember(HeldUp {
                    tid: wait.h.tid,
                    pid: wait.h.tgid,
                    start: wait.h.time,
                    end: wait.h.time.saturating_add(wait.duration),
                    culprit: (wait.h.tgid, wait.holder, String::new()),
                    what: State::GilWait,
                });
                self.settle(|stall| stall.event.h.tid == wait.h.tid, context, rows);
            }
            event_kind::EVENT_GC => {
                let pause: gc_event = read(bytes)?;
                self.remember(HeldUp {
                    tid: 0,
                    pid: pause.h.tgid,
                    start: pause.h.time,
                    end: pause.h.time.saturating_add(pause.duration),
                    culprit: (pause.h.tgid, pause.h.tid, comm(&pause.h.comm).into_owned()),
                    what: State::GcWait,
                });
            }
            event_kind::EVENT_THREAD_EXIT => {
                let exit: crate::record::event_header = read(bytes)?;
                self.settle(|stall| stall.event.h.tid == exit.tid, context, rows);
                self.loops.remove(&exit.tid);
                self.told.ended(exit.tid);
            }
            _ => {}
        }
        Ok(())
    }

    fn tick(&mut self, now: u64, context: &mut dyn Context, rows: &mut Rows) {
        self.settle(|stall| stall.end().saturating_add(UNTOLD) <= now, context, rows);
        // What they told stays: after an idle hour they may be told to stand as before.
        self.loops.retain(|_, known| known.heard.saturating_add(FORGET) >= now);
        while self.held_up.front().is_some_and(|old| old.end.saturating_add(FORGET) < now) {
            self.held_up.pop_front();
        }
    }

    fn finish(&mut self, _now: u64, context: &mut dyn Context, rows: &mut Rows) {
        self.settle(|_| true, context, rows);
    }
}

/// Where the loop was for most of the time. A stack was the thread's since the one before it.
fn mostly(stacks: &VecDeque<(u64, RawStack)>, start: u64, end: u64) -> Option<&RawStack> {
    let mut since = start;
    let mut places: HashMap<Place<'_>, (u64, &RawStack)> = HashMap::new();
    for (time, stack) in stacks.iter().filter(|(time, _)| (start..=end).contains(time)) {
        places.entry(Place::of(stack)).or_insert((0, stack)).0 += time.saturating_sub(since);
        since = since.max(*time);
    }
    places.into_values().max_by_key(|(ns, _)| *ns).map(|(_, stack)| stack)
}

/// Two stacks are at one place if the same functions called each other, on whatever lines.
#[derive(PartialEq, Eq, Hash)]
enum Place<'a> {
    Python(Vec<u64>),
    Native(&'a [u64]),
}

impl<'a> Place<'a> {
    fn of(stack: &'a RawStack) -> Self {
        let code = |frame: &PythonFrame| frame.code;
        match stack.python.is_empty() {
            true => Place::Native(&stack.native),
            false => Place::Python(stack.python.iter().map(code).collect()),
        }
    }
}

fn kind_name(kind: u8) -> Option<&'static str> {
    match u32::from(kind) {
        loop_kind::LOOP_EPOLL => Some("epoll"),
        loop_kind::LOOP_POLL => Some("poll"),
        loop_kind::LOOP_SELECT => Some("select"),
        _ => None,
    }
}
