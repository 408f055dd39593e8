//! Watched processes: what was found out about each, and what BPF was told of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use underspan_cpython::{GcRung, InspectError, Inspector, Interpreter};
use underspan_trackers::gc::Rung;
use underspan_trackers::{
    GcTarget, Lifecycle, LifecycleKind, ProbedBinary, ProcessConfig, Session,
};

use crate::loops::LoopProbes;
use crate::namer::Namer;
use crate::python_stacks::PythonStacks;
use crate::select::{Selector, Verdict, Why};

/// How often all processes are to be looked at, for those whose start or listen was missed.
pub(crate) const SCAN_EVERY: Duration = Duration::from_secs(10);

/// An interpreter that is starting is looked at again after this long, a look taking some 100 µs;
const FIRST_LOOK: Duration = Duration::from_millis(5);
/// each pause is this much longer than the last,
const LOOK_SLOWER: f64 = 1.2;
/// up to this.
const LAST_LOOK: Duration = Duration::from_secs(5);
/// A start whose looks have become this far apart takes longer than starts do.
const LONG_START: Duration = Duration::from_millis(500);

/// x86 has so many debug registers per CPU.
const WATCHPOINTS: usize = 4;

/// What is known of a watched process.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Why it is watched.
    pub why: Why,
    /// Its Python, or why there is none that can be read.
    pub python: Python,
    /// How its collections are seen.
    pub gc: Rung,
    /// Why not better.
    pub gc_notes: Vec<String>,
}

/// A process's interpreter.
#[derive(Clone, Debug)]
pub enum Python {
    /// Not looked at yet, or still starting: look again then.
    Starting {
        /// When.
        again: Instant,
        /// The pause before that.
        pause: Duration,
        /// What is missing yet; empty before the first look.
        why: String,
    },
    /// It runs no Python.
    None,
    /// Python of this version, and how GIL waits are seen.
    Known {
        /// As `3.11.7`.
        version: String,
        /// `seen`, or why not.
        gil: String,
        /// Whether its Python stacks can be read.
        stacks: PythonStacks,
    },
    /// There is one, and its memory is not what we know. Nothing is read from it.
    Refused(String),
}

impl Python {
    /// When to look at it again.
    fn look_again(&self) -> Option<Instant> {
        match self {
            Python::Starting { again, .. } => Some(*again),
            Python::Known { stacks, .. } => stacks.again(),
            Python::None | Python::Refused(_) => None,
        }
    }
}

/// All of them.
pub(crate) struct Processes {
    selector: Selector,
    inspector: Inspector,
    watched: BTreeMap<u32, Watched>,
    /// Addresses with a watchpoint, and the processes they are for.
    watchpoints: BTreeMap<u64, BTreeSet<u32>>,
    loops: LoopProbes,
    /// Processes about which something new is known.
    changed: BTreeSet<u32>,
    /// Processes whose interpreter has come up.
    pythons: Vec<u32>,
}

impl Processes {
    pub(crate) fn new(selector: Selector) -> Self {
        Processes {
            selector,
            inspector: Inspector::new(),
            watched: BTreeMap::new(),
            watchpoints: BTreeMap::new(),
            loops: LoopProbes::default(),
            changed: BTreeSet::new(),
            pythons: Vec::new(),
        }
    }

    pub(crate) fn watched(&self) -> &BTreeMap<u32, Watched> {
        &self.watched
    }

