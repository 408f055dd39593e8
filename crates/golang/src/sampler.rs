//! Looks at a process's goroutines again and again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use underspan_remote::word;

use crate::Error;
use crate::cohort::{self, Part as Chosen};
use crate::functions::Functions;
use crate::goroutine::{Fields, Life, Status};
use crate::layout::G_SIZE;
use crate::runtime::Runtime;
use crate::unwind::{Part, StackEnd, Unwinder, Walk};

/// For so long the same goroutines are looked at.
const SAME_CHOICE_NS: u64 = 1_000_000_000;
/// So often it is found out who of very many goroutines lives.
const CENSUS_NS: u64 = 10_000_000_000;
/// A round stands for no more than this: what was before is not known.
const LONGEST_INTERVAL_NS: u64 = 5_000_000_000;
/// Bytes of a stack that are read together with its goroutine,
const WINDOW: u64 = 8192;
/// below where it was a moment ago, should it be in a deeper call by now,
const MARGIN: u64 = 512;
/// at first, where it is elsewhere, and at the most.
const FIRST_READ: u64 = 2048;
const LARGEST_READ: u64 = 256 << 10;
/// Stacks that are kept once each.
const KEPT_STACKS: usize = 8192;
/// Goroutine functions whose names are kept.
const KEPT_NAMES: usize = 8192;
/// In the names of such wrappers, as `main.main.gowrap1`.
const WRAPPER: &str = ".gowrap";

/// A goroutine in one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Its id; never used twice in a process.
    pub goid: u64,
    /// What it does.
    pub status: Status,
    /// What it waits for, in the runtime's words; empty unless it waits.
    pub wait_reason: Arc<str>,
    /// For how long it has done this, as far as is known: at least so many nanoseconds.
    pub wait_ns: u64,
    /// Nanoseconds of goroutine time that the sample stands for.
    pub weight_ns: u64,
    /// The thread it is on (as we number it); 0 if on none.
    pub tid: u32,
    /// Code addresses, innermost first; all but the first are return addresses. The same allocation
    /// for the same stack.
    pub stack: Arc<[u64]>,
    /// Why the walk ended.
    pub end: StackEnd,
    /// The function it was started with, as `main.(*consumer).run`.
    pub function: Arc<str>,
}

/// One look.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// What was seen.
    pub samples: Vec<Sample>,
    /// Goroutines that changed while they were read: left out, and to be counted as lost.
    pub torn: u64,
    /// Goroutines in the runtime's list, dead ones with them.
    pub listed: u64,
}

/// The name of a function that goroutines are started with.
#[derive(Clone, Debug)]
struct Name {
    name: Arc<str>,
    /// `go c.run(x)` starts a wrapper that the compiler made, whose name tells nothing. What it calls,
    /// the first stack shows.
    is_wrapper: bool,
}

/// A stack that was walked.
struct Walked {
    frames: Vec<u64>,
    end: StackEnd,
    /// The first part of the stack was not all of it: what was read later may be of another moment.
    read_more: bool,
}

/// A stop of a goroutine that was seen, and may still last.
#[derive(Debug)]
struct Stop {
    fields: Fields,
    /// When it was seen first.
    since: u64,
    seen: u64,
    stack: Arc<[u64]>,
    end: StackEnd,
}

/// Samples one process.
#[derive(Debug)]
pub struct Sampler {
    runtime: Runtime,
    unwinder: Unwinder,
    stops: HashMap<u64, Stop>,
    stacks: HashSet<Arc<[u64]>>,
    names: HashMap<u64, Name>,
    threads: HashMap<u32, u32>,
    alive: Vec<bool>,
    census: Option<u64>,
    choice: Vec<Chosen>,
    chosen_at: Option<u64>,
    last: Option<u64>,
    none: Arc<str>,
    no_stack: Arc<[u64]>,
}

