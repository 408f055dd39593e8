//! Binaries whose tables are in place: each is read once, however many processes map it.
//!
//! The smallest first, and a little at a time: what many programs have mapped is small, and who has to wait for it
//! should not wait for one that takes seconds.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::rc::Rc;
use std::time::Instant;

use underspan_unwind::{
    Backing, Error, Identity, Image, Mapping, Segment, address_of, open, read_memory,
};

use super::tables::{Outcome, Placed, Placing, Tables};

/// The vdso has two pages; a bound all the same.
const MAX_VDSO: u64 = 1 << 20;
/// Files remembered at the most, mapped or not.
const MAX_FILES: usize = 2048;
/// Functions that are read at once: some milliseconds.
const AT_ONCE: usize = 4096;
/// Binaries that are being read: one is left for a smaller one.
const MAX_READING: usize = 4;

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

/// One that is still to be read.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    key: BinaryKey,
    file: Option<FileKey>,
    segments: Rc<[Segment]>,
    /// How much there is to be read, bytes.
    work: u64,
}

impl Wanted {
    /// How much there is to be read, bytes.
    pub(super) fn work(&self) -> u64 {
        self.work
    }

    fn with(&self, table: Option<Rc<Placed>>, no_room: bool) -> Binary {
        Binary { segments: Rc::clone(&self.segments), table, no_room }
    }
}

/// What is behind a mapping.
#[derive(Clone, Debug)]
pub(super) enum Found {
    /// No binary, or a damaged one.
    Nothing,
    Known(Binary),
    Wanted(Wanted),
}

impl Found {
    fn table(&self) -> Option<&Rc<Placed>> {
        match self {
            Found::Known(binary) => binary.table.as_ref(),
            Found::Nothing | Found::Wanted(_) => None,
        }
    }

    pub(super) fn wanted(&self) -> Option<&Wanted> {
        match self {
            Found::Wanted(wanted) => Some(wanted),
            Found::Nothing | Found::Known(_) => None,
        }
    }

    /// Says whether that is what was wanted here.
    pub(super) fn resolve(&mut self, done: &Done) -> bool {
        let Found::Wanted(wanted) = self else { return false };
        if wanted.key != done.key {
            return false;
        }
        let Binary { table, no_room, .. } = &done.binary;
        *self = Found::Known(wanted.with(table.clone(), *no_room));
        true
    }
}

/// One that was read, and what became of it.
pub(super) struct Done {
    key: BinaryKey,
    binary: Binary,
}

/// One that is being read.
struct Reading {
    wanted: Wanted,
    name: String,
    placing: Placing,
}

/// All of them.
pub(super) struct Images {
    pub(super) tables: Tables,
    files: HashMap<FileKey, Found>,
    binaries: HashMap<BinaryKey, Rc<Placed>>,
    /// Each is smaller than the one before.
    reading: Vec<Reading>,
    /// Tables for which there was no room.
    pub(super) refused: u64,
}

impl Images {
    pub(super) fn new(tables: Tables) -> Self {
        Images {
            tables,
            files: HashMap::new(),
            binaries: HashMap::new(),
            reading: Vec::new(),
            refused: 0,
        }
    }

    /// Tables in place.
    pub(super) fn count(&self) -> usize {
        self.binaries.len()
    }

    /// The binary behind a mapping. Only its headers are read.
    pub(super) fn of(&mut self, pid: u32, mapping: &Mapping) -> Result<Found, Error> {
        if mapping.backing == Backing::Anonymous {
            return Ok(Found::Nothing);
        }
        let (image, file) = match mapping.backing {
            Backing::File(_) => {
                let file = open(pid, mapping)?;
                let key = file_key(&file)?;
                match self.files.get(&key) {
                    // There may be room by now.
                    Some(Found::Known(binary)) if binary.no_room => {}
                    Some(Found::Wanted(wanted)) => return Ok(self.known(wanted)),
                    Some(found) => return Ok(found.clone()),
                    None => {}
                }
                (Image::parse(file), Some(key))
            }
            _ => (Image::parse(read_memory(pid, mapping, MAX_VDSO)?), None),
        };
        let found = match image {
            Ok(image) => self.found(&image, file.clone()),
            Err(error) => {
                tracing::debug!("{:?}: {error}", mapping.backing);
                Found::Nothing
            }
        };
        if let Some(key) = file {
            self.remember(key, found.clone());
        }
        Ok(found)
    }

    fn found(&self, image: &Image, file: Option<FileKey>) -> Found {
        let segments = Rc::from(image.segments());
        let key = image.identity().map(BinaryKey::Built);
        match key.or(file.clone().map(BinaryKey::File)) {
            Some(key) => self.known(&Wanted { key, file, segments, work: image.work() }),
            None => Found::Known(Binary { segments, table: None, no_room: false }),
        }
    }

