//! The sampling clock: a software event on each CPU.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

use perf_event_open_sys::bindings::{
    PERF_COUNT_SW_CPU_CLOCK, PERF_FLAG_FD_CLOEXEC, PERF_TYPE_SOFTWARE, perf_event_attr,
};

const CPUS_ONLINE: &str = "/sys/devices/system/cpu/online";

/// Nanoseconds between two samples of a CPU.
pub(crate) fn period_ns(hz: u32) -> u64 {
    1_000_000_000 / u64::from(hz.max(1))
}

/// Opens an event that fires on `cpu` every `period` nanoseconds, whoever runs there. Needs no PMU:
/// the kernel's own timer is behind it.
pub(crate) fn clock(cpu: u32, period: u64) -> io::Result<OwnedFd> {
    let mut attr = perf_event_attr {
        type_: PERF_TYPE_SOFTWARE,
        config: PERF_COUNT_SW_CPU_CLOCK.into(),
        size: size_of::<perf_event_attr>() as u32,
        ..Default::default()
    };
    attr.__bindgen_anon_1.sample_period = period;
    open(&mut attr, EVERYBODY, i32::try_from(cpu).map_err(io::Error::other)?, NO_GROUP)
}

pub(super) const EVERYBODY: libc::pid_t = -1;
pub(super) const NO_GROUP: i32 = -1;

pub(super) fn open(
    attr: &mut perf_event_attr,
    pid: libc::pid_t,
    cpu: i32,
    group: i32,
) -> io::Result<OwnedFd> {
    let flags = PERF_FLAG_FD_CLOEXEC.into();
    // SAFETY: `attr` is a valid perf_event_attr of the size it states, and outlives the call.
    let fd = unsafe { perf_event_open_sys::perf_event_open(attr, pid, cpu, group, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The CPUs that are in use now.
///
/// # Errors
/// If the kernel does not tell, or not as it should.
pub(crate) fn online_cpus() -> io::Result<Vec<u32>> {
    let list = std::fs::read_to_string(CPUS_ONLINE)?;
    cpu_list(&list).ok_or_else(|| io::Error::other(format!("{CPUS_ONLINE} says {list:?}")))
}

/// Reads a list such as `0-3,8,10-11`.
pub(super) fn cpu_list(list: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        // No kernel has as many; a mistake must not fill the memory.
        if last >= 65_536 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}
