//! Binaries by what they are: the same file of many processes and containers is read once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use lru::LruCache;
use nix::sys::resource::{UsageWho, getrusage};

use crate::binary::{Binary, Named};
use crate::debug_file::DebugFiles;
use crate::heap::measured;
use crate::process::Ways;
use crate::reader::{give_back, let_go};

/// Open binaries at the most; each takes up to three descriptors.
const OPEN: NonZeroUsize = NonZeroUsize::new(128).unwrap();

/// What was read of a file is kept that long after the last look-up in it, if there is room: reading it again
/// takes long for a large one (measured once: 50 ms).
const STAY_OPEN: Duration = Duration::from_secs(10);
/// Reading a file again is cheap after that many times what was spent on it: 2 % of the time.
const PAUSE: u32 = 50;
/// Page faults in look-ups after which files' pages are let go of at once. Each brings 64 kB in.
const FAULTS: u64 = 64;

/// How much is kept, beside files' pages.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Bytes of what was read of files, of all together. Above that, files are closed as soon as reading them
    /// again costs little;
    read: usize,
    /// above that, at once.
    read_at_most: usize,
    /// Bytes of one file above which its DWARF is left out from then on.
    dwarf: usize,
    /// Bytes of names.
    named: usize,
}

const BOUNDS: Bounds =
    Bounds { read: 24 << 20, read_at_most: 48 << 20, dwarf: 32 << 20, named: 8 << 20 };

/// A file's identity. Inodes are given out again, so its size and last change are in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
    size: u64,
    changed_ns: i64,
}

impl FileId {
    /// Of the file that a path leads to, without opening it.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        Some(FileId::from(&fs::metadata(path).ok()?))
    }

    fn from(file: &fs::Metadata) -> Self {
        FileId {
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            changed_ns: file.mtime().wrapping_mul(1_000_000_000).wrapping_add(file.mtime_nsec()),
        }
    }
}

pub(crate) type Shared = Rc<RefCell<Binary>>;

/// The binaries that were used last.
pub(crate) struct Binaries {
    bounds: Bounds,
    debug: DebugFiles,
    /// `None`: it cannot be read.
    by_file: LruCache<FileId, Option<Shared>>,
    by_build: HashMap<Vec<u8>, Weak<RefCell<Binary>>>,
    /// Those whose symbols are being read.
    read: Vec<Reading>,
    /// Bytes of names.
    named: usize,
    /// Page faults in look-ups since files' pages were let go of.
    faults: u64,
}

/// A binary whose symbols are being read.
struct Reading {
    binary: Shared,
    since: Instant,
    last: Instant,
    /// What look-ups took.
    spent: Duration,
    /// What was read of it, without the files' pages.
    bytes: usize,
}

impl Binaries {
    pub(crate) fn new() -> Self {
        Binaries {
            bounds: BOUNDS,
            debug: DebugFiles::of_this_system(),
            by_file: LruCache::new(OPEN),
            by_build: HashMap::new(),
            read: Vec::new(),
            named: 0,
            faults: 0,
        }
    }

    /// Names the instruction at an offset in the file.
    pub(crate) fn name(&mut self, binary: &Shared, offset: u64, module: &str) -> Named {
        if let Some(named) = binary.borrow_mut().known(offset, module) {
            return named;
        }
        let (before, start) = (faults(), Instant::now());
        let (named, bytes) = measured(|| binary.borrow_mut().name(offset, module));
        let now = Instant::now();
        let new = || Reading {
            binary: Rc::clone(binary),
            since: now,
            last: now,
            spent: Duration::ZERO,
            bytes: 0,
        };
        let known = self.read.iter().position(|reading| Rc::ptr_eq(&reading.binary, binary));
        let index = known.unwrap_or_else(|| {
            self.read.push(new());
            self.read.len() - 1
        });
        if let Some(reading) = self.read.get_mut(index) {
            reading.last = now;
            reading.spent += now.duration_since(start);
            reading.bytes = reading.bytes.saturating_add_signed(bytes);
            if reading.bytes > self.bounds.dwarf && binary.borrow_mut().leave_dwarf_out(module) {
                reading.bytes = 0;
            }
        }
        self.named += named.bytes();
        self.faults += faults().saturating_sub(before);
        if self.faults >= FAULTS {
            self.let_pages_go();
        }
        self.keep_bounds(now);
        named
    }

