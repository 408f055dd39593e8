//! Looks at a process: finds its interpreter, and remembers what was found per file.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::binary::{BinaryFacts, InterpreterFacts};
use crate::candidates::{Candidate, candidates, load_bias};
use crate::check::{Addresses, check};
use crate::frames::{self, FrameFacts};
use crate::gc::GcRung;
use crate::interpreter::{Binary, BinaryKind, GcFacts, GilLayout, Interpreter, Libc};
use crate::layout::{DEBUG_OFFSETS, GcAt, GilAt, Layout, layout};
use crate::memory::{Memory, after};
use crate::process::Process;
use crate::{InspectError, Version};

/// How often a failed self-check is repeated before it is believed: the process runs on meanwhile.
const ATTEMPTS: u32 = 6;
pub(crate) const PAUSE: Duration = Duration::from_micros(300);

/// Identity of a file's content, as far as `stat` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileKey {
    dev: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// Looks at processes, and remembers what it has read from each binary file: the workers of one
/// server share theirs.
#[derive(Debug, Default)]
pub struct Inspector {
    binaries: HashMap<FileKey, Arc<BinaryFacts>>,
    /// Test hook: changes the layout before it is used.
    #[cfg(test)]
    pub(crate) distort: Option<fn(&mut Layout)>,
}

impl Inspector {
    /// With an empty memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets all binaries. They take a few kilobytes each.
    pub fn clear(&mut self) {
        self.binaries.clear();
    }

    /// The interpreter of process `pid` (in our pid namespace). Takes well under a millisecond
    /// when its binary is known, some ten milliseconds when it is not. The process is not stopped.
    pub fn inspect(&mut self, pid: i32) -> Result<Interpreter, InspectError> {
        let process = Process { pid };
        let mappings = process.mappings()?;
        let (mut musl, mut awaits_library, mut refusal) = (false, false, None);
        for candidate in candidates(process, &mappings)? {
            let (key, facts) = self.facts(process, &candidate)?;
            if candidate.kind == BinaryKind::Executable {
                musl |= facts.musl;
                awaits_library |= facts.needs_libpython;
            }
            let Some(interpreter) = &facts.interpreter else { continue };
            let Some(bias) = load_bias(&mappings, &candidate.mapped_path, &facts) else { continue };
            musl |= mappings.iter().any(|mapping| mapping.path.contains("/ld-musl-"));
            let libc = if musl { Libc::Musl } else { Libc::Glibc };
            let binary = Binary {
                path: candidate.path,
                mapped_path: candidate.mapped_path,
                kind: candidate.kind,
                dev: key.dev,
                inode: key.inode,
                build_id: facts.build_id.clone(),
                load_bias: bias,
            };
            match self.locate(process, binary, &facts, interpreter, libc) {
                Ok(found) => return Ok(found),
                Err(error @ (InspectError::Gone | InspectError::Permission)) => return Err(error),
                // An executable may carry an interpreter it does not use, beside a library.
                Err(error) => refusal = refusal.or(Some(error)),
            }
        }
        match refusal {
            Some(InspectError::SelfCheck { .. }) if process.has_ended() => Err(InspectError::Gone),
            Some(error) => Err(error),
            None if process.has_ended() => Err(InspectError::Gone),
            None if awaits_library => {
                Err(InspectError::NotReady("its libpython is not yet loaded".into()))
            }
            None => Err(InspectError::NotPython),
        }
    }

    fn facts(
        &mut self,
        process: Process,
        candidate: &Candidate,
    ) -> Result<(FileKey, Arc<BinaryFacts>), InspectError> {
        let name = candidate.path.display().to_string();
        let explain = |error| match candidate.kind {
            BinaryKind::Executable => process.explain("exe", error),
            // Its file is looked up through the process, too.
            BinaryKind::Library if process.has_ended() => InspectError::Gone,
            BinaryKind::Library => InspectError::io(name.clone(), error),
        };
        let file = File::open(&candidate.path).map_err(explain)?;
        let meta = file.metadata().map_err(explain)?;
        let key = FileKey {
            dev: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
        };
        if let Some(facts) = self.binaries.get(&key) {
            return Ok((key, Arc::clone(facts)));
        }
        let root = process.file("root");
        let roots = [root.as_path(), Path::new("/")];
        let facts = Arc::new(BinaryFacts::read(file, &candidate.mapped_path, &roots)?);
        self.binaries.insert(key, Arc::clone(&facts));
        Ok((key, facts))
    }

