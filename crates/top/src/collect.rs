//! From what the kernel tells to what is shown.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use underspan_agent::{Live, LiveOptions, OpenError, ProgramCost, Python, Usage, monotonic_ns};
use underspan_model::{Ledger, State};
use underspan_trackers::{Observation, Sample, ThreadSnapshot, WaitEnded};

use crate::asked::{Asked, Waiting};
use crate::culprits::Culprits;
use crate::free::Servers;
use crate::requests::InFlight;
use crate::spent::Spent;
use crate::stack::{Current, Stacks};
use crate::view::{Cost, Culprit, Fault, Process, Request, Thread, View};

/// Watches, and tells what was seen in each interval.
pub struct Watch {
    live: Live,
    /// When the interval began, and what each thread had done by then.
    began: u64,
    before: HashMap<u32, (u64, Ledger)>,
    usage: Usage,
    programs: Option<ProgramCost>,
    requests: InFlight,
    servers: Servers,
    stacks: Stacks,
    asked: Asked,
    waits: Vec<WaitEnded>,
    samples: HashMap<u32, Sample>,
}

/// Waits that are kept of one interval: in a flood the rest is left out.
const MOST_WAITS: usize = 65_536;

impl Watch {
    /// Loads and attaches the programs. Needs root.
    ///
    /// # Errors
    /// If this kernel or user cannot have them; the message says what to do.
    pub fn open(options: LiveOptions) -> Result<Self, OpenError> {
        let live = Live::open(options)?;
        let (usage, programs) = live.cost()?;
        Ok(Watch {
            live,
            began: monotonic_ns()?,
            before: HashMap::new(),
            usage,
            programs,
            requests: InFlight::default(),
            servers: Servers::default(),
            // Opens the kernel's symbols, as only root may.
            stacks: Stacks::new(),
            asked: Asked::default(),
            waits: Vec::new(),
            samples: HashMap::new(),
        })
    }

    /// Begins to watch, and with the first interval.
    ///
    /// # Errors
    /// If the programs cannot be read.
    pub fn start(&mut self) -> Result<(), OpenError> {
        self.live.watch(&[std::process::id()]);
        self.view()?;
        Ok(())
    }

    /// Takes what has happened, waiting for it up to `timeout`.
    ///
    /// # Errors
    /// If the programs cannot be read any more.
    pub fn drain(&mut self, timeout: Duration) -> Result<(), OpenError> {
        let Watch { live, requests, servers, waits, samples, .. } = self;
        live.drain(timeout, |observation| match observation {
            // A thread that waits for a lock outside any request may just have nothing to do.
            Observation::Wait(wait) => {
                let idle = wait.state == State::LockWait && !requests.serves(wait.tid);
                if !idle && wait.by.1 != 0 && waits.len() < MOST_WAITS {
                    waits.push(wait);
                }
            }
            Observation::Read(request) => {
                servers.read(&request);
                requests.read(request);
            }
            Observation::Answered { id, ledger, .. } => {
                servers.answered(id, ledger.as_ref());
                requests.answered(id);
            }
            Observation::Sample(sample) => {
                samples.insert(sample.tid, sample);
            }
            Observation::Ended { pid } => requests.process_ended(pid),
            Observation::Collection { .. } => {}
        })
    }

    /// Ends the interval, and begins the next.
    ///
    /// # Errors
    /// If the programs cannot be read any more.
    pub fn view(&mut self) -> Result<View, OpenError> {
        let now = monotonic_ns()?;
        let snapshots = self.live.threads()?;
        let interval = self.began..now;
        let culprits = self.culprits(&snapshots, &interval);
        let requests = self.requests(&snapshots, now);
        let processes = self.processes(&snapshots, now);
        let cost = self.cost()?;
        self.samples.retain(|tid, _| self.before.contains_key(tid));
        self.began = now;
        Ok(View {
            host: self.live.host().to_owned(),
            time: self.live.unix_ns(now),
            interval_ns: now.saturating_sub(interval.start),
            processes,
            requests,
            culprits,
            cost,
        })
    }

    /// Where a thread is now, and the stack of it that was taken last.
    pub(crate) fn stack(&mut self, pid: u32, tid: u32) -> Current {
        self.stacks.read(pid, tid, self.samples.get(&tid))
    }

    fn processes(&mut self, snapshots: &[ThreadSnapshot], now: u64) -> Vec<Process> {
        let mut processes = BTreeMap::<u32, Process>::new();
        let mut after = HashMap::with_capacity(snapshots.len());
        let (tids, pids): (HashSet<_>, HashSet<_>) =
            snapshots.iter().map(|snapshot| (snapshot.tid, snapshot.pid)).unzip();
        self.servers.retain(|tid| tids.contains(&tid));
        self.asked.begin(&tids, &pids);
        for snapshot in snapshots {
            let ledger = until(snapshot, now);
            let done = match self.before.get(&snapshot.tid) {
                Some((born, before)) if *born == snapshot.born => growth(&ledger, before),
                _ => ledger,
            };
            after.insert(snapshot.tid, (snapshot.born, ledger));
            let (idle, idle_ns) = self.idle(snapshot, &ledger, &done, now);
            let spent = Spent { ledger: done, idle_ns };
            let name = self.live.name(snapshot.pid, snapshot.tid, &snapshot.comm);
            let python = self.live.process(snapshot.pid).map(|watched| &watched.python);
            let process = processes.entry(snapshot.pid).or_insert_with(|| Process {
                pid: snapshot.pid,
                process: name.process.to_string(),
                python: match python {
                    Some(Python::Known { version, .. }) => version.clone(),
                    _ => String::new(),
                },
                ..Process::default()
            });
            process.spent += spent;
            process.threads.push(Thread {
                tid: snapshot.tid,
                thread: name.name.to_string(),
                state: state(snapshot),
                idle,
                state_for_ns: state_for(snapshot, now),
                spent,
            });
        }
        self.before = after;
        let mut processes: Vec<_> = processes.into_values().collect();
        for process in &mut processes {
            process.threads.sort_by_key(|thread| thread.tid);
        }
        processes
    }

