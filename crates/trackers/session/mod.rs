//! The loaded programs: attached where this kernel allows, fed with what to watch, drained of what
//! they saw.

mod collections;
mod entries;
mod error;
mod ledgers;
mod load;
mod loops;
mod ongoing;
mod probes;
mod ring;
mod sampling;
mod sockets;
mod unwind;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::Read as _;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::time::Duration;

use libbpf_rs::btf::Btf;
use libbpf_rs::{Iter, Link, MapCore as _, MapFlags, MapHandle, Object};

pub use collections::{GcTarget, ProbedBinary};
pub use error::Error;

use crate::record::{self, ProcessConfig, ThreadSnapshot, lost_reason, tracker_id};
use crate::{HookStatus, refusal};
pub(crate) use error::Doing;
pub(crate) use load::{available, map, preflight, program};

use collections::GcKey;
use error::Result;
use ledgers::Ledgers;
use load::{attach_all, load};
pub use ongoing::OngoingStacks;
use probes::Probes;
use ring::Ring;
use sampling::Sampling;
pub use unwind::UnwindStats;
use unwind::Unwinding;

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Waits at least this long get a row of their own.
    pub wait_threshold: Duration,
    /// So do collections at least this long; shorter ones are in the ledger only.
    pub gc_threshold: Duration,
    /// Samples of running threads a second and CPU; 0: none.
    pub on_cpu_hz: u32,
    /// Waiting time per sample of where threads wait; shorter waits are strung together until they
    /// are worth one, longer ones always are. At most a second; zero: no samples.
    pub off_cpu_period: Duration,
    /// So do iterations of event loops at least this long.
    pub loop_threshold: Duration,
    /// Megabytes of kernel memory for unwind tables at the most. They are taken as needed, some
    /// half a megabyte for each binary the size of libpython.
    pub unwind_megabytes: u32,
    /// Report every program start and every listening socket on the host.
    pub discover: bool,
}

/// Not in step with what happens a hundred times a second.
pub const ON_CPU_HZ: u32 = 99;

/// Of each thread that waits, at most a hundred samples a second and kind of wait.
pub const OFF_CPU_PERIOD: Duration = Duration::from_millis(10);

/// So many periods of waiting for a request are worth a sample: a service's threads do little else,
/// and where they do it is known.
pub const IDLE_PERIODS: u32 = 10;

impl Default for Options {
    fn default() -> Self {
        Options {
            wait_threshold: Duration::from_millis(1),
            gc_threshold: Duration::from_micros(100),
            loop_threshold: Duration::from_millis(100),
            off_cpu_period: OFF_CPU_PERIOD,
            on_cpu_hz: ON_CPU_HZ,
            unwind_megabytes: 64,
            discover: true,
        }
    }
}

/// Events that one tracker lost for one reason since the session began.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LostCount {
    /// The tracker.
    pub tracker: &'static str,
    /// Why.
    pub reason: &'static str,
    /// How many.
    pub count: u64,
}

/// A tenth of a second's work.
const DRAIN_AT_ONCE: usize = 65_536;

fn reading(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Bpf { what: what.to_owned(), source: source.into() }
}

/// Runs an iterator, whose programs print nothing.
fn run(link: &Link, what: &str) -> Result<()> {
    let mut iterator = Iter::new(link).doing(what)?;
    let mut nothing = Vec::new();
    let read = iterator.read_to_end(&mut nothing);
    read.map(|_| ()).map_err(|source| Error::Bpf { what: what.to_owned(), source: source.into() })
}

/// Programs in the kernel. They go when it is dropped.
pub struct Session {
    ring: RefCell<Ring>,
    ledgers: Ledgers,
    processes: MapHandle,
    lost: MapHandle,
    hooks: Vec<HookStatus>,
    gc: HashMap<GcKey, Vec<Link>>,
    loops: Probes,
    sampling: Option<Sampling>,
    links: Vec<Link>,
    adopt: Link,
    adopt_sockets: Link,
    adopt_connections: Link,
    listeners: Link,
    ongoing: Option<OngoingStacks>,
    unwind_megabytes: u32,
    unwinding: Option<Unwinding>,
    object: Object,
}

