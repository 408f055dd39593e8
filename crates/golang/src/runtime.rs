//! A process's Go runtime: what was found out about it, checked on the live process.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use underspan_remote::{Memory, word};

use crate::functions::Functions;
use crate::image::Image;
use crate::layout::{G_SIZE, Layout};
use crate::list::{List, MOST};
use crate::process::Process;
use crate::reasons::Reasons;
use crate::{Error, Version, check, dwarf};

/// Executables whose facts are kept.
const KEPT: usize = 64;

/// Where offsets come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The executable's DWARF.
    Dwarf,
    /// The table by version.
    Table,
}

/// What one executable file says.
#[derive(Debug)]
pub(crate) struct Binary {
    pub(crate) image: Image,
    pub(crate) functions: Functions,
    layout: Layout,
    source: Source,
    /// Address and size of `runtime.waitReasonStrings`, if there are symbols.
    reasons: (u64, u64),
}

impl Binary {
    fn read(process: Process) -> Result<Self, Error> {
        let image = Image::open(process.executable()?)?;
        let functions = Functions::of(&image)?;
        let (layout, source) = match dwarf::layout(&image)? {
            Some(layout) => (layout, Source::Dwarf),
            None => {
                let known = Layout::of(image.version);
                let unknown = Error::UnknownVersion { version: image.version };
                (known.ok_or(unknown)?, Source::Table)
            }
        };
        let reasons = image.symbols(&["runtime.waitReasonStrings"])?;
        let reasons = reasons.first().copied().unwrap_or_default();
        Ok(Binary { image, functions, layout, source, reasons })
    }
}

/// Looks into processes; facts of an executable are read once.
#[derive(Debug, Default)]
pub struct Inspector {
    binaries: HashMap<(u64, u64, i64), Arc<Binary>>,
}

impl Inspector {
    /// Nothing is known yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Finds the goroutines of process `pid` (as we number it), and checks what was found.
    ///
    /// # Errors
    /// [`Error::NotGo`] for other programs; [`Error::NotReady`] while it starts; else why its
    /// goroutines are not read.
    pub fn inspect(&mut self, pid: u32) -> Result<Runtime, Error> {
        let process = Process(pid);
        let file = process.executable()?;
        let meta = file.metadata().map_err(|error| Error::io("the executable", error))?;
        let key = (meta.dev(), meta.ino(), meta.mtime());
        let binary = match self.binaries.get(&key) {
            Some(binary) => Arc::clone(binary),
            None => {
                let binary = Arc::new(Binary::read(process)?);
                if self.binaries.len() >= KEPT {
                    self.binaries.clear();
                }
                self.binaries.insert(key, Arc::clone(&binary));
                binary
            }
        };
        Runtime::attach(process, binary)
    }
}

/// The runtime of a live process. Its memory is read; it is never stopped, and nothing is written.
#[derive(Clone, Debug)]
pub struct Runtime {
    pub(crate) process: Process,
    pub(crate) memory: Memory,
    pub(crate) binary: Arc<Binary>,
    pub(crate) bias: u64,
    pub(crate) layout: Layout,
    pub(crate) list: List,
    pub(crate) reasons: Reasons,
}

impl Runtime {
    fn attach(process: Process, binary: Arc<Binary>) -> Result<Self, Error> {
        let id = i32::try_from(process.0).map_err(|_| Error::Gone)?;
        let memory = Memory::new(id);
        let bias = process.bias(&binary.image.segments)?;
        let list = List::find(&binary.image, &binary.functions, &memory, bias)?;
        let (names, size) = binary.reasons;
        let named = (names != 0).then(|| Reasons::read(&memory, bias.wrapping_add(names), size));
        let reasons = named.flatten().unwrap_or_else(|| Reasons::of(binary.image.version));
        let layout = binary.layout;
        let runtime = Runtime { process, memory, binary, bias, layout, list, reasons };
        check::check(&runtime)?;
        Ok(runtime)
    }

    /// The process, as we number it.
    pub fn pid(&self) -> u32 {
        self.process.0
    }

    /// The Go that made the program.
    pub fn version(&self) -> Version {
        self.binary.image.version
    }

    /// Where offsets come from.
    pub fn source(&self) -> Source {
        self.binary.source
    }

    /// Goroutines in the runtime's list, with those that have ended: they are kept for reuse.
    pub fn listed(&self) -> Result<u64, Error> {
        Ok(self.extent()?.1)
    }

    /// How many goroutines live. Reads the status of each.
    pub fn alive(&self) -> Result<u64, Error> {
        let (pointer, length) = self.extent()?;
        let indexes: Vec<u64> = (0..length).collect();
        let statuses = self.statuses(pointer, &indexes)?;
        Ok(statuses.iter().filter(|alive| **alive).count() as u64)
    }

    /// Where the list is, and how long.
    pub(crate) fn extent(&self) -> Result<(u64, u64), Error> {
        // In this order: the length never exceeds the list that is read after it.
        let length = self.memory.u64(self.list.length)?;
        let pointer = self.memory.u64(self.list.pointer)?;
        match (pointer, length) {
            (0, _) | (_, 0) => Err(Error::NotReady("it has made no goroutine yet".into())),
            (_, length) if length > MOST => Err(Error::SelfCheck {
                what: "runtime.allglen",
                expected: "at most 67108864",
                found: length.to_string(),
            }),
            extent => Ok(extent),
        }
    }

    /// Addresses of the `g`s with these indexes. Those that cannot be read are left out.
    pub(crate) fn addresses(&self, pointer: u64, indexes: &[u64]) -> Result<Vec<u64>, Error> {
        let contiguous = match indexes {
            [first, .., last] => (last - first + 1 == indexes.len() as u64).then_some(*first),
            _ => None,
        };
        if let Some(first) = contiguous {
            let bytes = self.memory.bytes(pointer.saturating_add(first * 8), indexes.len() * 8)?;
            return Ok(bytes.chunks_exact(8).map(|chunk| word(chunk, 0)).collect());
        }
        let slots: Vec<_> = indexes.iter().map(|index| pointer.saturating_add(index * 8)).collect();
        let read = self.memory.scatter::<8>(&slots)?;
        Ok(read.into_iter().flatten().map(u64::from_ne_bytes).collect())
    }

    /// Whether the goroutines with these indexes live.
    pub(crate) fn statuses(&self, pointer: u64, indexes: &[u64]) -> Result<Vec<bool>, Error> {
        use crate::goroutine::Life;
        let addresses = self.addresses(pointer, indexes)?;
        let at: Vec<_> =
            addresses.iter().map(|g| g.saturating_add(self.layout.status as u64)).collect();
        let read = self.memory.scatter::<4>(&at)?;
        let alive = |bytes| matches!(Life::of(u32::from_ne_bytes(bytes)), Life::Alive(_));
        Ok(read.into_iter().map(|bytes| bytes.is_some_and(alive)).collect())
    }

    /// The `g`s at these addresses.
    pub(crate) fn blocks(&self, addresses: &[u64]) -> Result<Vec<Option<[u8; G_SIZE]>>, Error> {
        Ok(self.memory.scatter::<G_SIZE>(addresses)?)
    }
}
