//! Names of Python frames, remembered: reading a code object costs system calls, and most frames
//! were seen before.

use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use underspan_cpython::code::CodeNames;
use underspan_trackers::stack::PythonFrame;

use crate::Incarnation;

/// Frames remembered, some 150 bytes each.
const FRAMES: NonZeroUsize = NonZeroUsize::new(32_768).unwrap();
/// Processes whose parent is remembered.
const PARENTS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// A Python frame's name and place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PythonName {
    /// The function's qualified name; before 3.11 its name.
    pub(crate) function: Arc<str>,
    /// As in its traceback.
    pub(crate) file: Arc<str>,
    /// In the file; 0 if it is not known.
    pub(crate) line: u32,
}

/// A frame, without what differs from one stack to the next.
type Key = (Incarnation, u64, u32, u32);

/// Names Python frames.
pub(crate) struct Python {
    names: CodeNames,
    known: LruCache<Key, PythonName>,
    parents: LruCache<Incarnation, Incarnation>,
}

impl Python {
    pub(crate) fn new() -> Self {
        Python {
            names: CodeNames::new(),
            known: LruCache::new(FRAMES),
            parents: LruCache::new(PARENTS),
        }
    }

    /// The name of a frame. `None` if its code object is gone, or is another one by now.
    pub(crate) fn name(&mut self, process: Incarnation, frame: &PythonFrame) -> Option<PythonName> {
        let key = |process| (process, frame.code, frame.check, frame.lasti);
        if let Some(known) = self.known.get(&key(process)) {
            return Some(known.clone());
        }
        let parent = self.parents.get(&process).copied();
        let of_parent = parent.and_then(|parent| self.known.get(&key(parent)).cloned());
        let name = of_parent.or_else(|| self.read(process, frame)).or_else(|| {
            // The child is gone; what it inherited is still in its parent.
            self.read(parent?, frame)
        })?;
        self.known.put(key(process), name.clone());
        Some(name)
    }

    /// `child` was forked from `parent`: it has the same code objects at the same addresses.
    pub(crate) fn forked(&mut self, parent: Incarnation, child: Incarnation) {
        self.parents.put(child, parent);
    }

    /// The process ended, or began another program.
    pub(crate) fn forget(&mut self, pid: u32) {
        if let Ok(pid) = i32::try_from(pid) {
            self.names.forget(pid);
        }
    }

    fn read(&mut self, process: Incarnation, frame: &PythonFrame) -> Option<PythonName> {
        let pid = i32::try_from(process.pid).ok()?;
        match self.names.locate(pid, frame.code, frame.check, frame.lasti) {
            Ok(place) => {
                Some(PythonName { function: place.function, file: place.file, line: place.line })
            }
            Err(error) => {
                tracing::debug!(pid, code = frame.code, "a Python frame has no name: {error}");
                None
            }
        }
    }
}
