//! What threads are called.
//!
//! Events carry thread ids; rows want names, and ids as the process sees them. A name is looked up
//! once and kept for at least a minute after the thread's end, because events are decoded after it.
//! Python's names win: before 3.14 CPython does not pass them on to the kernel, and the kernel cuts
//! at 15 bytes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

mod python;
#[cfg(test)]
mod tests;
mod thread;

pub use python::{PythonReader, ReadNames, Reading};
pub use thread::ThreadName;
use thread::{Backoff, Observed, Thread};

/// How long a name outlives its thread at least.
const KEEP: Duration = Duration::from_secs(60);

/// A thread is looked at again soon after its start (programs name threads then), later rarely.
const CHECK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(8));

/// The same for asking Python about a thread that it has not named.
const ASK: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(60));

/// How soon after its start a thread's name is read, and again if it was not there yet: so often, after four
/// times as long each time.
const FRESH: Duration = Duration::from_millis(3);
const FRESH_LOOKS: u32 = 4;

/// All readings of Python processes in one second; one takes about a millisecond.
const READS_PER_SECOND: u32 = 40;

/// Nor may they take more than this share of the time: with thousands of threads one takes long.
const READING_SHARE: u32 = 10;

/// Readings that take less are none the rarer for it.
const READ_QUICKLY: Duration = Duration::from_millis(4);

/// How often ended threads are looked for and forgotten.
const SWEEP_EVERY: Duration = Duration::from_secs(20);

/// Above this many, names of ended threads are forgotten early. About 20 MiB.
const MAX_THREADS: usize = 65_536;

/// What the calling thread has used of a CPU: on a busy machine a reading takes longer, and costs no more.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.map_or(Duration::ZERO, Duration::from)
}

/// What is remembered of a process.
#[derive(Debug)]
struct Owner {
    starttime: u64,
    comm: Arc<str>,
    /// When to look whether it is still called so.
    check: Backoff,
    /// Its Python names have been read.
    python: bool,
    /// When its Python names may be read again. A process without Python is left alone ever longer.
    read: Backoff,
}

/// New threads of a process, whose names are read soon.
#[derive(Debug)]
struct Fresh {
    tids: Vec<u32>,
    /// When, and after how long if they have none then.
    at: Instant,
    pause: Duration,
    looks: u32,
}

/// Names threads. Lookup of a known thread is one hash.
#[derive(Debug)]
pub struct Names<R = PythonReader> {
    threads: HashMap<u32, Thread>,
    owners: HashMap<u32, Owner>,
    /// Processes with new threads.
    fresh: HashMap<u32, Fresh>,
    reader: R,
    reads: (Instant, u32),
    /// When the next one may be, after one that took long.
    read_again: Instant,
    swept: Instant,
    nobody: Arc<ThreadName>,
}

impl Names {
    /// With an empty memory.
    pub fn new() -> Self {
        Names::with_reader(PythonReader::default())
    }
}

impl Default for Names {
    fn default() -> Self {
        Names::new()
    }
}

impl<R: ReadNames> Names<R> {
    /// Reads Python's names through `reader`.
    pub fn with_reader(reader: R) -> Self {
        let now = Instant::now();
        Names {
            threads: HashMap::new(),
            owners: HashMap::new(),
            fresh: HashMap::new(),
            reader,
            reads: (now, 0),
            read_again: now,
            swept: now,
            nobody: Arc::default(),
        }
    }

    /// The names of a thread. `pid` and `comm` are what the event says of it (0 and empty if it says
    /// nothing): they stand in for a thread that ended before it was ever looked up. Thread 0, the
    /// idle task, has no name.
    pub fn resolve(&mut self, pid: u32, tid: u32, comm: &str) -> Arc<ThreadName> {
        self.resolve_at(pid, tid, comm, Instant::now())
    }

    /// A thread has just started. `threading` knows its name some 100 µs later, and it may not live
    /// long: [`Names::read_due`] reads it soon.
    pub fn started(&mut self, pid: u32, tid: u32, comm: &str) {
        self.resolve(pid, tid, comm);
        self.read_soon(pid, tid, Instant::now() + FRESH);
    }

