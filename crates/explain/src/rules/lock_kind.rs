//! What kind of lock a thread waited for, by its stacks: only some kinds are held by somebody.

use underspan_model::{Frame, FrameKind, State};

use crate::case::Case;
use crate::interval::Interval;

/// What kind of lock it was, by the code that waited for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Lock {
    /// Whoever has it keeps others out: the thread that releases it held it.
    Exclusive,
    /// Whoever signals it held nothing: a condition, an event, a queue, a future.
    Condition,
    /// No stack was taken, or it does not tell.
    Unknown,
}

impl Lock {
    /// By the stacks of a thread while it waited.
    pub(super) fn of(case: &Case<'_>, tid: u32, during: Interval) -> Lock {
        let (mut conditions, mut exclusive, mut unknown) = (0u64, 0u64, 0u64);
        let own = case.samples.iter().filter(|s| s.tid == tid);
        for sample in own.filter(|s| s.state == State::LockWait) {
            let wait = Interval::new(sample.start_time, sample.duration_ns);
            let ns = wait.overlap(during).len();
            let sum = match Lock::at(&sample.stack.frames) {
                Lock::Condition => &mut conditions,
                Lock::Exclusive => &mut exclusive,
                Lock::Unknown => &mut unknown,
            };
            *sum = sum.saturating_add(ns);
        }
        if conditions > exclusive.saturating_add(unknown) {
            Lock::Condition
        } else if exclusive > conditions.saturating_add(unknown) {
            Lock::Exclusive
        } else {
            Lock::Unknown
        }
    }

    /// By one stack. Of who waits in C, for a condition or in a library's code, Python's frames tell
    /// nothing: the native ones must show that it is Python's own lock.
    fn at(frames: &[Frame]) -> Lock {
        let python = frames.iter().rev().filter(|frame| frame.kind == FrameKind::Python);
        let python: Vec<_> = python.take(3).collect();
        if python.iter().any(|frame| is_signalled(frame)) {
            return Lock::Condition;
        }
        let within = frames.iter().rev().take_while(|frame| frame.kind != FrameKind::Python);
        let within: Vec<_> = within.collect();
        if within.iter().any(|frame| MUTEXES.contains(&frame.function.as_str())) {
            return Lock::Exclusive;
        }
        let native = within.into_iter().filter(|frame| frame.kind == FrameKind::Native);
        let native: Vec<_> = native.collect();
        if native.iter().any(|frame| CONDITIONS.iter().any(|name| frame.function.contains(name))) {
            return Lock::Condition;
        }
        let is_pythons = !python.is_empty() && !native.is_empty();
        let is_pythons = is_pythons && native.iter().all(|frame| is_interpreter(frame));
        if is_pythons { Lock::Exclusive } else { Lock::Unknown }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Lock::Exclusive => "a lock",
            Lock::Condition => "a condition",
            Lock::Unknown => "a lock or condition",
        }
    }

    pub(super) fn advice(self) -> &'static str {
        match self {
            Lock::Exclusive => {
                "Hold that lock for less: no I/O and no computing while it is held, or split it by \
                 what it protects"
            }
            Lock::Condition => {
                "It waits for another thread's result or for a pool: enlarge the pool (database \
                 connections, threads), or let the request not wait for it"
            }
            Lock::Unknown => {
                "Hold that lock for less: no I/O and no computing while it is held, or split it by \
                 what it protects. If it is a pool's condition, enlarge the pool (database \
                 connections, threads)"
            }
        }
    }
}

/// Python's ways to wait for a signal. Each sleeps on a lock that the signalling thread releases, and
/// never held to keep others out.
fn is_signalled(frame: &Frame) -> bool {
    const BY_FILE: [(&str, &[&str]); 6] = [
        ("/threading.py", &["wait", "wait_for", "join", "_wait_for_tstate_lock", "acquire"]),
        ("/queue.py", &["get", "put", "join"]),
        ("/concurrent/futures/_base.py", &["result", "exception", "wait", "as_completed"]),
        ("/multiprocessing/pool.py", &["get", "wait"]),
        ("/multiprocessing/synchronize.py", &["wait", "wait_for"]),
        ("/multiprocessing/queues.py", &["get", "put", "join"]),
    ];
    let name = frame.function.rsplit('.').next().unwrap_or_default();
    // `RLock.acquire` written in Python keeps others out; `Semaphore.acquire` waits for a signal.
    let lock = frame.function.ends_with("RLock.acquire");
    !lock && BY_FILE.iter().any(|(file, names)| frame.file.ends_with(file) && names.contains(&name))
}

/// Native ways to wait for a signal: the C library's, the C++ library's, and Python's queue that is
/// written in C and sleeps on a lock.
const CONDITIONS: [&str; 7] = [
    "pthread_cond_",
    "cnd_wait",
    "cnd_timedwait",
    "condition_variable",
    "pthread_join",
    "pthread_clockjoin",
    "SimpleQueue_get",
];

