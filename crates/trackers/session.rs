//! The loaded programs: attached where this kernel allows, fed with what to watch, drained of what
//! they saw.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io::Read as _;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{Func, Struct, Typedef};
use libbpf_rs::{
    Iter, Link, MapCore as _, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject,
    ProgramAttachType, ProgramMut, RingBuffer, RingBufferBuilder, UprobeMultiOpts, UprobeOpts,
};

use crate::gc::Rung;
use crate::record::{self, ProcessConfig, ThreadSnapshot, config, lost_reason, tracker_id};
use crate::{ALL, Attach, HookStatus, Program, preempt, refusal};

/// The linked programs of all trackers. Aligned as libelf wants it.
#[repr(C, align(8))]
struct Aligned<B: ?Sized>(B);
static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/underspan.bpf.o")));

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No BTF.
    #[error(
        "this kernel has no BTF (/sys/kernel/btf/vmlinux): Underspan needs one built with \
         CONFIG_DEBUG_INFO_BTF, as Debian 12, Ubuntu 22.04, RHEL 9 and Amazon Linux 2023 have it"
    )]
    NoBtf,
    /// Not root.
    #[error(
        "loading BPF programs needs root or the capabilities BPF, PERFMON and SYS_PTRACE: run it \
         with sudo"
    )]
    NotPermitted,
    /// No tracefs.
    #[error(
        "tracefs is not mounted and cannot be ({0}): mount -t tracefs tracefs /sys/kernel/tracing"
    )]
    NoTracefs(String),
    /// The kernel refused the programs.
    #[error("the kernel refused the BPF programs: {0} (RUST_LOG=debug shows its reasons)")]
    Load(String),
    /// A required hook is missing.
    #[error("{tracker} cannot hear of \"{what}\" on this kernel: {why}")]
    Hook {
        /// The tracker.
        tracker: &'static str,
        /// The hook.
        what: &'static str,
        /// What was tried.
        why: String,
    },
    /// Anything else libbpf says.
    #[error("{what}: {source}")]
    Bpf {
        /// What was being done.
        what: String,
        /// What libbpf says.
        source: libbpf_rs::Error,
    },
}

type Result<T> = std::result::Result<T, Error>;

trait Doing<T> {
    fn doing(self, what: impl Into<String>) -> Result<T>;
}

impl<T> Doing<T> for libbpf_rs::Result<T> {
    fn doing(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|source| Error::Bpf { what: what.into(), source })
    }
}

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Waits at least this long get a row of their own.
    pub wait_threshold: Duration,
    /// So do collections at least this long; shorter ones are in the ledger only.
    pub gc_threshold: Duration,
    /// Report every program start and every listening socket on the host.
    pub discover: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            wait_threshold: Duration::from_millis(1),
            gc_threshold: Duration::from_micros(100),
            discover: true,
        }
    }
}

/// A file to probe. Two paths to one file are the same binary.
#[derive(Clone, Debug)]
pub struct ProbedBinary {
    /// A path that opens it from here.
    pub path: PathBuf,
    /// With `inode`, the file's identity.
    pub dev: u64,
    /// With `dev`, the file's identity.
    pub inode: u64,
}

/// Where a process's collections can be seen.
#[derive(Clone, Debug)]
pub enum GcTarget {
    /// Its `python:gc__start` and `gc__done` probes.
    Usdt(ProbedBinary),
    /// The collector's function, by file offsets: a compiler may have made several clones of it.
    Symbol(ProbedBinary, Vec<u64>),
    /// A write to this address, in any process.
    Watchpoint(u64),
}

/// A target's identity: rung, and file or address.
type GcKey = (Rung, u64, u64);

impl GcTarget {
    /// The rung of the ladder that this is.
    pub fn rung(&self) -> Rung {
        match self {
            GcTarget::Usdt(_) => Rung::Usdt,
            GcTarget::Symbol(..) => Rung::Symbol,
            GcTarget::Watchpoint(_) => Rung::Watchpoint,
        }
    }