    /// Whether the thread, if it waits for a lock, merely waits for something to do; and how long it did in
    /// the interval.
    fn idle(
        &mut self,
        thread: &ThreadSnapshot,
        ledger: &Ledger,
        done: &Ledger,
        now: u64,
    ) -> (bool, u64) {
        let (end, waited) = (ledger[State::LockWait], done[State::LockWait]);
        let lock_wait = end.saturating_sub(waited)..end;
        let free = self.servers.free(thread.tid, &lock_wait, thread.in_request);
        if state(thread) != State::LockWait || thread.in_request {
            return (false, free.unwrap_or(0));
        }
        let this = now.saturating_sub(thread.waiting_since.max(self.began)).min(waited);
        match self.by_stack(thread, free.is_some(), now) {
            Some(true) => (true, free.unwrap_or(0).max(this)),
            Some(false) => (false, free.unwrap_or(0).min(waited - this)),
            None => {
                let is_free = self.servers.is_free(thread.tid, thread.in_request);
                (is_free, free.unwrap_or(0))
            }
        }
    }

    /// What the stack says of a wait for a lock that goes on; `None`: nothing. A thread that serves no requests
    /// has only its pool's queue to wait in: whatever else it waits for may be its work.
    fn by_stack(&mut self, thread: &ThreadSnapshot, serves: bool, now: u64) -> Option<bool> {
        let python = self.live.process(thread.pid).map(|watched| &watched.python);
        if !matches!(python, Some(Python::Known { .. })) {
            return None;
        }
        let wait = Waiting {
            pid: thread.pid,
            tid: thread.tid,
            since: thread.waiting_since,
            for_ns: state_for(thread, now),
            outside_requests: serves,
        };
        self.asked.is_idle(&wait, &mut self.stacks)
    }

    fn requests(&mut self, snapshots: &[ThreadSnapshot], now: u64) -> Vec<Request> {
        let threads: HashMap<_, _> = snapshots.iter().map(|thread| (thread.tid, thread)).collect();
        let Watch { live, requests, .. } = self;
        let shown = requests.oldest_first().into_iter().map(|request| {
            let thread = threads.get(&request.tid);
            Request {
                request_id: format!("{:016x}", request.id),
                pid: request.pid,
                tid: request.tid,
                thread: live.name(request.pid, request.tid, "").name.to_string(),
                age_ns: now.saturating_sub(request.ready),
                method: request.method.clone(),
                path: request.path.clone(),
                peer: request.peer.clone(),
                state: thread.map(|thread| state(thread)),
                state_for_ns: thread.map_or(0, |thread| state_for(thread, now)),
            }
        });
        shown.collect()
    }

    fn culprits(
        &mut self,
        snapshots: &[ThreadSnapshot],
        interval: &std::ops::Range<u64>,
    ) -> Vec<Culprit> {
        let mut culprits = Culprits::default();
        for wait in self.waits.drain(..) {
            culprits.ended(&wait, interval);
        }
        let collecting =
            |tid| snapshots.iter().any(|thread| thread.tid == tid && state(thread) == State::GcRun);
        for waiting in snapshots.iter().filter(|thread| state(thread) == State::GilWait) {
            let holder = waiting.gil_holder;
            let fault = if collecting(holder) { Fault::Collection } else { Fault::Gil };
            let by = (waiting.pid, holder);
            let waited = waiting.waiting_since..interval.end;
            culprits.add(fault, by, waiting.tid, waited, interval);
        }
        let named = culprits.worst_first().into_iter().map(|((fault, pid, tid), share)| {
            let name = self.live.name(pid, tid, "");
            Culprit {
                fault,
                pid,
                tid,
                thread: name.name.to_string(),
                process: name.process.to_string(),
                blocked_ns: share.blocked_ns,
                victims: share.victims(),
            }
        });
        named.collect()
    }

    fn cost(&mut self) -> Result<Cost, OpenError> {
        let (usage, programs) = self.live.cost()?;
        let cpu = usage.cpu.saturating_sub(self.usage.cpu);
        let bpf = programs
            .zip(self.programs)
            .map(|(programs, before)| programs.run_ns.saturating_sub(before.run_ns));
        (self.usage, self.programs) = (usage, programs);
        Ok(Cost {
            cpu_ns: cpu.as_nanos() as u64,
            bpf_ns: bpf,
            rss_bytes: usage.rss_bytes,
            lost: self.live.lost()?,
        })
    }
}

fn state(thread: &ThreadSnapshot) -> State {
    State::from_index(thread.state).unwrap_or(State::Other)
}

fn state_for(thread: &ThreadSnapshot, now: u64) -> u64 {
    let since = if state(thread).is_blocked() && thread.waiting_since != 0 {
        thread.waiting_since
    } else {
        thread.since
    };
    now.saturating_sub(since)
}

/// The ledger with what the thread does now, charged up to now.
fn until(thread: &ThreadSnapshot, now: u64) -> Ledger {
    let mut ledger = thread.ledger;
    ledger[state(thread)] += now.saturating_sub(thread.since);
    ledger
}

/// What was added. A wait that was charged to one state may turn out to have been another.
fn growth(now: &Ledger, before: &Ledger) -> Ledger {
    let mut growth = Ledger::default();
    for ((state, now), before) in now.iter().zip(before.cells()) {
        growth[state] = now.saturating_sub(*before);
    }
    growth
}
