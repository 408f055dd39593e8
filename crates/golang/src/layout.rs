//! Where the fields of Go's `g` and `m` are.

use crate::Version;

/// Bytes of a `g` that are read: up to its last field of interest in every known version.
pub(crate) const G_SIZE: usize = 384;
/// The same of an `m`.
pub(crate) const M_SIZE: usize = 128;

/// Offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// In `g`: `stack.lo`; `stack.hi` follows it.
    pub(crate) stack: usize,
    pub(crate) m: usize,
    pub(crate) sched_sp: usize,
    pub(crate) sched_pc: usize,
    pub(crate) syscall_sp: usize,
    pub(crate) syscall_pc: usize,
    pub(crate) status: usize,
    pub(crate) goid: usize,
    pub(crate) wait_since: usize,
    pub(crate) wait_reason: usize,
    /// Counts how often the goroutine stopped running (8 bits).
    pub(crate) tracking_seq: usize,
    pub(crate) start_pc: usize,
    /// In `m`: `g0`, the goroutine of the scheduler itself.
    pub(crate) g0: usize,
    /// In `m`: the thread's id.
    pub(crate) procid: usize,
}

/// By the first minor version of Go 1 that has it; read out of the DWARF of released toolchains.
const TABLE: [(u16, Layout); 6] = [
    (19, layout(144, 189, 312, OLD)),
    (21, layout(144, 188, 296, OLD)),
    (22, layout(144, 191, 296, OLD)),
    (23, layout(152, 199, 304, OLD)),
    (25, layout(144, 191, 296, NEW)),
    (26, layout(144, 191, 304, NEW)),
];
/// The first version that is not known.
const UNKNOWN: u16 = 27;

/// Where `g.syscallsp` and `m.procid` are: both follow a `gobuf`, which lost a word in 1.25.
const OLD: (usize, usize) = (112, 72);
const NEW: (usize, usize) = (104, 64);

const fn layout(status: usize, seq: usize, start_pc: usize, after: (usize, usize)) -> Layout {
    Layout {
        stack: 0,
        m: 48,
        sched_sp: 56,
        sched_pc: 64,
        syscall_sp: after.0,
        syscall_pc: after.0 + 8,
        status,
        goid: status + 8,
        wait_since: status + 24,
        wait_reason: status + 32,
        tracking_seq: seq,
        start_pc,
        g0: 0,
        procid: after.1,
    }
}

impl Layout {
    /// What is known of this version.
    pub(crate) fn of(version: Version) -> Option<Self> {
        if version.major != 1 || version.minor >= UNKNOWN {
            return None;
        }
        let known = TABLE.iter().rev().find(|(first, _)| *first <= version.minor);
        known.map(|(_, layout)| *layout)
    }

    /// Whether everything lies within what is read.
    pub(crate) fn fits(&self) -> bool {
        let words = [self.stack + 8, self.m, self.sched_sp, self.sched_pc, self.syscall_sp];
        let more = [self.syscall_pc, self.status, self.goid, self.wait_since, self.wait_reason];
        let rest = [self.tracking_seq, self.start_pc];
        let last = words.into_iter().chain(more).chain(rest).max().unwrap_or(0);
        last + 8 <= G_SIZE && self.g0.max(self.procid) + 8 <= M_SIZE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_version_has_one() {
        for minor in 19..UNKNOWN {
            let layout = Layout::of(Version { major: 1, minor, patch: 0 }).unwrap();
            assert!(layout.fits(), "1.{minor}");
        }
        for minor in [0, 18, UNKNOWN] {
            assert_eq!(Layout::of(Version { major: 1, minor, patch: 0 }), None, "1.{minor}");
        }
        assert_eq!(Layout::of(Version { major: 2, minor: 22, patch: 0 }), None);
    }
}
