//! Binaries by what they are: the same file of many processes and containers is read once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::rc::{Rc, Weak};

use lru::LruCache;

use crate::binary::Binary;
use crate::debug_file::DebugFiles;
use crate::process::Ways;

/// Open binaries at the most; each takes up to three descriptors.
const OPEN: NonZeroUsize = NonZeroUsize::new(128).unwrap();

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

type Shared = Rc<RefCell<Binary>>;

/// The binaries that were used last.
pub(crate) struct Binaries {
    debug: DebugFiles,
    /// `None`: it cannot be read.
    by_file: LruCache<FileId, Option<Shared>>,
    by_build: HashMap<Vec<u8>, Weak<RefCell<Binary>>>,
}

impl Binaries {
    pub(crate) fn new() -> Self {
        Binaries {
            debug: DebugFiles::of_this_system(),
            by_file: LruCache::new(OPEN),
            by_build: HashMap::new(),
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
