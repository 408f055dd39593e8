//! Watching without a store: the same programs, processes and names as the agent's, and what happens
//! is handed out as it is told.

use std::time::{Duration, Instant};

use underspan_trackers::{
    Context as _, Observation, Session, Thread, ThreadSnapshot, lifecycle, observe,
};

use crate::cost::{BpfPrograms, BpfStats, ProgramCost, Usage};
use crate::error::OpenError;
use crate::namer::Namer;
use crate::processes::{Processes, SCAN_EVERY, Watched};
use crate::select::{Selection, Selector};

/// How to watch.
#[derive(Clone, Debug)]
pub struct LiveOptions {
    /// This host's name.
    pub host: String,
    /// What to watch.
    pub selection: Selection,
    /// Waits at least this long are told when they end.
    pub wait_threshold: Duration,
    /// Samples of running threads a second and CPU; 0: none.
    pub on_cpu_hz: u32,
}

/// Attached programs and what they watch.
pub struct Live {
    session: Session,
    processes: Processes,
    namer: Namer,
    programs: BpfPrograms,
    stats: Option<BpfStats>,
    scan: Option<Instant>,
    malformed: u64,
}

impl Live {
    /// Loads and attaches the programs. Needs root.
    ///
    /// # Errors
    /// If this kernel or user cannot have them; the message says what to do.
    pub fn open(options: LiveOptions) -> Result<Self, OpenError> {
        let selection = options.selection;
        let discover = selection.pids.is_empty() && selection.root.is_none();
        let session = Session::open(&underspan_trackers::Options {
            wait_threshold: options.wait_threshold,
            on_cpu_hz: options.on_cpu_hz,
            discover,
            ..underspan_trackers::Options::default()
        })?;
        let mut programs = BpfPrograms::default();
        programs.add_each(|add| session.each_program(add));
        Ok(Live {
            session,
            processes: Processes::new(Selector::new(selection)),
            namer: Namer::new(options.host, None)?,
            programs,
            stats: BpfStats::enable().ok(),
            scan: discover.then(|| Instant::now() + SCAN_EVERY),
            malformed: 0,
        })
    }

    /// Begins to watch what was selected, but never the processes in `never`. Starts a thread: drop
    /// privileges before.
    pub fn watch(&mut self, never: &[u32]) {
        if let Err(error) = self.session.start_unwinding() {
            tracing::warn!("native frames are not walked: {error}");
        }
        self.processes.never(never);
        self.processes.scan(&mut self.session);
    }

    /// Waits up to `timeout` for much to happen, then hands out what has. Watches processes that
    /// start, meanwhile.
    ///
    /// # Errors
    /// If the programs cannot be read any more.
    pub fn drain(
        &mut self,
        timeout: Duration,
        mut each: impl FnMut(Observation),
    ) -> Result<(), OpenError> {
        let Live { session, processes, namer, malformed, .. } = self;
        let mut events = Vec::new();
        session.drain(timeout, |record| {
            match lifecycle(record) {
                Ok(event) => {
                    event.iter().for_each(|event| namer.happened(event));
                    events.extend(event);
                }
                Err(_) => *malformed += 1,
            }
            match observe(record) {
                Ok(Some(observation)) => each(observation),
                Ok(None) => {}
                Err(_) => *malformed += 1,
            }
        })?;
        for event in events {
            processes.happened(&event, session, namer);
        }
        processes.look_again(session);
        for pid in processes.take_pythons() {
            namer.runs_python(pid);
        }
        namer.read_due();
        let now = Instant::now();
        if self.scan.is_some_and(|at| at <= now) {
            self.scan = Some(now + SCAN_EVERY);
            processes.scan(session);
        }
        Ok(())
    }

    /// Every watched thread's ledger.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn threads(&mut self) -> Result<Vec<ThreadSnapshot>, OpenError> {
        if let Err(error) = self.session.follow_cpus() {
            tracing::warn!("{error}");
        }
        self.namer.refresh_clock()?;
        Ok(self.session.threads()?)
    }

    /// What a thread is called. `comm` is what the kernel calls it, or empty.
    pub fn name(&mut self, pid: u32, tid: u32, comm: &str) -> Thread {
        self.namer.thread(pid, tid, comm)
    }

    /// What is known of a watched process.
    pub fn process(&self, pid: u32) -> Option<&Watched> {
        self.processes.watched().get(&pid)
    }

    /// This host's name.
    pub fn host(&self) -> &str {
        self.namer.host()
    }

    /// Nanoseconds since the Unix epoch for a monotonic time.
    pub fn unix_ns(&self, monotonic_ns: u64) -> u64 {
        self.namer.unix_ns(monotonic_ns)
    }

    /// What this process and its programs have used. The programs' time is `None` where the kernel
    /// does not let it be measured.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn cost(&self) -> Result<(Usage, Option<ProgramCost>), OpenError> {
        let measured = self.stats.is_some() || BpfStats::always_on();
        let programs = measured.then(|| self.programs.total()).transpose()?;
        Ok((Usage::read()?, programs))
    }

    /// Events that were lost since the beginning.
    ///
    /// # Errors
    /// If the counters cannot be read.
    pub fn lost(&self) -> Result<u64, OpenError> {
        let lost = self.session.lost()?.iter().map(|lost| lost.count).sum::<u64>();
        Ok(lost + self.malformed)
    }
}
