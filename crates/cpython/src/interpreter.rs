//! What is known of a process's interpreter.

use std::ops::Range;
use std::path::PathBuf;

use crate::check::generation_stats;
use crate::frames::FrameFacts;
use crate::gc::GcRung;
use crate::layout::Layout;
use crate::memory::{Memory, after};
use crate::{InspectError, Version, pthread_tid};

/// The interpreter of one process, as checked. Addresses are the process's own.
#[derive(Clone, Debug)]
pub struct Interpreter {
    /// The process, in our pid namespace.
    pub pid: i32,
    /// Of the interpreter.
    pub version: Version,
    /// The file it came from.
    pub binary: Binary,
    /// The file has no `.symtab`.
    pub stripped: bool,
    /// The C library. GIL waits can be seen on glibc only: see [`Interpreter::gil_wait_range`].
    pub libc: Libc,
    /// Address of `_PyRuntime`.
    pub runtime: u64,
    /// Address of the main interpreter's state.
    pub main_interpreter: u64,
    /// Address of the main interpreter's GIL. From 3.12 on a subinterpreter may have a GIL of its
    /// own; waits for those are not seen.
    pub gil: u64,
    /// The fields of the GIL.
    pub gil_layout: GilLayout,
    /// `PyThreadState.thread_id`, in bytes: the pthread id, which is the thread's fsbase.
    pub tstate_thread_id_offset: u64,
    /// `PyThreadState.native_thread_id`, in bytes: the kernel's id in the process's own pid
    /// namespace. From 3.11.
    pub tstate_native_id_offset: Option<u64>,
    /// The collector.
    pub gc: GcFacts,
    /// Where the threads' Python frames are, or why they cannot be read: they did not pass their
    /// self-check, or no thread was running Python code. Asked again, the answer may be another.
    pub frames: Result<FrameFacts, String>,
    pub(crate) layout: Layout,
}

impl Interpreter {
    /// What `gc.get_stats()` would say now, the youngest generation first.
    pub fn generation_stats(&self) -> Result<[GenerationStats; 3], InspectError> {
        generation_stats(Memory::new(self.pid), self.gc.generation_stats)
    }

    /// The thread that holds the GIL now: its pthread id, and its kernel id in our pid namespace if
    /// it is known. `None` while the GIL is free. The answer may be outdated when it arrives.
    pub fn gil_holder(&self) -> Result<Option<(u64, Option<u32>)>, InspectError> {
        let memory = Memory::new(self.pid);
        if memory.i32(self.gil + self.gil_layout.locked)? != 1 {
            return Ok(None);
        }
        let holder = memory.u64(self.gil + self.gil_layout.last_holder)?;
        let pthread_id = memory.u64(after(holder, self.tstate_thread_id_offset))?;
        Ok(Some((pthread_id, pthread_tid(self.pid, pthread_id))))
    }

    /// The futex addresses of a wait for the GIL, or why they cannot be told.
    pub fn gil_wait_range(&self) -> Result<Range<u64>, &'static str> {
        match self.libc {
            Libc::Musl => Err("musl keeps a condition's futex on the waiter's stack, \
                               so GIL waits cannot be told from other waits there"),
            Libc::Glibc => {
                let Range { start, end } = self.gil_layout.cond;
                Ok(self.gil + start..self.gil + end)
            }
        }
    }
}

/// The file an interpreter was loaded from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binary {
    /// A path that opens the file from here, also for containers and deleted files. It goes
    /// through `/proc/PID`, so it is valid while the process lives.
    pub path: PathBuf,
    /// Its path as the process sees it.
    pub mapped_path: String,
    /// Executable or library.
    pub kind: BinaryKind,
    /// The file system's device number, as `stat` tells it.
    pub dev: u64,
    /// With `dev`, the file's identity.
    pub inode: u64,
    /// In hexadecimal.
    pub build_id: Option<String>,
    /// What to add to a virtual address of the file to get the process's address.
    pub load_bias: u64,
}

/// Where CPython was linked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryKind {
    /// The executable.
    Executable,
    /// A shared `libpython`.
    Library,
}

/// The C library of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Libc {
    /// GNU.
    Glibc,
    /// As in Alpine.
    Musl,
}

/// Offsets in the GIL structure, in bytes. The same in all supported versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GilLayout {
    /// The condition variable; a GIL wait's futex lies in it.
    pub cond: Range<u64>,
    /// `PyThreadState *` of the last holder. May dangle while the GIL is free.
    pub last_holder: u64,
    /// `int`: 1 held, 0 free.
    pub locked: u64,
}

impl GilLayout {
    pub(crate) const INTERVAL: u64 = 0;

    /// On x86-64 with glibc.
    pub const KNOWN: GilLayout = GilLayout { cond: 32..80, last_holder: 8, locked: 16 };
}

/// The collector of the main interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcFacts {
    /// Address of `gc.collecting`: an `int`, 1 during a collection.
    pub collecting: u64,
    /// Address of `generation_stats`: 3 × [`GenerationStats`], the youngest generation first.
    /// CPython counts a collection before it clears `collecting`, so the difference between a
    /// collection's start and end tells its generation and how many objects it collected.
    pub generation_stats: u64,
    /// What is possible in this process, best first. Never empty.
    pub rungs: Vec<GcRung>,
    /// Why better rungs are not there, in words.
    pub missing: Vec<String>,
}

/// What CPython counts per generation, as `gc.get_stats()` tells it. Each is a `Py_ssize_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GenerationStats {
    /// Collections so far.
    pub collections: i64,
    /// Objects collected so far.
    pub collected: i64,
    /// Objects found unreachable and not collectable so far.
    pub uncollectable: i64,
}
