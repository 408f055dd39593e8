//! What goroutines wait for, in the runtime's own words.

use std::sync::Arc;

use underspan_remote::{Memory, word};

use crate::Version;

/// More than any version has.
const MOST: usize = 96;
/// Longer than the longest.
const MAX_LEN: usize = 48;

/// Names of wait reasons, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reasons(Vec<Arc<str>>);

impl Reasons {
    /// The name of this reason; empty for one that is not known.
    pub(crate) fn name(&self, reason: u8) -> Arc<str> {
        self.0.get(usize::from(reason)).cloned().unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Reads `runtime.waitReasonStrings`: as many strings as there are. `None` if that is not what
    /// is at `address`.
    pub(crate) fn read(memory: &Memory, address: u64, size: u64) -> Option<Self> {
        let count = usize::try_from(size / 16).ok().filter(|count| *count <= MOST)?;
        let headers = memory.bytes(address, count * 16).ok()?;
        let mut names: Vec<Arc<str>> = Vec::with_capacity(count);
        for header in headers.chunks_exact(16) {
            let (text, len) = (word(header, 0), word(header, 8) as usize);
            let name = match len {
                0 => String::new(),
                1..=MAX_LEN => String::from_utf8(memory.bytes(text, len).ok()?).ok()?,
                _ => return None,
            };
            names.push(name.into());
        }
        names.iter().any(|name| **name == *"IO wait").then_some(Reasons(names))
    }

    /// From the table by version, for programs without symbols.
    pub(crate) fn of(version: Version) -> Self {
        let names: Vec<&str> = match version.minor {
            ..=19 => [&OLD_HEAD[..], &GO119].concat(),
            20..=21 => [&OLD_HEAD[..], &SYNC, &TAIL].concat(),
            22 => [&OLD_HEAD[..], &SYNC, &TAIL, &TRACE].concat(),
            23 => [&OLD_HEAD[..], &SYNC, &TAIL, &TRACE, &WEAK].concat(),
            24 => [&OLD_HEAD[..], &SYNC, &GROUP, &TAIL, &TRACE, &WEAK, &SYNCTEST_124].concat(),
            25 => {
                let (head, rest) = OLD_HEAD.split_at(18);
                [head, &UPDATER, rest, &SYNC, &GROUP, &TAIL, &TRACE, &WEAK, &SYNCTEST].concat()
            }
            _ => [&NEW_HEAD[..], &SYNC, &GROUP, &TAIL, &TRACE, &WEAK, &SYNCTEST].concat(),
        };
        Reasons(names.into_iter().map(Arc::from).collect())
    }
}

const OLD_HEAD: [&str; 21] = [
    "",
    "GC assist marking",
    "IO wait",
    "chan receive (nil chan)",
    "chan send (nil chan)",
    "dumping heap",
    "garbage collection",
    "garbage collection scan",
    "panicwait",
    "select",
    "select (no cases)",
    "GC assist wait",
    "GC sweep wait",
    "GC scavenge wait",
    "chan receive",
    "chan send",
    "finalizer wait",
    "force gc (idle)",
    "semacquire",
    "sleep",
    "sync.Cond.Wait",
];
const NEW_HEAD: [&str; 22] = [
    "",
    "GC assist marking",
    "IO wait",
    "dumping heap",
    "garbage collection",
    "garbage collection scan",
    "panicwait",
    "GC assist wait",
    "GC sweep wait",
    "GC scavenge wait",
    "finalizer wait",
    "force gc (idle)",
    "GOMAXPROCS updater (idle)",
    "semacquire",
    "sleep",
    "chan receive (nil chan)",
    "chan send (nil chan)",
    "select (no cases)",
    "select",
    "chan receive",
    "chan send",
    "sync.Cond.Wait",
];
const GO119: [&str; 6] = [
    "timer goroutine (idle)",
    "trace reader (blocked)",
    "wait for GC cycle",
    "GC worker (idle)",
    "preempted",
    "debug call",
];
const UPDATER: [&str; 1] = ["GOMAXPROCS updater (idle)"];
const SYNC: [&str; 3] = ["sync.Mutex.Lock", "sync.RWMutex.RLock", "sync.RWMutex.Lock"];
const GROUP: [&str; 1] = ["sync.WaitGroup.Wait"];
const TAIL: [&str; 8] = [
    "trace reader (blocked)",
    "wait for GC cycle",
    "GC worker (idle)",
    "GC worker (active)",
    "preempted",
    "debug call",
    "GC mark termination",
    "stopping the world",
];
const TRACE: [&str; 5] = [
    "flushing proc caches",
    "trace goroutine status",
    "trace proc status",
    "page trace flush",
    "coroutine",
];
const WEAK: [&str; 1] = ["GC weak to strong wait"];
const SYNCTEST_124: [&str; 5] = [
    "synctest.Run",
    "synctest.Wait",
    "chan receive (synctest)",
    "chan send (synctest)",
    "select (synctest)",
];
const SYNCTEST: [&str; 7] = [
    "synctest.Run",
    "synctest.Wait",
    "chan receive (durable)",
    "chan send (durable)",
    "select (durable)",
    "sync.WaitGroup.Wait (durable)",
    "cleanup wait",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(minor: u16) -> Reasons {
        Reasons::of(Version { major: 1, minor, patch: 0 })
    }

    #[test]
    fn as_many_as_each_version_has() {
        let counts = (19..=26).map(|minor| reasons(minor).len());
        assert_eq!(counts.collect::<Vec<_>>(), [27, 32, 32, 37, 38, 44, 47, 47]);
    }

    #[test]
    fn some_by_number() {
        assert_eq!(&*reasons(22).name(14), "chan receive");
        assert_eq!(&*reasons(24).name(24), "sync.WaitGroup.Wait");
        assert_eq!(&*reasons(25).name(20), "sleep");
        assert_eq!(&*reasons(26).name(14), "sleep");
        assert_eq!(&*reasons(26).name(46), "cleanup wait");
        assert_eq!(&*reasons(26).name(200), "");
    }
}