impl Session {
    /// Loads and attaches everything this kernel has. Needs root.
    pub fn open(options: &Options) -> Result<Self> {
        preflight()?;
        let btf = Btf::from_vmlinux().map_err(|_| Error::NoBtf)?;
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, refusal::print)));
        let (object, refused) = load(options, &btf)?;

        let mut links = Vec::new();
        let mut hooks = attach_all(&object, &btf, &refused, &mut links)?;
        let sampling = Sampling::open(&object, options.on_cpu_hz, &mut hooks)?;
        let adopt = program(&object, "ledger_adopt")?
            .attach_iter_with_opts(libbpf_rs::IterOpts::None)
            .doing("attaching the task iterator")?;
        let over_files = |name| {
            program(&object, name)?
                .attach_iter_with_opts(libbpf_rs::IterOpts::None)
                .doing("attaching the iterator over open files")
        };
        let adopt_sockets = over_files("tcp_adopt")?;
        let adopt_connections = over_files("request_adopt")?;
        let listeners = sockets::listeners(&object)?;
        let ongoing = OngoingStacks::open(&object, &refused)?;

        let ring =
            Ring::open(&map(&object, "events")?).map_err(reading("opening the ring buffer"))?;

        Ok(Session {
            ring: RefCell::new(ring),
            ledgers: Ledgers::new(map(&object, "threads")?),
            processes: map(&object, "processes")?,
            lost: map(&object, "lost")?,
            hooks,
            gc: HashMap::new(),
            loops: Probes::default(),
            sampling,
            links,
            adopt,
            adopt_sockets,
            adopt_connections,
            listeners,
            ongoing,
            unwind_megabytes: options.unwind_megabytes,
            unwinding: None,
            object,
        })
    }

    /// Which way each hook was attached.
    pub fn hooks(&self) -> &[HookStatus] {
        &self.hooks
    }

    /// Starts the thread that reads the unwind tables of what is watched; without it there are no
    /// native frames. It has the privileges of the caller: drop them first.
    pub fn start_unwinding(&mut self) -> Result<()> {
        if self.unwinding.is_none() {
            self.unwinding = Some(Unwinding::start(&self.object, self.unwind_megabytes)?);
        }
        Ok(())
    }

    /// What unwinding knows and uses.
    pub fn unwind_stats(&self) -> UnwindStats {
        self.unwinding.as_ref().map(Unwinding::stats).unwrap_or_default()
    }

    /// Watches a process from now on, with the threads it has, or changes what is known of it.
    pub fn watch(&self, pid: u32, config: ProcessConfig) -> Result<()> {
        self.set_config(pid, config)?;
        run(&self.adopt, "running the task iterator")?;
        run(&self.adopt_sockets, "running the iterator over open files")?;
        run(&self.adopt_connections, "running the iterator over open files")?;
        if let Some(unwinding) = &self.unwinding {
            unwinding.nudge();
        }
        Ok(())
    }

    /// Has every listening socket of watched processes told: its records are in the ring after that.
    /// To be called once a second.
    pub fn tell_listeners(&self) -> Result<()> {
        run(&self.listeners, "running the iterator over listening sockets")
    }

    /// Changes what is known of a watched process.
    pub fn set_config(&self, pid: u32, config: ProcessConfig) -> Result<()> {
        self.processes
            .update(&pid.to_ne_bytes(), record::bytes_of(&config.to_raw()), MapFlags::ANY)
            .doing(format!("watching process {pid}"))
    }

    /// Whether a process is watched.
    pub fn is_watched(&self, pid: u32) -> bool {
        matches!(self.processes.lookup(&pid.to_ne_bytes(), MapFlags::ANY), Ok(Some(_)))
    }

    /// Stops watching a process. Its threads keep no ledger.
    pub fn unwatch(&self, pid: u32) -> Result<()> {
        // It may be gone already.
        let _ = self.processes.delete(&pid.to_ne_bytes());
        self.ledgers.forget_process(pid)
    }

    /// Every watched thread's ledger. A thread whose ledger changed while it was copied is read
    /// again; one that never holds still is left out until the next time.
    ///
    /// A ledger that does not sum and will not is begun anew: what its thread did since it was last read is
    /// lost, and counted (`torn`).
    pub fn threads(&self) -> Result<Vec<ThreadSnapshot>> {
        let read = self.ledgers.all()?;
        if read.orphans {
            run(&self.adopt, "running the task iterator")?;
        }
        Ok(read.ledgers)
    }

    /// One watched thread's ledger. `None`: there is none, or it would not hold still.
    pub fn thread(&self, tid: u32) -> Option<ThreadSnapshot> {
        self.ledgers.one(tid)
    }

    /// Waits up to `timeout` for the ring to get full, then hands out what is in it, but no more
    /// than [`DRAIN_AT_ONCE`] records: in a flood it would never be empty.
    pub fn drain(&self, timeout: Duration, each: impl FnMut(&[u8])) -> Result<usize> {
        let mut ring = self.ring.borrow_mut();
        ring.wait(timeout).map_err(reading("waiting for the ring buffer"))?;
        ring.drain(DRAIN_AT_ONCE, each).map_err(reading("reading the ring buffer"))
    }

    /// What was lost since the session began.
    pub fn lost(&self) -> Result<Vec<LostCount>> {
        let mut counts = Vec::new();
        for (tracker, id) in TRACKER_IDS {
            for (reason, index) in REASONS {
                let cell = id * lost_reason::LOST_REASONS + index;
                let per_cpu = self
                    .lost
                    .lookup_percpu(&cell.to_ne_bytes(), MapFlags::ANY)
                    .doing("reading the counters of lost events")?;
                let mut count = per_cpu
                    .unwrap_or_default()
                    .iter()
                    .filter_map(|bytes| bytes.first_chunk().map(|count| u64::from_ne_bytes(*count)))
                    .sum();
                if (id, index) == (tracker_id::TRACKER_LEDGER, lost_reason::LOST_TORN) {
                    count += self.ledgers.begun_anew();
                }
                counts.push(LostCount { tracker, reason, count });
            }
        }
        Ok(counts)
    }

    /// Shows every loaded program's name and descriptor, for its statistics.
    pub fn each_program(&self, mut each: impl FnMut(&str, BorrowedFd<'_>)) {
        for program in self.object.progs_mut().filter(|program| program.as_fd().as_raw_fd() >= 0) {
            each(&program.name().to_string_lossy(), program.as_fd());
        }
    }

    /// How many links are attached.
    pub fn attached(&self) -> usize {
        let gc = self.gc.values().map(Vec::len).sum::<usize>();
        self.links.len() + gc + self.loops.count()
    }
}

pub(crate) const TRACKER_IDS: [(&str, u32); 10] = [
    ("ledger", tracker_id::TRACKER_LEDGER),
    ("request", tracker_id::TRACKER_REQUEST),
    ("gc", tracker_id::TRACKER_GC),
    ("gil", tracker_id::TRACKER_GIL),
    ("offcpu", tracker_id::TRACKER_OFFCPU),
    ("oncpu", tracker_id::TRACKER_ONCPU),
    ("loop", tracker_id::TRACKER_LOOP),
    ("tcp_accept", tracker_id::TRACKER_TCP_ACCEPT),
    ("tcp_connect", tracker_id::TRACKER_TCP_CONNECT),
    ("tcp_loss", tracker_id::TRACKER_TCP_LOSS),
];

pub(crate) const REASONS: [(&str, u32); 6] = [
    ("ring_full", lost_reason::LOST_RING_FULL),
    ("map_full", lost_reason::LOST_MAP_FULL),
    ("torn", lost_reason::LOST_TORN),
    ("unpaired", lost_reason::LOST_UNPAIRED),
    ("unreadable", lost_reason::LOST_UNREADABLE),
    ("untold", lost_reason::LOST_UNTOLD),
];