    /// Another file of the same build may have been read meanwhile.
    fn known(&self, wanted: &Wanted) -> Found {
        match self.binaries.get(&wanted.key) {
            Some(placed) => Found::Known(wanted.with(Some(Rc::clone(placed)), false)),
            None => Found::Wanted(wanted.clone()),
        }
    }

    fn remember(&mut self, key: FileKey, found: Found) {
        if self.files.len() >= MAX_FILES {
            self.files.clear();
        }
        self.files.insert(key, found);
    }

    /// Whether it is worth to begin with this one now: another one that is being read is not smaller.
    pub(super) fn is_next(&self, wanted: &Wanted) -> bool {
        let is_reading = self.reading.iter().any(|reading| reading.wanted.key == wanted.key);
        let smallest = self.reading.last().map_or(u64::MAX, |reading| reading.wanted.work);
        !is_reading && wanted.work < smallest && self.reading.len() < MAX_READING
    }

    /// Begins to read one. Says what became of it if that was its end.
    ///
    /// # Errors
    /// If it is not there any more.
    pub(super) fn begin(
        &mut self,
        pid: u32,
        mapping: &Mapping,
        wanted: &Wanted,
    ) -> Result<Option<Done>, Error> {
        let image = match mapping.backing {
            Backing::Vdso => read_memory(pid, mapping, MAX_VDSO).and_then(Image::parse),
            _ => open(pid, mapping).and_then(|file| {
                // Another program may have been started meanwhile.
                if wanted.file != Some(file_key(&file)?) {
                    return Err(Error::Gone);
                }
                Image::parse(file)
            }),
        }?;
        let name = match &mapping.backing {
            Backing::File(path) => path.display().to_string(),
            Backing::Vdso | Backing::Anonymous => "[vdso]".to_owned(),
        };
        let outcome = match image.functions() {
            Ok(functions) => match self.tables.place(functions, wanted.work) {
                Ok(placing) => {
                    self.reading.push(Reading { wanted: wanted.clone(), name, placing });
                    return Ok(None);
                }
                Err(outcome) => outcome,
            },
            Err(error) => Outcome::Bad(error),
        };
        Ok(self.end(wanted, &name, outcome))
    }

    /// Whether any is being read.
    pub(super) fn is_reading(&self) -> bool {
        !self.reading.is_empty()
    }

    /// Reads on in the smallest, for some milliseconds. Says which one it was if that was its end.
    pub(super) fn go_on(&mut self) -> Option<Done> {
        let mut reading = self.reading.pop()?;
        match self.tables.go_on(&mut reading.placing, AT_ONCE) {
            Outcome::Unfinished => {
                self.reading.push(reading);
                None
            }
            outcome => self.end(&reading.wanted, &reading.name, outcome),
        }
    }

    fn end(&mut self, wanted: &Wanted, name: &str, outcome: Outcome) -> Option<Done> {
        let binary = match outcome {
            Outcome::Unfinished => return None,
            Outcome::Placed(placed) => {
                let placed = Rc::new(placed);
                self.binaries.insert(wanted.key.clone(), Rc::clone(&placed));
                wanted.with(Some(placed), false)
            }
            Outcome::Bad(error) => {
                match error {
                    Error::NoTable | Error::Io { .. } => tracing::debug!("{name}: {error}"),
                    _ => tracing::warn!("{name}: its frames are not unwound by tables: {error}"),
                }
                wanted.with(None, false)
            }
            Outcome::NoRoom => {
                if self.refused == 0 {
                    tracing::warn!(
                        "{name}: no room for its unwind table: its frames end stacks \
                         (watch fewer programs)"
                    );
                }
                self.refused += 1;
                // Tables that no process uses may make room for the next time.
                self.forget_unused(Instant::now());
                wanted.with(None, true)
            }
            Outcome::Refused(error) => {
                tracing::warn!("{name}: its unwind table cannot be put in place: {error}");
                self.refused += 1;
                wanted.with(None, true)
            }
        };
        if let Some(file) = &wanted.file {
            self.remember(file.clone(), Found::Known(binary.clone()));
        }
        Some(Done { key: wanted.key.clone(), binary })
    }

    /// Takes the tables away that no process uses. Their room can be used a little later.
    pub(super) fn forget_unused(&mut self, now: Instant) {
        // Who refers to a table, of what is not a process's mappings: `binaries`, and its files.
        let mut held: HashMap<*const Placed, usize> = HashMap::new();
        for table in self.files.values().filter_map(Found::table) {
            *held.entry(Rc::as_ptr(table)).or_default() += 1;
        }
        let mut unused = HashSet::new();
        self.binaries.retain(|_, placed| {
            let held = held.get(&Rc::as_ptr(placed)).copied().unwrap_or(0);
            if Rc::strong_count(placed) > 1 + held {
                return true;
            }
            self.tables.remove(placed, now);
            unused.insert(Rc::as_ptr(placed));
            false
        });
        self.files.retain(|_, found| {
            !found.table().is_some_and(|table| unused.contains(&Rc::as_ptr(table)))
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