/// Native ways to wait for whoever keeps others out, and the kernel's for file locks.
const MUTEXES: [&str; 10] = [
    "pthread_mutex_lock",
    "___pthread_mutex_lock",
    "__pthread_mutex_lock_full",
    "__lll_lock_wait",
    "pthread_rwlock_wrlock",
    "pthread_rwlock_rdlock",
    "__x64_sys_flock",
    "__do_sys_flock",
    "locks_lock_inode_wait",
    "fcntl_setlk",
];

/// Code that stands between Python's own lock and the kernel.
fn is_interpreter(frame: &Frame) -> bool {
    const MODULES: [&str; 6] = ["python", "libpython", "libc.so", "libc-", "libpthread", "ld-"];
    MODULES.iter().any(|own| frame.module.starts_with(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python(function: &str, file: &str) -> Frame {
        frame(FrameKind::Python, function, file, "")
    }

    fn native(function: &str, module: &str) -> Frame {
        frame(FrameKind::Native, function, "", module)
    }

    fn frame(kind: FrameKind, function: &str, file: &str, module: &str) -> Frame {
        let [function, file, module] = [function, file, module].map(str::to_owned);
        Frame { kind, function, file, line: 1, module }
    }

    /// An application's function that waits in native code.
    fn within(beneath: &[(&str, &str)]) -> Lock {
        let mut frames = vec![python("view", "/srv/app.py")];
        frames.extend(beneath.iter().map(|(function, module)| native(function, module)));
        frames.push(frame(FrameKind::Kernel, "futex_wait", "", "[kernel]"));
        Lock::at(&frames)
    }

    const SEM: (&str, &str) = ("__new_sem_wait_slow64", "libc.so.6");

    #[test]
    fn pythons_lock_is_known_with_and_without_symbols() {
        let acquire = ("PyThread_acquire_lock_timed", "libpython3.11.so.1.0");
        assert_eq!(
            within(&[("lock_PyThread_acquire_lock", "python3.11"), acquire, SEM]),
            Lock::Exclusive
        );
        assert_eq!(
            within(&[("0x4d21f0", "python3.11"), ("0x5f3a10", "libc.so.6")]),
            Lock::Exclusive
        );
        let frames =
            [python("RLock.acquire", "/usr/lib/python3.11/threading.py"), native("", "python3")];
        assert_eq!(Lock::at(&frames), Lock::Exclusive);
        // The native part is missing.
        assert_eq!(Lock::at(&frames[..1]), Lock::Unknown);
    }

    /// Whoever puts something into it held nothing, and no frame of Python's says that it is a queue.
    #[test]
    fn a_queue_written_in_c_is_not_held() {
        let queue = "_queue.cpython-311-x86_64-linux-gnu.so";
        let get = [("_queue_SimpleQueue_get_impl", queue), SEM];
        assert_eq!(within(&get), Lock::Condition);
        assert_eq!(within(&[("0x1f20", queue), SEM]), Lock::Unknown);
    }

    #[test]
    fn a_librarys_own_waits_are_not_held_unless_it_is_a_mutex() {
        let library = |function| (function, "_client.so");
        assert_eq!(
            within(&[library("poll"), ("pthread_cond_timedwait", "libc.so.6")]),
            Lock::Condition
        );
        assert_eq!(within(&[library("poll"), ("__futex_wait", "libc.so.6")]), Lock::Unknown);
        assert_eq!(within(&[library("log"), ("pthread_mutex_lock", "libc.so.6")]), Lock::Exclusive);
        let mut flock = vec![python("view", "/srv/app.py"), native("fcntl_flock", "fcntl.so")];
        flock.push(frame(FrameKind::Kernel, "__x64_sys_flock", "", "[kernel]"));
        assert_eq!(Lock::at(&flock), Lock::Exclusive);
        // Kernels differ in which of their functions are inlined.
        for function in ["__do_sys_flock", "locks_lock_inode_wait"] {
            *flock.last_mut().unwrap() = frame(FrameKind::Kernel, function, "", "[kernel]");
            assert_eq!(Lock::at(&flock), Lock::Exclusive, "{function}");
        }
    }

    #[test]
    fn without_python_only_a_mutex_is_known_to_be_held() {
        let waits =
            |function| Lock::at(&[native("serve", "server"), native(function, "libc.so.6")]);
        assert_eq!(waits("pthread_mutex_lock"), Lock::Exclusive);
        assert_eq!(waits("__futex_wait"), Lock::Unknown);
        assert_eq!(Lock::at(&[]), Lock::Unknown);
    }

    #[test]
    fn pythons_ways_to_wait_for_a_signal() {
        for (function, file) in [
            ("Condition.wait", "threading.py"),
            ("Semaphore.acquire", "threading.py"),
            ("Queue.get", "queue.py"),
            ("Future.result", "concurrent/futures/_base.py"),
            ("Condition.wait", "multiprocessing/synchronize.py"),
        ] {
            let file = format!("/usr/lib/python3.11/{file}");
            assert_eq!(Lock::at(&[python(function, &file)]), Lock::Condition, "{function}");
        }
    }
}
