//! When a thread of ours gets a CPU.

use std::io;
use std::time::Duration;

/// The lowest priority in real time: before all ordinary threads, after all others.
const LOWEST: libc::c_int = 1;

/// From now on the calling thread runs as soon as it wants to. Only for what is short and seldom.
///
/// # Errors
/// If it may not: that takes `CAP_SYS_NICE`.
pub(crate) fn first() -> io::Result<()> {
    // A control group may have no real time to give (`cpu.rt_runtime_us`).
    set(libc::SCHED_FIFO, LOWEST).or_else(|_| set_nice(SELF, -20))
}

/// The calling thread.
pub(crate) const SELF: libc::id_t = 0;

/// The nice value of a thread of ours: from -20, the highest priority, to 19.
///
/// # Errors
/// If it has ended, or a lower value would take `CAP_SYS_NICE`.
pub(crate) fn set_nice(tid: libc::id_t, nice: libc::c_int) -> io::Result<()> {
    // SAFETY: changes nothing but how that thread is scheduled.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, tid, nice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
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

/// A thread that waits for a CPU longer than this between two looks is starving.
const STARVING: Duration = Duration::from_millis(500);

/// Whether the agent gets its turn. Thousands of threads that all want to run make everybody beside them
/// wait for many seconds each time, and what the agent should see meanwhile would be lost. Beside them:
/// in the same control group and session, among which the kernel shares CPUs out first.
#[derive(Debug)]
pub(crate) struct Turns {
    waited: Duration,
    is_first: bool,
}

impl Turns {
    /// Of the calling thread, from now on.
    pub(crate) fn begin() -> Self {
        Turns { waited: waited_for_cpu().unwrap_or_default(), is_first: false }
    }

    /// To be called about once a second, on the thread that matters. Once that has starved it goes first.
    pub(crate) fn look(&mut self) {
        let waited = waited_for_cpu().unwrap_or_default();
        let late = waited.saturating_sub(std::mem::replace(&mut self.waited, waited));
        if !self.is_first && late >= STARVING {
            tracing::info!("the agent waited {late:.1?} for a CPU");
            self.go_first();
        }
    }

    /// From now on all threads of this process but those of low priority go before ordinary ones: they
    /// need little.
    pub(crate) fn go_first(&mut self) {
        self.is_first = true;
        if let Err(error) = threads().and_then(|tids| tids.into_iter().try_for_each(raise)) {
            tracing::warn!("the agent may not go before what it watches: {error}");
        }
    }
}

/// How long the calling thread has waited for a CPU in its life.
fn waited_for_cpu() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let ns = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(ns))
}

fn threads() -> io::Result<Vec<libc::id_t>> {
    let entries = std::fs::read_dir("/proc/self/task")?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// As much weight as an ordinary thread can have.
fn raise(tid: libc::id_t) -> io::Result<()> {
    // SAFETY: asks about a thread; -1 also stands for an error, and is left as it is.
    if unsafe { libc::getpriority(libc::PRIO_PROCESS, tid) } != 0 {
        return Ok(());
    }
    match set_nice(tid, -20) {
        // It has ended.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        done => done,
    }
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

    fn nice() -> libc::c_int {
        // SAFETY: asks about the calling thread (0).
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
    }

    #[test]
    fn who_has_its_turn_stays_as_it_is() {
        let (mut turns, before) = (Turns::begin(), nice());
        turns.look();
        assert!(!turns.is_first);
        assert_eq!(nice(), before);
    }

    #[test]
    fn threads_of_ordinary_priority_are_raised() {
        let after = |before: libc::c_int| {
            std::thread::spawn(move || {
                set_nice(SELF, before).unwrap();
                // SAFETY: asks about the calling thread.
                raise(unsafe { libc::gettid() } as libc::id_t).unwrap();
                nice()
            })
            .join()
            .unwrap()
        };
        assert_eq!([after(0), after(10), after(-5)], [-20, 10, -5]);
        assert!(threads().unwrap().contains(&std::process::id()));
        raise(1 << 30).unwrap();
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