impl Sampler {
    /// Nothing has been looked at yet.
    pub fn new(runtime: Runtime) -> Self {
        Sampler {
            runtime,
            unwinder: Unwinder::default(),
            stops: HashMap::new(),
            stacks: HashSet::new(),
            names: HashMap::new(),
            threads: HashMap::new(),
            alive: Vec::new(),
            census: None,
            choice: Vec::new(),
            chosen_at: None,
            last: None,
            none: Arc::from(""),
            no_stack: Arc::from([]),
        }
    }

    /// The process's runtime.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Looks at the goroutines, at monotonic time `now`. Samples stand for the time since the last
    /// round; the first round stands for none and has no samples.
    ///
    /// # Errors
    /// [`Error::Gone`] when the process has ended; [`Error::SelfCheck`] if memory no longer is what
    /// it was.
    pub fn round(&mut self, now: u64) -> Result<Round, Error> {
        let (pointer, length) = self.runtime.extent()?;
        self.choose(pointer, length, now)?;
        let mut round = Round { listed: length, ..Round::default() };
        let interval = match self.last.replace(now) {
            Some(last) => now.saturating_sub(last).min(LONGEST_INTERVAL_NS),
            None => return Ok(round),
        };
        let choice = std::mem::take(&mut self.choice);
        let mut outcome = Ok(());
        for part in choice.iter().filter(|part| !part.indexes.is_empty()) {
            let weight = interval.saturating_mul(part.each_stands_for);
            outcome = outcome.and_then(|()| self.look(pointer, part, weight, now, &mut round));
        }
        self.choice = choice;
        outcome?;
        self.stops.retain(|_, stop| stop.seen == now);
        Ok(round)
    }

    /// Decides whom to look at.
    fn choose(&mut self, pointer: u64, length: u64, now: u64) -> Result<(), Error> {
        let since = |at: Option<u64>| at.map_or(u64::MAX, |at| now.saturating_sub(at));
        if cohort::all_fit(length) {
            if self.choice.len() != 1
                || self.choice.iter().any(|c| c.indexes.len() as u64 != length)
            {
                self.choice = vec![cohort::all(length)];
            }
            return Ok(());
        }
        if since(self.census) >= CENSUS_NS {
            let indexes: Vec<u64> = (0..length).collect();
            self.alive = self.runtime.statuses(pointer, &indexes)?;
            self.census = Some(now);
        }
        if since(self.chosen_at) >= SAME_CHOICE_NS {
            self.choice = cohort::choose(&self.alive, length).into();
            self.chosen_at = Some(now);
        }
        Ok(())
    }

    fn look(
        &mut self,
        pointer: u64,
        part: &Chosen,
        weight: u64,
        now: u64,
        round: &mut Round,
    ) -> Result<(), Error> {
        let addresses = self.runtime.addresses(pointer, &part.indexes)?;
        let blocks = self.runtime.blocks(&addresses)?;
        let mut known = Vec::new();
        let mut new = Vec::new();
        for (address, block) in addresses.iter().zip(&blocks) {
            let Some(block) = block else {
                round.torn += 1;
                continue;
            };
            let fields = self.fields(block);
            match fields.life() {
                Life::Not => {}
                Life::Unknown => round.torn += 1,
                Life::Alive(status) => {
                    let same = self.stops.get(&fields.goid);
                    if same.is_some_and(|stop| stop.fields.is_same_stop(&fields)) {
                        known.push((fields, status));
                    } else {
                        new.push((*address, fields));
                    }
                }
            }
        }
        let new = self.stop_by(new, now, &mut round.torn)?;
        for (fields, status) in known.into_iter().chain(new) {
            let tid = self.thread(&fields, status)?;
            let stack = self.stops.get(&fields.goid).map(|stop| Arc::clone(&stop.stack));
            let name = self.name(fields.start_pc, stack.as_deref().unwrap_or_default());
            if let Some(sample) = self.sample(&fields, status, tid, name, weight, now) {
                round.samples.push(sample);
            }
        }
        Ok(())
    }

    fn fields(&self, block: &[u8; G_SIZE]) -> Fields {
        Fields::read(block, &self.runtime.layout)
    }