    /// The process runs another program now, called `comm`: nothing that was found in its memory is
    /// there any more.
    pub fn began_program(&mut self, pid: u32, comm: &str) {
        let now = Instant::now();
        self.reader.forget(pid);
        self.fresh.remove(&pid);
        self.owners.remove(&pid);
        self.resolve_at(pid, pid, comm, now);
        self.owner_comm(pid, now);
        if let Some(thread) = self.threads.get_mut(&pid) {
            thread.call(comm);
            Arc::make_mut(&mut thread.name).process = comm.into();
            comm.clone_into(&mut thread.comm);
            thread.python = false;
            thread.ask = thread.ended.is_none().then(|| Backoff::due(now, ASK.0, ASK.1));
        }
    }

    /// This process runs Python, and its interpreter is up: its names can be read from now on.
    pub fn runs_python(&mut self, pid: u32) {
        let now = Instant::now();
        self.resolve(pid, pid, "");
        if let Some(owner) = self.owners.get_mut(&pid) {
            owner.python = true;
            owner.read = Backoff::due(now, ASK.0, ASK.1);
        }
        self.read_soon(pid, pid, now);
    }

    fn read_soon(&mut self, pid: u32, tid: u32, at: Instant) {
        let fresh = self.fresh.entry(pid).or_insert_with(|| Fresh {
            tids: Vec::new(),
            at,
            pause: FRESH,
            looks: 0,
        });
        if !fresh.tids.contains(&tid) {
            fresh.tids.push(tid);
        }
        (fresh.at, fresh.pause, fresh.looks) = (fresh.at.min(at), FRESH, 0);
    }

    /// Reads the names of processes that have new threads, when it is time. Returns when to call
    /// this next.
    pub fn read_due(&mut self) -> Option<Instant> {
        self.read_due_at(Instant::now())
    }

    fn read_due_at(&mut self, now: Instant) -> Option<Instant> {
        let due: Vec<u32> =
            self.fresh.iter().filter(|(_, fresh)| fresh.at <= now).map(|(pid, _)| *pid).collect();
        for pid in due {
            let Some(mut fresh) = self.fresh.remove(&pid) else { continue };
            // If it turns out to run Python, `runs_python` is called.
            if !self.owners.get(&pid).is_some_and(|owner| owner.python) {
                continue;
            }
            if self.may_read(now) {
                self.read_names(pid, now);
                fresh.looks += 1;
                fresh.pause *= 4;
                fresh.at = now + fresh.pause;
            } else {
                fresh.at = now + fresh.pause.max(self.read_again.saturating_duration_since(now));
            }
            // After that they are named when they are asked for, as all others.
            fresh.tids.retain(|tid| {
                self.threads.get(tid).is_some_and(|each| each.ended.is_none() && !each.python)
            });
            if !fresh.tids.is_empty() && fresh.looks < FRESH_LOOKS {
                self.fresh.insert(pid, fresh);
            }
        }
        self.fresh.values().map(|fresh| fresh.at).min()
    }

    /// Whether the thread has only its kernel's name so far, and Python's is about to be read.
    pub fn is_soon_named(&self, tid: u32) -> bool {
        let Some(thread) = self.threads.get(&tid) else { return false };
        let pid = thread.name.pid;
        thread.ended.is_none()
            && !thread.python
            && self.owners.get(&pid).is_some_and(|owner| owner.python)
            && self.fresh.get(&pid).is_some_and(|fresh| fresh.tids.contains(&tid))
    }

