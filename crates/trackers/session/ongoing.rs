//! The iterator over threads whose wait is not over.

use std::fmt;

use libbpf_rs::{IterOpts, Link, MapCore as _, MapFlags, MapHandle, Object};

use super::Session;
use super::error::{Doing as _, Result};
use super::load::{Refused, map, program};
use super::run;

/// Takes stacks of threads that sleep: their part in the kernel, and in native code. Python's is left to be
/// read from outside.
///
/// It reads memory of processes, which may be locked by them for long: best used on a thread of its own.
pub struct OngoingStacks {
    /// Which.
    asked: MapHandle,
    link: Link,
}

impl fmt::Debug for OngoingStacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OngoingStacks").finish_non_exhaustive()
    }
}

impl OngoingStacks {
    /// `None` where the kernel refuses the program.
    pub(super) fn open(object: &Object, refused: &Refused) -> Result<Option<Self>> {
        const PROGRAM: &str = "offcpu_ongoing";
        if refused.contains_key(PROGRAM) {
            return Ok(None);
        }
        let link = program(object, PROGRAM)?
            .attach_iter_with_opts(IterOpts::None)
            .doing("attaching the iterator over waiting threads")?;
        Ok(Some(OngoingStacks { asked: map(object, "ongoing")?, link }))
    }

    /// Has these threads' stacks told, of those that are off the CPU: their records are in the ring after
    /// that. Too many are left out.
    pub fn tell(&self, tids: &[u32]) -> Result<()> {
        if tids.is_empty() {
            return Ok(());
        }
        for tid in tids {
            // It is full.
            let _ = self.asked.update(&tid.to_ne_bytes(), &[0], MapFlags::ANY);
        }
        let told = run(&self.link, "running the iterator over waiting threads");
        for tid in tids {
            let _ = self.asked.delete(&tid.to_ne_bytes());
        }
        told
    }
}

impl Session {
    /// What takes stacks of threads that sleep; once. `None`: this kernel refuses it, or it was taken.
    pub fn take_ongoing(&mut self) -> Option<OngoingStacks> {
        self.ongoing.take()
    }
}