    /// Walks the stacks of goroutines that were not seen like this before. They may wait for microseconds
    /// only: each is read again, with its stack, and once more, by one system call. If that saw two states,
    /// it is left out.
    fn stop_by(
        &mut self,
        new: Vec<(u64, Fields)>,
        now: u64,
        torn: &mut u64,
    ) -> Result<Vec<(Fields, Status)>, Error> {
        let windows: Vec<_> = new.iter().map(|(_, fields)| window(fields)).collect();
        let ranges: Vec<_> = new
            .iter()
            .zip(&windows)
            .flat_map(|((address, _), window)| [(*address, G_SIZE), *window, (*address, G_SIZE)])
            // Empty ranges are no reads: the place is kept.
            .filter(|(_, len)| *len > 0)
            .collect();
        let mut read = self.runtime.memory.gather(&ranges)?.into_iter();
        let mut kept = Vec::with_capacity(new.len());
        for ((address, _), (from, len)) in new.into_iter().zip(windows) {
            let first = read.next().flatten();
            let bytes = if len > 0 { read.next().flatten() } else { None };
            let last = read.next().flatten();
            let (Some(fields), Some(again)) = (self.parsed(first), self.parsed(last)) else {
                *torn += 1;
                continue;
            };
            let status = match fields.life() {
                Life::Alive(status) => status,
                Life::Not => continue,
                Life::Unknown => {
                    *torn += 1;
                    continue;
                }
            };
            let mut same = fields.is_same_stop(&again);
            let mut walked =
                Walked { frames: Vec::new(), end: StackEnd::Running, read_more: false };
            if same && fields.has_still_stack() {
                let above = bytes.as_deref().and_then(|bytes| {
                    let skipped = usize::try_from(fields.sp.checked_sub(from)?).ok()?;
                    bytes.get(skipped..).filter(|above| !above.is_empty())
                });
                walked = self.walk(&fields, above)?;
                if walked.read_more {
                    let block = self.runtime.blocks(&[address])?.into_iter().next().flatten();
                    same = block.is_some_and(|b| self.fields(&b).is_same_stop(&fields));
                }
            }
            // One that runs is expected to change; that it ran is what is told of it.
            if !same && status != Status::Running {
                *torn += 1;
                self.stops.remove(&fields.goid);
                continue;
            }
            let (stack, end) = (self.intern(walked.frames), walked.end);
            self.stops.insert(fields.goid, Stop { fields, since: now, seen: now, stack, end });
            kept.push((fields, status));
        }
        Ok(kept)
    }

    fn parsed(&self, block: Option<Vec<u8>>) -> Option<Fields> {
        Some(self.fields(block?.first_chunk()?))
    }

