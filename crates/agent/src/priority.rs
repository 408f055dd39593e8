//! When a thread of ours gets a CPU.

use std::io;

/// The lowest priority in real time: before all ordinary threads, after all others.
const LOWEST: libc::c_int = 1;

/// From now on the calling thread runs as soon as it wants to. Only for what is short and seldom.
///
/// # Errors
/// If it may not: that takes `CAP_SYS_NICE`.
pub(crate) fn first() -> io::Result<()> {
    set(libc::SCHED_FIFO, LOWEST).or_else(|_| {
        // A control group may have no real time to give (`cpu.rt_runtime_us`).
        // SAFETY: changes nothing but how the calling thread (0) is scheduled.
        match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    })
}

/// Runs `work` as an ordinary thread would, then goes on as before.
pub(crate) fn ordinary<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: asks about the calling thread (0).
    let is_first = unsafe { libc::sched_getscheduler(0) } == libc::SCHED_FIFO;
    // Whoever is first may always step back. Nice values do not hold up others: they stay.
    let stepped_back = is_first && set(libc::SCHED_OTHER, 0).is_ok();
    let done = work();
    if stepped_back && let Err(error) = set(libc::SCHED_FIFO, LOWEST) {
        tracing::warn!("a thread that was first is first no more: {error}");
    }
    done
}

fn set(policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    let wanted = libc::sched_param { sched_priority: priority };
    // SAFETY: changes how the calling thread (0) is scheduled; `wanted` outlives the call.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const wanted) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> libc::c_int {
        // SAFETY: asks about the calling thread (0).
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn first_but_for_work_that_is_in_no_haste() {
        // On a thread of its own: it ends with its priority.
        std::thread::spawn(|| {
            assert_eq!(ordinary(policy), libc::SCHED_OTHER);
            assert_eq!(policy(), libc::SCHED_OTHER);
            first().unwrap();
            let before = policy();
            assert_eq!(ordinary(policy), libc::SCHED_OTHER);
            assert_eq!(policy(), before);
        })
        .join()
        .unwrap();
    }
}