    /// Processes about which something new is known since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.changed)
    }

    /// Processes whose interpreter has come up since the last call.
    pub(crate) fn take_pythons(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.pythons)
    }

    /// Never watch these.
    pub(crate) fn never(&mut self, pids: &[u32]) {
        pids.iter().for_each(|pid| self.selector.never(*pid));
    }

    /// Looks at every process on the host.
    pub(crate) fn scan(&mut self, session: &mut Session) {
        let watched = &self.watched;
        for (pid, why) in self.selector.scan(|pid| watched.contains_key(&pid)) {
            self.watch(session, pid, why);
        }
    }

    /// A process or thread came, changed or went. Its name knows already: see [`Namer::happened`].
    pub(crate) fn happened(&mut self, event: &Lifecycle, session: &mut Session, namer: &mut Namer) {
        match event.kind {
            LifecycleKind::ProcessFork => {
                self.forked(event.parent, event.pid);
                namer.stacks().forked(event.parent, event.pid);
            }
            LifecycleKind::ProcessExec => {
                namer.stacks().began_program(event.pid);
                self.consider(session, event.pid);
            }
            LifecycleKind::Listen => self.consider(session, event.pid),
            LifecycleKind::ProcessExit => {
                self.ended(session, event.pid);
                namer.stacks().ended(event.pid);
            }
            LifecycleKind::ThreadStart | LifecycleKind::ThreadExit => {}
        }
    }

    /// A process started a program or began to accept connections: is it to be watched now?
    fn consider(&mut self, session: &mut Session, pid: u32) {
        match self.selector.decide(pid) {
            Verdict::Watch { why } => self.watch(session, pid, why),
            Verdict::Ignore { why } => {
                if self.watched.remove(&pid).is_some() {
                    self.release(session, pid);
                    self.loops.forget(session, pid);
                    tracing::debug!(pid, "no longer watched: {why}");
                    if let Err(error) = session.unwatch(pid) {
                        tracing::warn!(pid, "{error}");
                    }
                }
            }
        }
    }

    /// A watched process forked: BPF watches the child already, with what it knew of the parent.
    fn forked(&mut self, parent: u32, child: u32) {
        self.selector.forked(parent, child);
        // A forked process has its parent's addresses.
        for pids in self.watchpoints.values_mut().filter(|pids| pids.contains(&parent)) {
            pids.insert(child);
        }
        if let Some(watched) = self.watched.get(&parent) {
            if matches!(watched.python, Python::Known { .. }) {
                self.pythons.push(child);
            }
            self.watched.insert(child, watched.clone());
            self.changed.insert(child);
            self.loops.watch(child);
        }
    }

    /// A process ended.
    fn ended(&mut self, session: &mut Session, pid: u32) {
        self.watched.remove(&pid);
        self.changed.remove(&pid);
        self.release(session, pid);
        self.loops.forget(session, pid);
    }

    /// Gives debug registers back that only this process needed.
    fn release(&mut self, session: &mut Session, pid: u32) {
        self.watchpoints.retain(|address, pids| {
            pids.remove(&pid);
            if pids.is_empty() {
                session.detach_gc(&GcTarget::Watchpoint(*address));
            }
            !pids.is_empty()
        });
    }

    /// Looks again at interpreters that were starting. Returns when to call this next.
    pub(crate) fn look_again(&mut self, session: &mut Session) -> Option<Instant> {
        let now = Instant::now();
        let due: Vec<_> = self
            .watched
            .iter()
            .filter(|(_, watched)| watched.python.look_again().is_some_and(|again| again <= now))
            .map(|(pid, _)| *pid)
            .collect();
        for pid in due {
            self.inspect(session, pid);
        }
        let next = |watched: &Watched| watched.python.look_again();
        let loops = self.loops.attach_due(session);
        self.watched.values().filter_map(next).chain(loops).min()
    }

    fn watch(&mut self, session: &mut Session, pid: u32, why: Why) {
        self.release(session, pid);
        // BPF starts with the process's threads at once; what its Python is may come later.
        if let Err(error) = session.watch(pid, ProcessConfig::default()) {
            tracing::warn!(pid, "{error}");
            return;
        }
        let starting =
            Python::Starting { again: Instant::now(), pause: FIRST_LOOK, why: String::new() };
        let watched = Watched { why, python: starting, gc: Rung::None, gc_notes: Vec::new() };
        self.watched.insert(pid, watched);
        self.changed.insert(pid);
        self.loops.watch(pid);
        self.inspect(session, pid);
    }

    fn inspect(&mut self, session: &mut Session, pid: u32) {
        let Ok(id) = i32::try_from(pid) else { return };
        let outcome = self.inspector.inspect(id);
        let Some(watched) = self.watched.get_mut(&pid) else { return };
        if let Python::Known { stacks, .. } = &mut watched.python {
            if stacks.look_again(session, pid, outcome.as_ref().ok()) {
                self.changed.insert(pid);
            }
            return;
        }
        let pause = match watched.python {
            Python::Starting { pause, .. } => pause,
            _ => FIRST_LOOK,
        };
        let starting = |why| Python::Starting {
            again: Instant::now() + pause,
            pause: pause.mul_f64(LOOK_SLOWER).min(LAST_LOOK),
            why,
        };
        match outcome {
            Ok(interpreter) => {
                let known = apply(session, pid, &interpreter, &mut self.watchpoints);
                (watched.python, watched.gc, watched.gc_notes) = known;
                self.pythons.push(pid);
            }
            Err(InspectError::NotReady(why)) => {
                watched.python = starting(why.clone());
                let slower = pause.mul_f64(LOOK_SLOWER);
                if !(pause < LONG_START && slower >= LONG_START) {
                    return;
                }
                // It may never be: its memory may not be what we know. Told once, and tried on.
                tracing::warn!(pid, "its Python is not read yet: {why}");
            }
            // A launcher may be about to load one: look a few times.
            Err(InspectError::NotPython) if pause < Duration::from_secs(1) => {
                watched.python = starting(String::new());
                return;
            }
            Err(InspectError::NotPython) => watched.python = Python::None,
            Err(InspectError::Gone) => return,
            Err(error) => {
                tracing::warn!(pid, "its Python is not read: {error}");
                watched.python = Python::Refused(error.to_string());
            }
        }
        self.changed.insert(pid);
    }
}

