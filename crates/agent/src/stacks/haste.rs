//! How fast names are looked up: at low priority, since what is watched must not wait for a CPU because
//! of this, unless something may be gone before its turn comes.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use crate::monotonic_ns;
use crate::priority::{SELF, set_nice};

/// The thread's usual priority. Not the lowest: that would have no turn on a busy host.
const NICE: libc::c_int = 10;
/// What waits longer than this may vanish: on a busy host, or behind a large binary.
const PATIENCE_NS: u64 = 250_000_000;

/// Shared by the thread and whoever gives it work.
#[derive(Debug, Default)]
pub(super) struct Haste {
    /// The thread; 0 until it has begun, or where it could not be lowered.
    tid: AtomicI32,
    /// Since when there is something that it has not looked at; 0: there is nothing.
    since: AtomicU64,
    /// Its priority was raised.
    raised: AtomicBool,
}

impl Haste {
    /// Lowers the calling thread, which is to do the work.
    ///
    /// # Errors
    /// If the kernel refuses: it goes on as before.
    pub(super) fn begin(&self) -> io::Result<()> {
        let batch = libc::sched_param { sched_priority: 0 };
        // SAFETY: changes nothing but how the calling thread (0) is scheduled; `batch` outlives the call.
        if unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const batch) } != 0 {
            return Err(io::Error::last_os_error());
        }
        set_nice(SELF, NICE)?;
        // SAFETY: only asks.
        self.tid.store(unsafe { libc::gettid() }, Ordering::Release);
        Ok(())
    }

    /// There is work.
    pub(super) fn given(&self) {
        if let Ok(now) = monotonic_ns() {
            let _ = self.since.compare_exchange(0, now, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// The thread is about to look at all that was given so far.
    pub(super) fn taken(&self) {
        self.since.store(0, Ordering::Release);
    }

    /// It has looked at it: what is left to do is in no haste.
    pub(super) fn over(&self) {
        if self.raised.swap(false, Ordering::AcqRel)
            && let Err(error) = set_nice(SELF, NICE)
        {
            tracing::debug!("names are looked up at ordinary priority: {error}");
        }
    }

    /// To be called often, by who gives the work. Work that waits for too long is done at the caller's
    /// own priority.
    pub(super) fn look(&self) {
        let (since, tid) = (self.since.load(Ordering::Acquire), self.tid.load(Ordering::Acquire));
        let Ok(now) = monotonic_ns() else { return };
        if since == 0 || tid == 0 || now.saturating_sub(since) < PATIENCE_NS {
            return;
        }
        if self.raised.swap(true, Ordering::AcqRel) {
            return;
        }
        // SAFETY: asks about the calling thread (0).
        let own = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        // It takes CAP_SYS_NICE. Not asked for again and again where that is missing.
        if let Err(error) = set_nice(tid.unsigned_abs(), own) {
            tracing::debug!("names are looked up at low priority, and late: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Barrier};
    use std::thread;
    use std::time::Duration;

    fn nice() -> libc::c_int {
        // SAFETY: asks about the calling thread (0).
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
    }

    #[test]
    fn work_that_waits_is_done_at_the_priority_of_who_gave_it() {
        let (haste, turn) = (Arc::new(Haste::default()), Arc::new(Barrier::new(2)));
        let (own, its) = (Arc::clone(&haste), Arc::clone(&turn));
        let worker = thread::spawn(move || {
            own.begin().unwrap();
            let mut seen = vec![nice()];
            for _ in 0..2 {
                its.wait();
                its.wait();
                seen.push(nice());
            }
            own.taken();
            own.over();
            seen.push(nice());
            seen
        });
        turn.wait();
        haste.given();
        haste.look();
        turn.wait();
        turn.wait();
        thread::sleep(Duration::from_nanos(PATIENCE_NS));
        haste.look();
        turn.wait();
        assert_eq!(worker.join().unwrap(), [NICE, NICE, nice(), NICE]);
        // Nothing is left.
        haste.look();
        assert!(!haste.raised.load(Ordering::Acquire));
    }
}