    fn key(&self) -> GcKey {
        match self {
            GcTarget::Usdt(binary) | GcTarget::Symbol(binary, _) => {
                (self.rung(), binary.dev, binary.inode)
            }
            GcTarget::Watchpoint(address) => (self.rung(), *address, 0),
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

/// Raw records, copied out of the ring.
#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

/// Programs in the kernel. They go when it is dropped.
pub struct Session {
    ring: RingBuffer<'static>,
    queue: Rc<RefCell<Queue>>,
    threads: MapHandle,
    processes: MapHandle,
    lost: MapHandle,
    hooks: Vec<HookStatus>,
    gc: HashMap<GcKey, Vec<Link>>,
    links: Vec<Link>,
    adopt: Link,
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
        let hooks = attach_all(&object, &btf, &refused, &mut links)?;
        let adopt = program(&object, "ledger_adopt")?
            .attach_iter_with_opts(libbpf_rs::IterOpts::None)
            .doing("attaching the task iterator")?;

        let queue = Rc::new(RefCell::new(Queue::default()));
        let mut builder = RingBufferBuilder::new();
        let events = map(&object, "events")?;
        let into = Rc::clone(&queue);
        builder
            .add(&events, move |record: &[u8]| {
                let mut queue = into.borrow_mut();
                queue.bytes.extend_from_slice(record);
                let end = queue.bytes.len();
                queue.ends.push(end);
                0
            })
            .doing("opening the ring buffer")?;
        let ring = builder.build().doing("opening the ring buffer")?;

        Ok(Session {
            ring,
            queue,
            threads: map(&object, "threads")?,
            processes: map(&object, "processes")?,
            lost: map(&object, "lost")?,
            hooks,
            gc: HashMap::new(),
            links,
            adopt,
            object,
        })
    }

    /// Which way each hook was attached.
    pub fn hooks(&self) -> &[HookStatus] {
        &self.hooks
    }

    /// Watches a process from now on, with the threads it has, or changes what is known of it.
    pub fn watch(&self, pid: u32, config: ProcessConfig) -> Result<()> {
        self.set_config(pid, config)?;
        let mut iterator = Iter::new(&self.adopt).doing("running the task iterator")?;
        let mut nothing = Vec::new();
        iterator.read_to_end(&mut nothing).map_err(|source| Error::Bpf {
            what: "running the task iterator".to_owned(),
            source: source.into(),
        })?;
        Ok(())
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
        for thread in self.threads()?.into_iter().filter(|thread| thread.pid == pid) {
            let _ = self.threads.delete(&thread.tid.to_ne_bytes());
        }
        Ok(())
    }

    /// Every watched thread's ledger. A thread whose ledger changed while it was copied is read
    /// again; one that never holds still is left out until the next time.
    pub fn threads(&self) -> Result<Vec<ThreadSnapshot>> {
        let mut snapshots = Vec::new();
        let batch = self
            .threads
            .lookup_batch(1024, MapFlags::ANY, MapFlags::ANY)
            .doing("reading the ledgers")?;
        for (key, value) in batch {
            let mut snapshot = ThreadSnapshot::from_bytes(&value);
            for _ in 0..3 {
                if snapshot.is_some() {
                    break;
                }
                let Ok(Some(again)) = self.threads.lookup(&key, MapFlags::ANY) else { break };
                snapshot = ThreadSnapshot::from_bytes(&again);
            }
            snapshots.extend(snapshot);
        }
        Ok(snapshots)
    }

    /// Attaches to a place where collections can be seen. Attaching twice does nothing.
    pub fn attach_gc(&mut self, target: &GcTarget) -> Result<()> {
        if self.gc.contains_key(&target.key()) {
            return Ok(());
        }
        let links = match target {
            GcTarget::Usdt(binary) => self.attach_usdt(&binary.path)?,
            GcTarget::Symbol(binary, offsets) => self.attach_symbol(&binary.path, offsets)?,
            GcTarget::Watchpoint(address) => self.attach_watchpoint(*address)?,
        };
        self.gc.insert(target.key(), links);
        Ok(())
    }

    fn attach_usdt(&self, path: &Path) -> Result<Vec<Link>> {
        [("gc_usdt_start", "gc__start"), ("gc_usdt_done", "gc__done")]
            .into_iter()
            .map(|(name, probe)| {
                program(&self.object, name)?
                    .attach_usdt(-1, path, "python", probe)
                    .doing(format!("attaching to python:{probe} of {}", path.display()))
            })
            .collect()
    }

    fn attach_symbol(&self, path: &Path, offsets: &[u64]) -> Result<Vec<Link>> {
        let offsets: Vec<_> = offsets.iter().map(|&offset| offset as usize).collect();
        let doing = || format!("attaching to the collector in {}", path.display());
        let mut links = Vec::new();
        for (name, retprobe) in [("gc_symbol_start", false), ("gc_symbol_done", true)] {
            let program = program(&self.object, name)?;
            if matches!(program.attach_type(), ProgramAttachType::TraceUprobeMulti) {
                let offsets = offsets.clone();
                let options = UprobeMultiOpts { offsets, retprobe, ..UprobeMultiOpts::default() };
                let link = program.attach_uprobe_multi_with_opts(-1, path, "", options);
                links.push(link.doing(doing())?);
                continue;
            }
            for &offset in &offsets {
                let options = UprobeOpts { retprobe, ..UprobeOpts::default() };
                let link = program.attach_uprobe_with_opts(-1, path, offset, options);
                links.push(link.doing(doing())?);
            }
        }
        Ok(links)
    }

    fn attach_watchpoint(&self, address: u64) -> Result<Vec<Link>> {
        let program = program(&self.object, "gc_watchpoint")?;
        let cpus = libbpf_rs::num_possible_cpus().doing("counting CPUs")?;
        (0..cpus)
            .map(|cpu| {
                let event = crate::gc::watchpoint(address, cpu).map_err(|source| Error::Bpf {
                    what: "opening a hardware watchpoint".to_owned(),
                    source: source.into(),
                })?;
                let link = program
                    .attach_perf_event(event.as_raw_fd())
                    .doing("attaching to a hardware watchpoint")?;
                // The link keeps the event open from here on.
                std::mem::forget(event);
                Ok(link)
            })
            .collect()
    }

    /// Waits up to `timeout` for the ring to get full, then hands out everything in it.
    pub fn drain(&self, timeout: Duration, mut each: impl FnMut(&[u8])) -> Result<usize> {
        match self.ring.poll(timeout) {
            Ok(()) => {}
            Err(error) if error.kind() == libbpf_rs::ErrorKind::Interrupted => {}
            Err(source) => return Err(Error::Bpf { what: "reading the ring".into(), source }),
        }
        self.ring.consume().doing("reading the ring")?;
        let mut queue = self.queue.borrow_mut();
        let mut start = 0;
        for end in &queue.ends {
            each(&queue.bytes[start..*end]);
            start = *end;
        }
        let count = queue.ends.len();
        queue.bytes.clear();
        queue.ends.clear();
        // A burst's memory is given back.
        queue.bytes.shrink_to(1 << 20);
        Ok(count)
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
                let count = per_cpu
                    .unwrap_or_default()
                    .iter()
                    .filter_map(|bytes| bytes.first_chunk().map(|count| u64::from_ne_bytes(*count)))
                    .sum();
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

    /// Detaches from a place that no watched process needs any more.
    pub fn detach_gc(&mut self, target: &GcTarget) {
        self.gc.remove(&target.key());
    }

    /// How many links are attached.
    pub fn attached(&self) -> usize {
        self.links.len() + self.gc.values().map(Vec::len).sum::<usize>()
    }
}

pub(crate) const TRACKER_IDS: [(&str, u32); 4] = [
    ("ledger", tracker_id::TRACKER_LEDGER),
    ("request", tracker_id::TRACKER_REQUEST),
    ("gc", tracker_id::TRACKER_GC),
    ("gil", tracker_id::TRACKER_GIL),
];

pub(crate) const REASONS: [(&str, u32); 5] = [
    ("ring_full", lost_reason::LOST_RING_FULL),
    ("map_full", lost_reason::LOST_MAP_FULL),
    ("torn", lost_reason::LOST_TORN),
    ("unpaired", lost_reason::LOST_UNPAIRED),
    ("unreadable", lost_reason::LOST_UNREADABLE),
];

/// Whether this process may load programs and read other processes' memory, root or not.
fn is_permitted() -> bool {
    const SYS_PTRACE: u64 = 1 << 19;
    const SYS_ADMIN: u64 = 1 << 21;
    const PERFMON_AND_BPF: u64 = 1 << 38 | 1 << 39;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective =
        effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let may_load = effective & SYS_ADMIN != 0 || effective & PERFMON_AND_BPF == PERFMON_AND_BPF;
    may_load && effective & SYS_PTRACE != 0
}

/// What must be there before anything is loaded.
fn preflight() -> Result<()> {
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err(Error::NoBtf);
    }
    if !is_permitted() {
        return Err(Error::NotPermitted);
    }
    let tracefs = Path::new("/sys/kernel/tracing");
    if !tracefs.join("events").exists() && !Path::new("/sys/kernel/debug/tracing/events").exists() {
        let none = None::<&str>;
        nix::mount::mount(
            Some("tracefs"),
            tracefs,
            Some("tracefs"),
            nix::mount::MsFlags::empty(),
            none,
        )
        .map_err(|error| Error::NoTracefs(error.to_string()))?;
    }
    Ok(())
}

/// Functions that the kernel knows and does not let programs trace, by program.
type Refused = HashMap<String, String>;

/// Loads the programs that this kernel has hooks for.
fn load(options: &Options, btf: &Btf<'_>) -> Result<(Object, Refused)> {
    let mut refused = Refused::new();
    loop {
        let wanted = wanted(btf, &refused);
        let error = match try_load(options, btf, &wanted) {
            Ok(object) => return Ok((object, refused)),
            Err(error) => error,
        };
        let refusal = refusal::take();
        match refusal {
            // There are other ways to hear of what it tells, or it can be done without.
            Some(refusal) if wanted.get(refusal.program.as_str()) == Some(&true) => {
                refused.insert(refusal.program, refusal.why);
            }
            Some(refusal) => {
                return Err(Error::Load(format!("{}: {}", refusal.program, refusal.why)));
            }
            None => return Err(error),
        }
    }
}

fn try_load(
    options: &Options,
    btf: &Btf<'_>,
    wanted: &HashMap<&'static str, bool>,
) -> Result<Object> {
    let mut open =
        ObjectBuilder::default().open_memory(&OBJECT.0).doing("opening the BPF object")?;
    configure(&mut open, options, btf)?;
    if has_uprobe_multi(btf) {
        for mut program in open.progs_mut() {
            if program.name().as_encoded_bytes().starts_with(b"gc_symbol_") {
                program.set_attach_type(ProgramAttachType::TraceUprobeMulti);
            }
        }
    }
    for program in ALL.iter().flat_map(|tracker| tracker.hooks()).flat_map(|hook| hook.programs) {
        if !wanted.contains_key(program.name) {
            for mut open_program in open.progs_mut() {
                if open_program.name() == program.name {
                    open_program.set_autoload(false);
                }
            }
        }
    }
    // Who may load programs was asked before.
    open.load().map_err(|error| match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => {
            Error::Load(format!("{error}: is the kernel locked down?"))
        }
        _ => Error::Load(error.to_string()),
    })
}

/// The programs to load, and whether each traces a function: of every hook those that may be
/// attached. A BTF tracepoint that is there can be attached, so what comes after it is not needed.
fn wanted(btf: &Btf<'_>, refused: &Refused) -> HashMap<&'static str, bool> {
    let mut wanted = HashMap::new();
    for hook in ALL.iter().flat_map(|tracker| tracker.hooks()) {
        for program in hook.programs {
            if available(program.attach, btf).is_err() || refused.contains_key(program.name) {
                continue;
            }
            let function = matches!(program.attach, Attach::Fentry(_) | Attach::Fexit(_));
            wanted.insert(program.name, function);
            if matches!(program.attach, Attach::BtfTracepoint(_)) {
                break;
            }
        }
    }
    wanted
}

/// Whether the kernel (6.6 and later) has links to many uprobes at once. They ask for CAP_PERFMON;
/// uprobes made by perf_event_open ask for CAP_SYS_ADMIN, which is gone once root is dropped.
fn has_uprobe_multi(btf: &Btf<'_>) -> bool {
    btf.type_by_name::<Struct<'_>>("bpf_uprobe_multi_link").is_some()
}

fn configure(open: &mut OpenObject, options: &Options, btf: &Btf<'_>) -> Result<()> {
    let preempt_count = preempt::count_from_run_queue(btf);
    if preempt_count.is_none() {
        tracing::warn!(
            "this kernel's BTF does not tell where the preemption count is: nobody is named as the \
             one who ended a wait"
        );
    }
    let value = config {
        wait_threshold_ns: options.wait_threshold.as_nanos() as u64,
        gc_threshold_ns: options.gc_threshold.as_nanos() as u64,
        preempt_count_from_rq: preempt_count.unwrap_or(0),
        discover: u8::from(options.discover),
        ..config::default()
    };
    for mut map in open.maps_mut() {
        if map.name() == ".rodata.config" {
            map.set_initial_value(record::bytes_of(&value)).doing("configuring the programs")?;
        }
    }
    Ok(())
}

/// Whether the kernel has what a program attaches to.
fn available(attach: Attach, btf: &Btf<'_>) -> std::result::Result<(), String> {
    let found = match attach {
        Attach::BtfTracepoint(name) => {
            btf.type_by_name::<Typedef<'_>>(&format!("btf_trace_{name}")).is_some()
        }
        Attach::Tracepoint(name) => ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
            .iter()
            .any(|root| Path::new(root).join("events").join(name).exists()),
        Attach::Fentry(name) | Attach::Fexit(name) => btf.type_by_name::<Func<'_>>(name).is_some(),
        Attach::Iterator(_) | Attach::PerProcess(_) => true,
    };
    if found { Ok(()) } else { Err("this kernel does not have it".to_owned()) }
}

/// Attaches every hook by the best way that works.
fn attach_all(
    object: &Object,
    btf: &Btf<'_>,
    refused: &Refused,
    links: &mut Vec<Link>,
) -> Result<Vec<HookStatus>> {
    let mut statuses = Vec::new();
    let mut attached = HashSet::new();
    for tracker in ALL {
        for hook in tracker.hooks() {
            let mut failures = Vec::new();
            let mut taken = None;
            for candidate in hook.programs {
                // One program may serve two hooks.
                if attached.contains(candidate.name) {
                    taken = Some(candidate.attach);
                    break;
                }
                match attach_one(object, btf, refused, candidate) {
                    Ok(link) => {
                        links.extend(link);
                        attached.insert(candidate.name);
                        taken = Some(candidate.attach);
                        break;
                    }
                    Err(why) => failures.push((candidate.attach, why)),
                }
            }
            if taken.is_none() && hook.required {
                let why: Vec<_> =
                    failures.iter().map(|(attach, why)| format!("{attach}: {why}")).collect();
                return Err(Error::Hook {
                    tracker: tracker.name(),
                    what: hook.what,
                    why: why.join("; "),
                });
            }
            statuses.push(HookStatus {
                tracker: tracker.name(),
                what: hook.what,
                required: hook.required,
                outcome: taken,
                failed: failures,
            });
        }
    }
    Ok(statuses)
}

fn attach_one(
    object: &Object,
    btf: &Btf<'_>,
    refused: &Refused,
    candidate: &Program,
) -> std::result::Result<Option<Link>, String> {
    available(candidate.attach, btf)?;
    if matches!(candidate.attach, Attach::Iterator(_) | Attach::PerProcess(_)) {
        return Ok(None);
    }
    if let Some(why) = refused.get(candidate.name) {
        return Err(format!("this kernel does not let it be traced ({why})"));
    }
    let program = program(object, candidate.name).map_err(|error| error.to_string())?;
    if program.as_fd().as_raw_fd() < 0 {
        return Err("it is not loaded".to_owned());
    }
    program.attach().map(Some).map_err(|error| error.to_string())
}

fn program<'o>(object: &'o Object, name: &str) -> Result<ProgramMut<'o>> {
    object
        .progs_mut()
        .find(|program| program.name() == name)
        .ok_or_else(|| Error::Load(format!("there is no program {name}")))
}

fn map(object: &Object, name: &str) -> Result<MapHandle> {
    let map = object
        .maps()
        .find(|map| map.name() == name)
        .ok_or_else(|| Error::Load(format!("there is no map {name}")))?;
    MapHandle::try_from(&map).doing(format!("opening the map {name}"))
}