    /// An event says that the thread has ended: saves looking.
    pub fn ended(&mut self, tid: u32) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.ended.get_or_insert_with(Instant::now);
        }
    }

    /// How many threads are remembered.
    pub fn len(&self) -> usize {
        self.threads.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    fn resolve_at(&mut self, pid: u32, tid: u32, comm: &str, now: Instant) -> Arc<ThreadName> {
        if tid == 0 {
            return Arc::clone(&self.nobody);
        }
        let crowded = self.threads.len() > MAX_THREADS;
        let pause = if crowded { SWEEP_EVERY / 20 } else { SWEEP_EVERY };
        if now.duration_since(self.swept) >= pause {
            self.sweep(now);
        }
        match self.threads.get_mut(&tid) {
            // Somebody spoke of it, and did not know its name, when it was gone already.
            Some(thread) if thread.name.thread.is_empty() && !comm.is_empty() => thread.call(comm),
            Some(thread) if thread.is_settled(now) => return Arc::clone(&thread.name),
            Some(thread) if !thread.check.is_due(now) => {}
            Some(_) => self.check(tid, now),
            None => self.learn(pid, tid, comm, now),
        }
        self.ask_python(tid, now);
        self.threads.get(&tid).map_or_else(|| Arc::clone(&self.nobody), |t| Arc::clone(&t.name))
    }

    /// Looks a thread up for the first time.
    fn learn(&mut self, pid: u32, tid: u32, comm: &str, now: Instant) {
        if !self.load(tid, now) {
            let process = self.process_of(pid, tid, comm);
            let name = ThreadName { thread: comm.into(), process, pid, ..ThreadName::default() };
            let ghost = Thread {
                name: Arc::new(name),
                starttime: 0,
                comm: comm.to_owned(),
                python: false,
                check: Backoff::new(now, CHECK.0, CHECK.1),
                ask: None,
                ended: Some(now),
            };
            self.threads.insert(tid, ghost);
        }
    }

    /// What is remembered of the name of a process that is gone.
    fn process_of(&self, pid: u32, tid: u32, comm: &str) -> Arc<str> {
        let first = || self.threads.get(&pid).map(|first| Arc::clone(&first.name.process));
        let owner = self.owners.get(&pid).map(|owner| Arc::clone(&owner.comm));
        owner
            .or_else(first)
            .unwrap_or_else(|| if pid == tid { comm.into() } else { Arc::default() })
    }

    /// Reads a thread from `/proc`. False if it is not there.
    fn load(&mut self, tid: u32, now: Instant) -> bool {
        let Some((Observed { starttime, comm }, (pid, ns_pid, ns_tid))) =
            Observed::read(tid).zip(thread::ids(tid))
        else {
            return false;
        };
        let process = self.owner_comm(pid, now);
        let name = ThreadName { thread: comm.as_str().into(), process, pid, ns_pid, ns_tid };
        let thread = Thread {
            name: Arc::new(name),
            starttime,
            comm,
            python: false,
            check: Backoff::new(now, CHECK.0, CHECK.1),
            ask: Some(Backoff::due(now, ASK.0, ASK.1)),
            ended: None,
        };
        self.threads.insert(tid, thread);
        true
    }

    /// The process's name, read again now and then: `exec` changes it.
    fn owner_comm(&mut self, pid: u32, now: Instant) -> Arc<str> {
        let known = self.owners.get(&pid).filter(|owner| !owner.check.is_due(now));
        if let Some(owner) = known {
            return Arc::clone(&owner.comm);
        }
        let Some(Observed { starttime, comm }) = Observed::read(pid) else {
            return self.owners.get(&pid).map(|o| Arc::clone(&o.comm)).unwrap_or_default();
        };
        let same = |owner: &&mut Owner| owner.starttime == starttime && *owner.comm == *comm;
        if let Some(owner) = self.owners.get_mut(&pid).filter(same) {
            owner.check.again(now);
            return Arc::clone(&owner.comm);
        }
        // New, or it has become another program.
        self.reader.forget(pid);
        let comm = Arc::<str>::from(comm);
        let check = Backoff::new(now, CHECK.0, CHECK.1);
        let read = Backoff::due(now, ASK.0, ASK.1);
        let owner = Owner { starttime, comm: Arc::clone(&comm), check, python: false, read };
        self.owners.insert(pid, owner);
        comm
    }

    /// Looks whether a known thread is still there, still the same, and still called the same.
    fn check(&mut self, tid: u32, now: Instant) {
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        thread.check.again(now);
        let Some(observed) = Observed::read(tid) else {
            thread.ended.get_or_insert(now);
            return;
        };
        if observed.starttime != thread.starttime || thread.ended.is_some() {
            // The id names another thread now (or, after a premature `ended`, the same one anew).
            self.load(tid, now);
            return;
        }
        if thread.comm != observed.comm {
            // It was renamed, or is another program since an exec.
            thread.call(&observed.comm);
            thread.comm = observed.comm;
            thread.python = false;
            thread.ask = Some(Backoff::due(now, ASK.0, ASK.1));
        }
        let pid = thread.name.pid;
        let process = self.owner_comm(pid, now);
        if let Some(thread) = self.threads.get_mut(&tid)
            && thread.name.process != process
        {
            Arc::make_mut(&mut thread.name).process = process;
        }
    }

    /// Reads the names of the thread's process, if this thread wants one and it is time.
    fn ask_python(&mut self, tid: u32, now: Instant) {
        let Some(thread) = self.threads.get(&tid) else { return };
        let wanted = thread.ended.is_none() && thread.ask.is_some_and(|ask| ask.is_due(now));
        let pid = thread.name.pid;
        let ready = self.owners.get(&pid).is_some_and(|owner| owner.read.is_due(now));
        if !wanted || !ready || !self.may_read(now) {
            return;
        }
        self.read_names(pid, now);
        if let Some(ask) = self.threads.get_mut(&tid).and_then(|thread| thread.ask.as_mut()) {
            ask.again(now);
        }
    }

    fn read_names(&mut self, pid: u32, now: Instant) {
        let start = cpu_time();
        let reading = self.reader.read(pid);
        if let Some(owner) = self.owners.get_mut(&pid) {
            match reading {
                Reading::Names(_) => {
                    owner.python = true;
                    owner.read = Backoff::new(now, ASK.0, ASK.1);
                }
                Reading::Later | Reading::NotPython => owner.read.again(now),
            }
        }
        if let Reading::Names(names) = reading {
            self.take_names(pid, names, now);
        }
        let took = cpu_time().saturating_sub(start);
        if took > READ_QUICKLY {
            self.read_again = now + took * READING_SHARE;
        }
    }

    /// One reading names every thread of the process, seen before or not.
    fn take_names(&mut self, pid: u32, mut names: Vec<(u32, String)>, now: Instant) {
        if names.iter().all(|(tid, _)| *tid != pid) {
            // A program that never imported threading: its first thread would be called this.
            names.push((pid, "MainThread".to_owned()));
        }
        for (tid, name) in names {
            if !self.threads.contains_key(&tid) && !self.load(tid, now) {
                continue;
            }
            let Some(thread) = self.threads.get_mut(&tid) else { continue };
            if thread.name.pid != pid || thread.ended.is_some() {
                continue;
            }
            thread.call(&name);
            thread.python = true;
            thread.ask = match thread::is_made_up(&name) {
                true => thread.ask.or(Some(Backoff::new(now, ASK.0, ASK.1))),
                false => None,
            };
        }
    }

    fn may_read(&mut self, now: Instant) -> bool {
        if now < self.read_again {
            return false;
        }
        if now.duration_since(self.reads.0) >= Duration::from_secs(1) {
            self.reads = (now, 0);
        }
        self.reads.1 += 1;
        self.reads.1 <= READS_PER_SECOND
    }

    /// Marks threads that ended unseen, and forgets those that ended long ago.
    fn sweep(&mut self, now: Instant) {
        self.swept = now;
        let keep = if self.threads.len() > MAX_THREADS { KEEP / 60 } else { KEEP };
        self.threads.retain(|tid, thread| {
            if thread.ended.is_none() && !std::path::Path::new(&format!("/proc/{tid}")).exists() {
                thread.ended = Some(now);
            }
            thread.ended.is_none_or(|ended| now.duration_since(ended) <= keep)
        });
        let reader = &mut self.reader;
        self.owners.retain(|pid, _| {
            let alive = std::path::Path::new(&format!("/proc/{pid}")).exists();
            if !alive {
                reader.forget(*pid);
            }
            alive
        });
    }
}