    /// `above`: what lies from the stack pointer on, as far as it was read.
    fn walk(&mut self, fields: &Fields, above: Option<&[u8]>) -> Result<Walked, Error> {
        let mut read_more = false;
        let end = |end| Ok(Walked { frames: Vec::new(), end, read_more: true });
        let mut bytes = above.unwrap_or_default().to_vec();
        let high = fields.stack.1;
        loop {
            let part = Part { bytes: &bytes, sp: fields.sp, high };
            let functions = &self.runtime.binary.functions;
            match self.unwinder.walk(functions, self.runtime.bias, fields.pc, &part) {
                Walk::Done(frames, end) => return Ok(Walked { frames, end, read_more }),
                Walk::Short => {
                    let most = (high - fields.sp).min(LARGEST_READ);
                    let more = (bytes.len() as u64 * 8).max(FIRST_READ).min(most);
                    if more <= bytes.len() as u64 {
                        return end(StackEnd::TooDeep);
                    }
                    read_more = true;
                    match self.runtime.memory.bytes(fields.sp, more as usize) {
                        Ok(read) => bytes = read,
                        Err(underspan_remote::ReadError::Fault(_)) => {
                            return end(StackEnd::Unreadable);
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
    }

    fn intern(&mut self, frames: Vec<u64>) -> Arc<[u64]> {
        if frames.is_empty() {
            return Arc::clone(&self.no_stack);
        }
        if let Some(known) = self.stacks.get(&frames[..]) {
            return Arc::clone(known);
        }
        if self.stacks.len() >= KEPT_STACKS {
            self.stacks.clear();
        }
        let stack: Arc<[u64]> = frames.into();
        self.stacks.insert(Arc::clone(&stack));
        stack
    }

    fn sample(
        &mut self,
        fields: &Fields,
        status: Status,
        tid: u32,
        function: Arc<str>,
        weight_ns: u64,
        now: u64,
    ) -> Option<Sample> {
        let stop = self.stops.get_mut(&fields.goid)?;
        stop.seen = now;
        let waits = status == Status::Waiting;
        // The collector notes when it found the goroutine waiting; 0 if it has not looked since.
        let noted = (waits && fields.wait_since != 0).then_some(fields.wait_since);
        let since = noted.map_or(stop.since, |noted| noted.min(stop.since));
        let reasons = &self.runtime.reasons;
        Some(Sample {
            goid: fields.goid,
            status,
            wait_reason: if waits {
                reasons.name(fields.wait_reason)
            } else {
                Arc::clone(&self.none)
            },
            wait_ns: now.saturating_sub(since),
            weight_ns,
            tid,
            stack: Arc::clone(&stop.stack),
            end: stop.end,
            function,
        })
    }

    /// The thread that a goroutine is on.
    fn thread(&mut self, fields: &Fields, status: Status) -> Result<u32, Error> {
        if fields.m == 0 || !matches!(status, Status::Running | Status::Syscall) {
            return Ok(0);
        }
        let at = fields.m.saturating_add(self.runtime.layout.procid as u64);
        let id = match self.runtime.memory.block::<8>(at) {
            Ok(bytes) => word(&bytes, 0),
            Err(underspan_remote::ReadError::Gone) => return Err(Error::Gone),
            Err(_) => return Ok(0),
        };
        let Ok(id) = u32::try_from(id) else { return Ok(0) };
        if !self.threads.contains_key(&id) {
            self.threads = self.runtime.process.threads();
            // Also if it is not there: it is not looked for again and again.
            self.threads.entry(id).or_insert(0);
        }
        Ok(self.threads.get(&id).copied().unwrap_or(0))
    }

    /// The name of the function that begins at `pc`, or of the one that it is a wrapper of.
    fn name(&mut self, pc: u64, stack: &[u64]) -> Arc<str> {
        if self.names.len() >= KEPT_NAMES {
            self.names.clear();
        }
        let (functions, bias) = (&self.runtime.binary.functions, self.runtime.bias);
        let known = self.names.entry(pc).or_insert_with(|| {
            let name = functions.name(pc.wrapping_sub(bias)).unwrap_or_default();
            Name { is_wrapper: name.contains(WRAPPER), name: name.into() }
        });
        if known.is_wrapper
            && let Some(called) = called_by(functions, bias, &known.name, stack)
        {
            *known = Name { name: called.into(), is_wrapper: false };
        }
        Arc::clone(&known.name)
    }
}

/// Where a goroutine's stack probably is in use: address and length. Nothing, if it has none.
fn window(fields: &Fields) -> (u64, usize) {
    let (low, high) = fields.stack;
    if low >= high {
        return (0, 0);
    }
    let top = high.saturating_sub(WINDOW).max(low);
    let is_deeper = low < fields.sp && fields.sp < top;
    let from = if is_deeper { fields.sp.saturating_sub(MARGIN).max(low) } else { top };
    (from, (high - from).min(WINDOW) as usize)
}

/// What the outermost function of this name calls: it may be inlined there.
fn called_by(functions: &Functions, bias: u64, name: &str, stack: &[u64]) -> Option<String> {
    let mut from_outside = stack.iter().rev().flat_map(|pc| {
        // A return address may already be beyond what called.
        functions.locate(pc.wrapping_sub(bias).wrapping_sub(1))
    });
    from_outside.find(|at| at.function == name)?;
    from_outside.next().map(|at| at.function).filter(|called| !called.starts_with("runtime."))
}