/// Tells BPF of an interpreter, and attaches to its collector by the best rung that works.
fn apply(
    session: &mut Session,
    pid: u32,
    interpreter: &Interpreter,
    watchpoints: &mut BTreeMap<u64, BTreeSet<u32>>,
) -> (Python, Rung, Vec<String>) {
    let gil_range = interpreter.gil_wait_range();
    let mut config = ProcessConfig {
        gil: if gil_range.is_ok() { interpreter.gil } else { 0 },
        tstate_pthread_offset: interpreter.tstate_thread_id_offset as u32,
        gc_collecting: interpreter.gc.collecting,
        gc_stats: interpreter.gc.generation_stats,
        ..ProcessConfig::default()
    };
    let mut notes = interpreter.gc.missing.clone();
    for rung in &interpreter.gc.rungs {
        let target = target(interpreter, rung);
        if let GcTarget::Watchpoint(address) = target
            && !watchpoints.contains_key(&address)
            && watchpoints.len() >= WATCHPOINTS
        {
            notes.push(format!("no watchpoint: all {WATCHPOINTS} debug registers are taken"));
            continue;
        }
        match session.attach_gc(&target) {
            Ok(()) => {
                config.gc_rung = target.rung();
                if let GcTarget::Watchpoint(address) = target {
                    watchpoints.entry(address).or_default().insert(pid);
                }
                break;
            }
            Err(error) => notes.push(error.to_string()),
        }
    }
    let stacks = PythonStacks::find(interpreter, &mut config);
    if let Err(error) = session.set_config(pid, config) {
        notes.push(error.to_string());
    }
    let gil = gil_range.map_or_else(str::to_owned, |_| "seen".to_owned());
    let version = interpreter.version.to_string();
    (Python::Known { version, gil, stacks }, config.gc_rung, notes)
}

fn target(interpreter: &Interpreter, rung: &GcRung) -> GcTarget {
    let binary = || ProbedBinary {
        path: interpreter.binary.path.clone(),
        dev: interpreter.binary.dev,
        inode: interpreter.binary.inode,
    };
    match rung {
        GcRung::Usdt { .. } => GcTarget::Usdt(binary()),
        GcRung::Symbol { functions, .. } => {
            GcTarget::Symbol(binary(), functions.iter().map(|f| f.entry_offset()).collect())
        }
        GcRung::Watchpoint { address } => GcTarget::Watchpoint(*address),
    }
}
