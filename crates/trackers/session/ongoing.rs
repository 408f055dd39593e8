//! The iterator over threads whose wait is not over.

use libbpf_rs::{IterOpts, Link, MapCore as _, MapFlags, MapHandle, Object};

use super::Session;
use super::error::{Doing as _, Result};
use super::load::{Refused, map, program};
use super::run;

/// Takes stacks in the kernel of threads that sleep.
pub(super) struct Ongoing {
    /// Which.
    asked: MapHandle,
    link: Link,
}

impl Ongoing {
    /// `None` where the kernel refuses the program.
    pub(super) fn open(object: &Object, refused: &Refused) -> Result<Option<Self>> {
        const PROGRAM: &str = "offcpu_ongoing";
        if refused.contains_key(PROGRAM) {
            return Ok(None);
        }
        let link = program(object, PROGRAM)?
            .attach_iter_with_opts(IterOpts::None)
            .doing("attaching the iterator over waiting threads")?;
        Ok(Some(Ongoing { asked: map(object, "ongoing")?, link }))
    }
}

impl Session {
    /// Has these threads' stacks in the kernel told, of those that are off the CPU: their records are in
    /// the ring after that. Too many are left out.
    pub fn tell_ongoing(&self, tids: &[u32]) -> Result<()> {
        let Some(ongoing) = &self.ongoing else { return Ok(()) };
        if tids.is_empty() {
            return Ok(());
        }
        for tid in tids {
            // It is full.
            let _ = ongoing.asked.update(&tid.to_ne_bytes(), &[0], MapFlags::ANY);
        }
        let told = run(&ongoing.link, "running the iterator over waiting threads");
        for tid in tids {
            let _ = ongoing.asked.delete(&tid.to_ne_bytes());
        }
        told
    }
}
