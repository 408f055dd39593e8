//! Loading: which programs this kernel can have, and attaching them in order of preference.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;
use std::time::Duration;

use libbpf_rs::ReferencesType as _;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{Func, FuncProto, Ptr, Struct, Typedef};
use libbpf_rs::{
    Link, MapCore as _, MapHandle, Object, ObjectBuilder, OpenObject, ProgramAttachType, ProgramMut,
};

use super::error::{Doing as _, Error, Result};
use super::{IDLE_PERIODS, Options};
use crate::record::{self, config};
use crate::{ALL, Attach, HookStatus, Program, Tracker, preempt, refusal};

/// The linked programs of all trackers. Aligned as libelf wants it.
#[repr(C, align(8))]
struct Aligned<B: ?Sized>(B);
static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/underspan.bpf.o")));

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
pub(crate) fn preflight() -> Result<()> {
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

/// Programs that cannot be had though the kernel knows what they trace, or that nobody wants; and why.
pub(super) type Refused = HashMap<String, String>;

/// Loads the programs that this kernel has hooks for.
pub(super) fn load(options: &Options, btf: &Btf<'_>) -> Result<(Object, Refused)> {
    let mut refused = Refused::new();
    if options.off_cpu_period.is_zero() {
        refused.insert("offcpu_resume".to_owned(), "switched off (a period of 0)".to_owned());
    }
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
                let why = format!("this kernel does not let it be traced ({})", refusal.why);
                refused.insert(refusal.program, why);
            }
            Some(refusal) => {
                return Err(Error::Load(format!("{}: {}", refusal.program, refusal.why)));
            }
            None => return Err(error),
        }
    }
}

/// Those whose programs are in this object.
fn trackers() -> impl Iterator<Item = &'static dyn Tracker> {
    ALL.into_iter().filter(|tracker| !tracker.is_separate())
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
            let name = program.name().as_encoded_bytes();
            if [&b"gc_symbol_"[..], b"loop_"].iter().any(|uprobes| name.starts_with(uprobes)) {
                program.set_attach_type(ProgramAttachType::TraceUprobeMulti);
            }
        }
    }
    for program in trackers().flat_map(|tracker| tracker.hooks()).flat_map(|hook| hook.programs) {
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
    for hook in trackers().flat_map(|tracker| tracker.hooks()) {
        for program in hook.programs {
            if available(program.attach, btf).is_err() || refused.contains_key(program.name) {
                continue;
            }
            let function = matches!(program.attach, Attach::Fentry(_) | Attach::Fexit(_));
            wanted.insert(program.name, function);
            if matches!(program.attach, Attach::BtfTracepoint(_) | Attach::BtfTracepointWith(..)) {
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
    let longest = Duration::from_secs(1);
    let period = |times| (options.off_cpu_period * times).min(longest).as_nanos() as u64;
    let value = config {
        wait_threshold_ns: options.wait_threshold.as_nanos() as u64,
        gc_threshold_ns: options.gc_threshold.as_nanos() as u64,
        loop_threshold_ns: options.loop_threshold.as_nanos() as u64,
        off_cpu_period_ns: period(1),
        idle_period_ns: period(IDLE_PERIODS),
        tick_ns: tick_ns(),
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

/// How long the kernel's tick is: what its coarse clocks are good for.
fn tick_ns() -> u64 {
    let clock = nix::time::ClockId::CLOCK_MONOTONIC_COARSE;
    let tick = nix::time::clock_getres(clock).map(Duration::from);
    tick.map_or(4_000_000, |tick| tick.as_nanos() as u64)
}

/// How many arguments a tracepoint has.
fn tracepoint_arguments(name: &str, btf: &Btf<'_>) -> Option<usize> {
    let typedef = btf.type_by_name::<Typedef<'_>>(&format!("btf_trace_{name}"))?;
    let pointer = Ptr::try_from(typedef.referenced_type()).ok()?;
    let function = FuncProto::try_from(pointer.referenced_type()).ok()?;
    // The first is the kernel's own.
    function.len().checked_sub(1)
}

/// Whether the kernel has what a program attaches to.
pub(crate) fn available(attach: Attach, btf: &Btf<'_>) -> std::result::Result<(), String> {
    let found = match attach {
        Attach::BtfTracepointWith(name, arguments) => match tracepoint_arguments(name, btf) {
            Some(has) if has < arguments => {
                return Err(format!("this kernel's has {has} arguments, {arguments} are needed"));
            }
            found => found.is_some(),
        },
        Attach::BtfTracepoint(name) => {
            btf.type_by_name::<Typedef<'_>>(&format!("btf_trace_{name}")).is_some()
        }
        Attach::Tracepoint(name) => ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
            .iter()
            .any(|root| Path::new(root).join("events").join(name).exists()),
        Attach::Fentry(name) | Attach::Fexit(name) => btf.type_by_name::<Func<'_>>(name).is_some(),
        Attach::TaskWork => ["bpf_task_work_schedule_resume", "bpf_task_work_schedule_resume_impl"]
            .iter()
            .any(|name| btf.type_by_name::<Func<'_>>(name).is_some()),
        // Since Linux 6.4.
        Attach::Netfilter(_) => btf.type_by_name::<Func<'_>>("bpf_nf_link_attach").is_some(),
        Attach::Iterator(_)
        | Attach::PerProcess(_)
        | Attach::CpuClock
        | Attach::HardwareCounters => true,
    };
    if found { Ok(()) } else { Err("this kernel does not have it".to_owned()) }
}

/// Attaches every hook by the best way that works.
pub(super) fn attach_all(
    object: &Object,
    btf: &Btf<'_>,
    refused: &Refused,
    links: &mut Vec<Link>,
) -> Result<Vec<HookStatus>> {
    let mut statuses = Vec::new();
    let mut attached = HashSet::new();
    for tracker in trackers() {
        for hook in tracker.hooks() {
            let mut failures = Vec::new();
            let mut taken = None;
            for candidate in hook.programs {
                // One program may serve two hooks.
                if attached.contains(candidate.name) && available(candidate.attach, btf).is_ok() {
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
    // Others attach these: when a program wants it, when they are run, when a process is watched, CPU by CPU.
    if matches!(
        candidate.attach,
        Attach::Netfilter(_)
            | Attach::Iterator(_)
            | Attach::TaskWork
            | Attach::PerProcess(_)
            | Attach::CpuClock
            | Attach::HardwareCounters
    ) {
        return Ok(None);
    }
    if let Some(why) = refused.get(candidate.name) {
        return Err(why.clone());
    }
    let program = program(object, candidate.name).map_err(|error| error.to_string())?;
    if program.as_fd().as_raw_fd() < 0 {
        return Err("it is not loaded".to_owned());
    }
    program.attach().map(Some).map_err(|error| error.to_string())
}

pub(crate) fn program<'o>(object: &'o Object, name: &str) -> Result<ProgramMut<'o>> {
    object
        .progs_mut()
        .find(|program| program.name() == name)
        .ok_or_else(|| Error::Load(format!("there is no program {name}")))
}

pub(crate) fn map(object: &Object, name: &str) -> Result<MapHandle> {
    let map = object
        .maps()
        .find(|map| map.name() == name)
        .ok_or_else(|| Error::Load(format!("there is no map {name}")))?;
    MapHandle::try_from(&map).doing(format!("opening the map {name}"))
}