    fn locate(
        &self,
        process: Process,
        binary: Binary,
        facts: &BinaryFacts,
        interpreter: &InterpreterFacts,
        libc: Libc,
    ) -> Result<Interpreter, InspectError> {
        let version = interpreter.version;
        let memory = Memory::new(process.pid);
        let runtime = interpreter.runtime.map(|address| binary.load_bias.wrapping_add(address));
        let head = match runtime {
            Some(runtime) if version.minor_pair() >= (3, 13) => {
                memory.bytes(runtime, DEBUG_OFFSETS)?
            }
            _ => Vec::new(),
        };
        #[cfg_attr(not(test), expect(unused_mut))]
        let mut layout = layout(version, &head)?;
        #[cfg(test)]
        if let Some(distort) = self.distort {
            distort(&mut layout);
        }
        let runtime = runtime.ok_or_else(|| InspectError::Unsupported {
            version,
            why: "its binary names no _PyRuntime and has no .PyRuntime section".into(),
        })?;
        let mut attempt = 1;
        let at = loop {
            let checked = addresses(memory, &layout, runtime)
                .and_then(|at| check(process, memory, &layout, at, libc).map(|()| at));
            match checked {
                Err(InspectError::SelfCheck { .. }) if attempt < ATTEMPTS => attempt += 1,
                other => break other?,
            }
            thread::sleep(PAUSE);
        };
        let collecting = after(at.gc, layout.gc_collecting);
        let mut rungs = interpreter.probes.rungs.clone();
        rungs.push(GcRung::Watchpoint { address: collecting });
        Ok(Interpreter {
            pid: process.pid,
            version,
            binary,
            stripped: facts.stripped,
            libc,
            runtime,
            main_interpreter: at.main,
            gil: at.gil,
            gil_layout: GilLayout::KNOWN,
            tstate_thread_id_offset: layout.tstate_thread_id,
            tstate_native_id_offset: layout.tstate_native_id,
            gc: GcFacts {
                collecting,
                generation_stats: after(at.gc, layout.gc_stats),
                rungs,
                missing: interpreter.probes.missing.clone(),
            },
            frames: self.frames(memory, version, &layout, at),
            layout,
        })
    }

    /// Unlike the rest, these are told only if they pass: a process can be watched without.
    fn frames(
        &self,
        memory: Memory,
        version: Version,
        layout: &Layout,
        at: Addresses,
    ) -> Result<FrameFacts, String> {
        let mut checked = frames::check(memory, version, layout, at);
        for _ in 1..ATTEMPTS {
            if checked.is_ok() {
                break;
            }
            thread::sleep(PAUSE);
            checked = frames::check(memory, version, layout, at);
        }
        checked
    }
}

/// Follows the pointers from `_PyRuntime`.
fn addresses(memory: Memory, layout: &Layout, runtime: u64) -> Result<Addresses, InspectError> {
    let not_ready = |what: &str| InspectError::NotReady(what.into());
    if let Some(offset) = layout.initialized {
        match memory.i32(after(runtime, offset))? {
            0 => return Err(not_ready("it is starting (or has finished)")),
            1 => {}
            other => {
                return Err(InspectError::SelfCheck {
                    what: "_PyRuntime.initialized",
                    expected: "0 or 1".into(),
                    found: other.to_string(),
                });
            }
        }
    }
    let main = memory.u64(after(runtime, layout.interpreters_head + 8))?;
    if main == 0 {
        return Err(not_ready("it has no main interpreter yet"));
    }
    let gil = match layout.gil {
        GilAt::Runtime(offset) => after(runtime, offset),
        GilAt::Interpreter(offset) => memory.u64(after(main, offset))?,
    };
    if gil == 0 {
        return Err(not_ready("its GIL is not yet created"));
    }
    let gc = match layout.gc {
        GcAt::Runtime(offset) => after(runtime, offset),
        GcAt::Interpreter(offset) => after(main, offset),
    };
    Ok(Addresses { runtime, main, gil, gc })
}