    /// Gives back memory that only look-ups need: of files where there were none for long, what was read
    /// of them; of the others, their pages.
    pub(crate) fn rest(&mut self) {
        let now = Instant::now();
        self.close(|reading| now.duration_since(reading.last) >= STAY_OPEN);
        if self.faults > 0 {
            self.let_pages_go();
        }
    }

    fn let_pages_go(&mut self) {
        self.faults = 0;
        let binaries: Vec<_> = self.read.iter().map(|reading| reading.binary.borrow()).collect();
        let_go(binaries.iter().map(|binary| binary.sources()));
    }

    fn keep_bounds(&mut self, now: Instant) {
        let bytes = self.read.iter().map(|reading| reading.bytes).sum::<usize>();
        if bytes > self.bounds.read {
            let at_once = bytes > self.bounds.read_at_most;
            // It was read for the name that was asked for last.
            let newest = self.read.iter().map(|reading| reading.last).max();
            self.close(|reading| {
                let cheap = now.duration_since(reading.since) >= reading.spent * PAUSE;
                Some(reading.last) != newest && (at_once || cheap)
            });
        }
        if self.named > self.bounds.named {
            self.forget_names();
        }
    }

    fn close(&mut self, unused: impl Fn(&Reading) -> bool) {
        let before = self.read.len();
        self.read.retain(|reading| {
            let unused = unused(reading);
            if unused {
                let Reading { bytes, spent, .. } = reading;
                tracing::debug!(bytes, ?spent, "what was read of a binary is let go of");
                reading.binary.borrow_mut().close();
            }
            !unused
        });
        if self.read.len() < before {
            give_back();
        }
    }

    /// Of the binaries that were used least lately, until half of the bound is free.
    fn forget_names(&mut self) {
        let all = || self.by_file.iter().filter_map(|(_, binary)| binary.as_ref());
        // Some binaries have several files.
        self.named = 0;
        let mut counted: Vec<*const RefCell<Binary>> = Vec::new();
        for binary in all() {
            if counted.contains(&Rc::as_ptr(binary)) {
                continue;
            }
            counted.push(Rc::as_ptr(binary));
            let mut binary = binary.borrow_mut();
            if self.named + binary.named_bytes() > self.bounds.named / 2 {
                binary.forget_names();
            }
            self.named += binary.named_bytes();
        }
    }

    /// The binary with this identity. If it is not open yet, there are ways to it; whatever else is at
    /// their end by now is not taken for it.
    pub(crate) fn get(&mut self, id: FileId, ways: &Ways<'_>) -> Option<Shared> {
        if let Some(known) = self.by_file.get(&id) {
            return known.clone();
        }
        // Not remembered if there is none: another process may know a way to it.
        let file = ways.paths().iter().find_map(|path| open_as(path, id))?;
        let binary = Binary::new(file, &self.debug, Some(&ways.root()));
        let binary = binary.map(|binary| self.share(binary));
        self.by_file.put(id, binary.clone());
        binary
    }

    /// Another container's copy of the same build serves as well.
    fn share(&mut self, binary: Binary) -> Shared {
        let Some(build_id) = binary.build_id().map(<[u8]>::to_vec) else {
            return Rc::new(RefCell::new(binary));
        };
        if let Some(known) = self.by_build.get(&build_id).and_then(Weak::upgrade) {
            return known;
        }
        self.by_build.retain(|_, known| known.strong_count() > 0);
        let shared = Rc::new(RefCell::new(binary));
        self.by_build.insert(build_id, Rc::downgrade(&shared));
        shared
    }
}

fn open_as(path: &Path, id: FileId) -> Option<File> {
    // Told before it is opened, since opening a pipe or a device can hang or do something.
    if FileId::of(path)? != id || !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let file = File::open(path).ok()?;
    (FileId::from(&file.metadata().ok()?) == id).then_some(file)
}

/// Pages that this thread has touched and that were not there, since it began.
fn faults() -> u64 {
    let usage = getrusage(UsageWho::RUSAGE_THREAD);
    usage.map_or(0, |usage| usage.minor_page_faults().unsigned_abs())
}

#[cfg(test)]
mod tests;
