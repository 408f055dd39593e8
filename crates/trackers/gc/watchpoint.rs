//! A hardware watchpoint: the last rung, for stripped interpreters without probes.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

use perf_event_open_sys::bindings::{
    HW_BREAKPOINT_W, PERF_FLAG_FD_CLOEXEC, PERF_TYPE_BREAKPOINT, perf_event_attr,
};

/// Opens an event that fires after every user-space write to the four bytes at `address`, in any
/// process that runs on `cpu`. A CPU has four of these.
pub(crate) fn watchpoint(address: u64, cpu: usize) -> io::Result<OwnedFd> {
    let mut attr = perf_event_attr {
        type_: PERF_TYPE_BREAKPOINT,
        size: size_of::<perf_event_attr>() as u32,
        bp_type: HW_BREAKPOINT_W,
        ..Default::default()
    };
    attr.__bindgen_anon_1.sample_period = 1;
    attr.__bindgen_anon_3.bp_addr = address;
    attr.__bindgen_anon_4.bp_len = 4;
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    let cpu = i32::try_from(cpu).map_err(io::Error::other)?;
    let (every_process, no_group) = (-1, -1);
    // SAFETY: `attr` is a valid perf_event_attr of the size it states, and outlives the call.
    let fd = unsafe {
        perf_event_open_sys::perf_event_open(
            &raw mut attr,
            every_process,
            cpu,
            no_group,
            PERF_FLAG_FD_CLOEXEC.into(),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
