//! What is remembered of a process, so that its addresses can be named when it is gone.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::binaries::FileId;
use crate::mappings::{Mapped, Mapping, Mappings};
use crate::perf_map::PerfMap;

/// An address in no mapping makes the mappings be read again, not more often than this;
const READ_AGAIN: Duration = Duration::from_millis(100);
/// as a library may have been replaced by another at the same place, this is how old they get.
const OLDEST: Duration = Duration::from_secs(60);

/// One process while it runs one program. Process ids are given out again, and with another program
/// other code is at the same addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Incarnation {
    /// Its id, as the host sees it.
    pub pid: u32,
    /// When it started, in clock ticks since boot; 0 if it was gone before that could be read.
    pub started: u64,
    /// How many programs it was seen to start.
    pub execs: u32,
}

impl Incarnation {
    /// The process that has this id now.
    pub fn of(pid: u32, execs: u32) -> Self {
        Incarnation { pid, started: started(pid).unwrap_or(0), execs }
    }

    /// Whether it still has its id.
    pub(crate) fn lives(self) -> bool {
        started(self.pid) == Some(self.started)
    }
}

/// The 22nd field of `stat`; the second is a name, which may hold anything. The thread's own: the
/// process's adds up what all its threads have used.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Its mappings and the files behind them.
pub(crate) struct Process {
    incarnation: Incarnation,
    regions: Rc<Regions>,
    perf_map: Option<PerfMap>,
    read: Instant,
}

/// Mappings, each with what identifies its file.
#[derive(Default)]
struct Regions {
    mappings: Mappings,
    files: Vec<(u64, FileId)>,
}

/// Where an address lies.
pub(crate) enum Place<'p> {
    /// In a file.
    File {
        /// Of the address, in the file.
        offset: u64,
        /// `None` if the file could not be looked at while the process lived.
        id: Option<FileId>,
        /// Its name without directories.
        module: &'p str,
        /// Ways to the file.
        ways: Ways<'p>,
    },
    /// At this offset in the kernel's library.
    Vdso(u64),
    /// In memory that has no file.
    Anonymous,
}

/// Ways to a file that a process has mapped.
pub(crate) struct Ways<'p> {
    pid: u32,
    mapping: &'p Mapping,
    path: &'p str,
}

impl Ways<'_> {
    /// The surest first. `map_files` leads to the very file, also if it is deleted or in another mount
    /// namespace; it needs a capability. The last way leads to another's file in a container, or to
    /// none: it is for processes that are gone, and what it leads to is checked.
    pub(crate) fn paths(&self) -> [PathBuf; 3] {
        let Ways { pid, mapping, path } = self;
        [
            format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end).into(),
            format!("/proc/{pid}/root{path}").into(),
            Path::new(path).into(),
        ]
    }

    /// The process's root directory, which may be a container's.
    pub(crate) fn root(&self) -> PathBuf {
        format!("/proc/{}/root", self.pid).into()
    }
}

impl Process {
    pub(crate) fn new(incarnation: Incarnation) -> Self {
        let mut process =
            Process { incarnation, regions: Rc::default(), perf_map: None, read: Instant::now() };
        process.read();
        process
    }

    /// A child that was just forked has its parent's mappings.
    pub(crate) fn forked(&self, child: Incarnation) -> Self {
        Process {
            incarnation: child,
            regions: Rc::clone(&self.regions),
            perf_map: None,
            read: self.read,
        }
    }

    /// Where an address lies now, or lay when the process was last looked at.
    pub(crate) fn find(&mut self, address: u64) -> Option<Place<'_>> {
        let age = self.read.elapsed();
        let known = self.regions.mappings.find(address).is_some();
        if age >= OLDEST || (!known && age >= READ_AGAIN) {
            self.read();
        }
        let mapping = self.regions.mappings.find(address)?;
        let into = address - mapping.start;
        Some(match &mapping.mapped {
            Mapped::Vdso => Place::Vdso(into),
            Mapped::Anonymous => Place::Anonymous,
            Mapped::File(path) => Place::File {
                offset: into.saturating_add(mapping.offset),
                id: self.regions.file(mapping.start),
                module: path.rsplit('/').next().unwrap_or(path),
                ways: Ways { pid: self.incarnation.pid, mapping, path },
            },
        })
    }

    /// What a JIT compiler called the code at an address.
    pub(crate) fn jit(&mut self, address: u64) -> Option<&str> {
        let pid = self.incarnation.pid;
        self.perf_map.get_or_insert_with(|| PerfMap::new(pid)).find(address)
    }

    fn read(&mut self) {
        self.read = Instant::now();
        let pid = self.incarnation.pid;
        let Ok(mappings) = Mappings::read(pid) else { return };
        let mut regions = Regions { mappings, files: Vec::new() };
        for mapping in regions.mappings.iter() {
            let Mapped::File(path) = &mapping.mapped else { continue };
            let ways = Ways { pid, mapping, path };
            let id = ways.paths().iter().find_map(|path| FileId::of(path));
            regions.files.extend(id.map(|id| (mapping.start, id)));
        }
        // Last: what was read was another's if the id was given out again meanwhile. A process that
        // is ending has no mappings any more.
        if self.incarnation.lives() && regions.mappings.iter().next().is_some() {
            self.regions = Rc::new(regions);
        }
    }
}

impl Regions {
    fn file(&self, start: u64) -> Option<FileId> {
        let index = self.files.binary_search_by_key(&start, |(start, _)| *start).ok()?;
        self.files.get(index).map(|(_, id)| *id)
    }
}
