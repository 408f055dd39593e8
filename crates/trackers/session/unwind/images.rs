//! Binaries whose tables are in place: each is read once, however many processes map it.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::rc::Rc;
use std::time::Instant;

use object::{ReadCache, ReadRef};
use underspan_unwind::{
    Backing, Error, Identity, Image, Mapping, Segment, address_of, open, read_memory,
};

use super::tables::{Placed, Tables};

/// The vdso has two pages; a bound all the same.
const MAX_VDSO: u64 = 1 << 20;
/// Files remembered at the most, mapped or not.
const MAX_FILES: usize = 2048;

/// One file, as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FileKey {
    dev: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// One binary, in however many files.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum BinaryKey {
    Built(Identity),
    File(FileKey),
}

/// What is known of a file.
#[derive(Clone, Debug)]
pub(super) struct Binary {
    segments: Rc<[Segment]>,
    /// `None`: it has no table, or there is no room for it.
    pub(super) table: Option<Rc<Placed>>,
    /// There is one, and no room for it.
    pub(super) no_room: bool,
}

impl Binary {
    /// Where the table's first byte of code is, if the mapping begins at `start`, with byte
    /// `offset` of the file.
    pub(super) fn base(&self, placed: &Placed, start: u64, offset: u64) -> Option<u64> {
        let address = address_of(&self.segments, offset)?;
        Some(start.wrapping_add(placed.base.wrapping_sub(address)))
    }
}

/// All of them.
pub(super) struct Images {
    pub(super) tables: Tables,
    files: HashMap<FileKey, Option<Binary>>,
    binaries: HashMap<BinaryKey, Rc<Placed>>,
    /// Tables for which there was no room.
    pub(super) refused: u64,
}

impl Images {
    pub(super) fn new(tables: Tables) -> Self {
        Images { tables, files: HashMap::new(), binaries: HashMap::new(), refused: 0 }
    }

    /// Tables in place.
    pub(super) fn count(&self) -> usize {
        self.binaries.len()
    }

    /// The binary behind a mapping. `Ok(None)`: it is none, or is damaged.
    pub(super) fn of(&mut self, pid: u32, mapping: &Mapping) -> Result<Option<Binary>, Error> {
        match mapping.backing {
            Backing::Anonymous => Ok(None),
            Backing::Vdso => {
                let copy = read_memory(pid, mapping, MAX_VDSO)?;
                Ok(self.read(copy.as_slice(), None, "[vdso]"))
            }
            Backing::File(ref path) => {
                let file = open(pid, mapping)?;
                let key = file_key(&file)?;
                if let Some(known) = self.files.get(&key)
                    && !known.as_ref().is_some_and(|binary| binary.no_room)
                {
                    return Ok(known.clone());
                }
                let cache = ReadCache::new(file);
                let read = self.read(&cache, Some(key.clone()), &path.display().to_string());
                if self.files.len() >= MAX_FILES {
                    self.files.clear();
                }
                self.files.insert(key, read.clone());
                Ok(read)
            }
        }
    }

    fn read<'data, R: ReadRef<'data>>(
        &mut self,
        data: R,
        file: Option<FileKey>,
        name: &str,
    ) -> Option<Binary> {
        let image =
            Image::parse(data).inspect_err(|error| tracing::debug!("{name}: {error}")).ok()?;
        let segments = Rc::from(image.segments());
        let none = Binary { segments: Rc::clone(&segments), table: None, no_room: false };
        let key = image.identity().map(BinaryKey::Built).or(file.map(BinaryKey::File));
        let Some(key) = key else { return Some(none) };
        if let Some(placed) = self.binaries.get(&key) {
            return Some(Binary { segments, table: Some(Rc::clone(placed)), no_room: false });
        }
        let table = match image.table() {
            Ok(table) => table,
            Err(error @ (Error::Damaged(_) | Error::TooLarge { .. } | Error::TooWide)) => {
                tracing::warn!("{name}: its frames are not unwound by tables: {error}");
                return Some(none);
            }
            Err(error) => {
                tracing::debug!("{name}: {error}");
                return Some(none);
            }
        };
        match self.tables.place(&table) {
            Ok(Some(placed)) => {
                let placed = Rc::new(placed);
                self.binaries.insert(key, Rc::clone(&placed));
                Some(Binary { segments, table: Some(placed), no_room: false })
            }
            Ok(None) => {
                if self.refused == 0 {
                    tracing::warn!(
                        "{name}: no room for its unwind table of {} rows: its frames end stacks \
                         (watch fewer programs)",
                        table.rows.len()
                    );
                }
                self.refused += 1;
                // Tables that no process uses may make room for the next time.
                self.forget_unused(Instant::now());
                Some(Binary { no_room: true, ..none })
            }
            Err(error) => {
                tracing::warn!("{name}: its unwind table cannot be put in place: {error}");
                self.refused += 1;
                Some(Binary { no_room: true, ..none })
            }
        }
    }

    /// Takes the tables away that no process uses. Their room can be used a little later.
    pub(super) fn forget_unused(&mut self, now: Instant) {
        // Who refers to a table, of what is not a process's mappings: `binaries`, and its files.
        let mut held: HashMap<*const Placed, usize> = HashMap::new();
        for table in self.files.values().flatten().filter_map(|binary| binary.table.as_ref()) {
            *held.entry(Rc::as_ptr(table)).or_default() += 1;
        }
        let mut unused = HashSet::new();
        self.binaries.retain(|_, placed| {
            let held = held.get(&Rc::as_ptr(placed)).copied().unwrap_or(0);
            if Rc::strong_count(placed) > 1 + held {
                return true;
            }
            self.tables.remove(placed.extent, now);
            unused.insert(Rc::as_ptr(placed));
            false
        });
        self.files.retain(|_, binary| {
            let table = binary.as_ref().and_then(|binary| binary.table.as_ref());
            !table.is_some_and(|table| unused.contains(&Rc::as_ptr(table)))
        });
    }
}

fn file_key(file: &File) -> Result<FileKey, Error> {
    let meta =
        file.metadata().map_err(|source| Error::Io { path: "its metadata".into(), source })?;
    Ok(FileKey {
        dev: meta.dev(),
        inode: meta.ino(),
        size: meta.size(),
        modified: (meta.mtime(), meta.mtime_nsec()),
    })
}
