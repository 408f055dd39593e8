//! The thread that tells BPF of processes' mappings and binaries' tables.
//!
//! What is watched is read from the map `processes`, which programs change on fork, exec and exit
//! before user space hears of it. A watched process without an entry in `unwind_processes` is new or
//! runs another program; one with an entry that was not put there is a forked child and shares its
//! parent's.
//!
//! A list of mappings is told at once, with the binaries that are known by then; the others are read one after another,
//! and the list is told again.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use underspan_unwind::{Mapping, executable_mappings};

use super::UnwindStats;
use super::images::{Done, Found, Images};
use super::space::{Extent, Space};
use super::tables::Tables;
use crate::record::{
    UNWIND_MAPPINGS, UNWIND_NO_TABLE, UNWIND_PROCESS_MAPPINGS, UNWIND_SHARD, bytes_of,
    unwind_entry, unwind_mapping, unwind_process,
};
use crate::session::entries::entries;

/// How often the maps are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A process's mappings are read again that often though nothing says that they have changed.
const READ_EVERY: Duration = Duration::from_secs(10);
/// Between reads that found nothing new the pause doubles, up to [`READ_EVERY`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// What cannot be read may be about to end, or to run another program.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// So long binaries are read before anything else is looked at.
const READ_FOR: Duration = Duration::from_millis(20);
/// How often tables that no process uses are taken away.
const FORGET_EVERY: Duration = Duration::from_secs(60);

pub(super) struct Maps {
    pub(super) watched: MapHandle,
    pub(super) processes: MapHandle,
    pub(super) mappings: MapHandle,
    pub(super) stale: MapHandle,
}

/// What one or more processes have mapped.
struct AddressSpace {
    mappings: Vec<Mapping>,
    /// Where BPF has them.
    extent: Extent,
    /// As BPF tells this list from all others.
    generation: u32,
    /// What is behind each mapping; tables are kept while they are here.
    found: RefCell<Vec<Found>>,
    /// So many of these are still to be read.
    wanted: Cell<usize>,
    /// BPF has not all of that.
    is_changed: Cell<bool>,
}

impl AddressSpace {
    /// As BPF has it for each process.
    fn value(&self) -> Vec<u8> {
        let Extent { first, count } = self.extent;
        bytes_of(&unwind_process { first, count, generation: self.generation }).to_vec()
    }

    /// The smallest of its binaries that are still to be read: which mapping, and how many bytes.
    fn smallest(&self, images: &Images) -> Option<(usize, u64)> {
        if self.wanted.get() == 0 {
            return None;
        }
        let found = self.found.borrow();
        let wanted = found.iter().enumerate().filter_map(|(at, found)| Some((at, found.wanted()?)));
        let next = wanted.filter(|(_, wanted)| images.is_next(wanted));
        next.map(|(at, wanted)| (at, wanted.work())).min_by_key(|&(_, work)| work)
    }

    /// One that was wanted is known by now.
    fn is_known(&self) {
        self.wanted.set(self.wanted.get().saturating_sub(1));
        self.is_changed.set(true);
    }

    /// Whether all of its binaries were read, and BPF knows.
    fn is_whole(&self) -> bool {
        !self.is_changed.get() && self.wanted.get() == 0
    }
}

/// A process.
struct Known {
    space: Rc<AddressSpace>,
    /// Its mappings are not read again before that, whatever is met.
    not_before: Instant,
    pause: Duration,
    read: Instant,
    /// Pages of code that it had when an address that was in no mapping had them read.
    vain: Option<u64>,
    /// All of its mappings is known: as how many-th process that came to be.
    whole: Option<u64>,
}

pub(super) struct Worker {
    maps: Maps,
    images: Images,
    space: Space,
    /// Of the newest list of mappings.
    generation: u32,
    known: HashMap<u32, Known>,
    /// Processes whose mappings cannot be read: tried again then.
    later: HashMap<u32, Instant>,
    refused: u64,
    /// The newest of [`Known::whole`].
    last_whole: u64,
    stats: Arc<Mutex<UnwindStats>>,
}

impl Worker {
    pub(super) fn new(
        maps: Maps,
        shards: MapHandle,
        megabytes: u32,
        stats: Arc<Mutex<UnwindStats>>,
    ) -> Self {
        let shard = UNWIND_SHARD as usize * size_of::<unwind_entry>();
        let limit = (megabytes as usize * (1 << 20)).div_ceil(shard) as u32;
        Worker {
            images: Images::new(Tables::new(shards, limit)),
            space: Space::new(UNWIND_MAPPINGS),
            generation: 0,
            known: HashMap::new(),
            later: HashMap::new(),
            refused: 0,
            last_whole: 0,
            maps,
            stats,
        }
    }

    /// Until the other end of `nudged` is dropped.
    pub(super) fn run(mut self, nudged: &Receiver<()>) {
        let mut forget = Instant::now() + FORGET_EVERY;
        loop {
            if let Err(error) = self.look() {
                tracing::debug!("unwind tables: {error}");
            }
            let now = Instant::now();
            self.space.wake(now);
            self.images.tables.wake(now);
            if now >= forget {
                forget = now + FORGET_EVERY;
                self.images.forget_unused(now);
            }
            let wait = if self.read_binaries() { Duration::ZERO } else { LOOK_EVERY };
            self.tell();
            match nudged.recv_timeout(wait) {
                Ok(()) => while nudged.try_recv().is_ok() {},
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn look(&mut self) -> libbpf_rs::Result<()> {
        // In this order: a fork puts the child here first, then among the watched.
        let placed = by_pid(&self.maps.processes)?;
        let watched = by_pid(&self.maps.watched)?;
        let now = Instant::now();
        let gone: Vec<u32> =
            self.known.keys().filter(|pid| !watched.contains_key(pid)).copied().collect();
        for pid in gone {
            self.forget(pid, now);
        }
        self.later.retain(|pid, _| watched.contains_key(pid));
        for &pid in placed.keys().filter(|pid| !watched.contains_key(pid)) {
            let _ = self.maps.processes.delete(&pid.to_ne_bytes());
        }
        for &pid in watched.keys() {
            match (placed.get(&pid), self.known.contains_key(&pid)) {
                (Some(_), true) => {}
                (Some(value), false) => self.adopt(pid, value, now),
                (None, _) => {
                    self.forget(pid, now);
                    if self.later.get(&pid).is_none_or(|&later| later <= now) {
                        self.read(pid);
                    }
                }
            }
        }
        for (pid, value) in by_pid(&self.maps.stale)? {
            let code = value.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
            let known = self.known.get_mut(&pid);
            // What has no table yet is in no mapping, to BPF.
            let waits = |known: &mut Known| {
                // Code that was mapped since is reason enough.
                if known.vain != code {
                    known.pause = FIRST_PAUSE;
                    known.not_before = known.not_before.min(known.read + FIRST_PAUSE);
                }
                known.not_before > Instant::now() || !known.space.is_whole()
            };
            let is_known = known.is_some();
            if known.is_some_and(waits) {
                continue;
            }
            // Out first: what is met while the list is read may be missing in it.
            let _ = self.maps.stale.delete(&pid.to_ne_bytes());
            if is_known {
                self.read(pid);
            }
            if let Some(known) = self.known.get_mut(&pid) {
                known.vain = code;
            }
        }
        let now = Instant::now();
        let due: Vec<u32> = self
            .known
            .iter()
            .filter(|(_, known)| now.duration_since(known.read) >= READ_EVERY)
            .map(|(pid, _)| *pid)
            .collect();
        for pid in due {
            self.read(pid);
        }
        Ok(())
    }

    /// A child of a known process: it shares its parent's mappings, as BPF has told it.
    fn adopt(&mut self, pid: u32, value: &[u8], now: Instant) {
        let parent = self.known.values().find(|known| known.space.value() == *value);
        let Some(parent) = parent else {
            self.read(pid);
            return;
        };
        let space = Rc::clone(&parent.space);
        self.known.insert(
            pid,
            Known {
                space,
                not_before: now,
                pause: FIRST_PAUSE,
                read: now,
                vain: None,
                whole: None,
            },
        );
    }

    /// Reads a process's mappings, and tells BPF if they are not those that it has.
    fn read(&mut self, pid: u32) {
        let now = Instant::now();
        let mappings = match executable_mappings(pid) {
            Ok(mappings) => mappings,
            Err(error) => {
                tracing::debug!(pid, "its mappings: {error}");
                self.later.insert(pid, now + TRY_AGAIN);
                if let Some(known) = self.known.get_mut(&pid) {
                    known.read = now;
                    known.not_before = now + READ_EVERY;
                }
                return;
            }
        };
        if let Some(known) = self.known.get_mut(&pid) {
            known.read = now;
            if known.space.mappings == mappings {
                known.not_before = now + known.pause;
                known.pause = (known.pause * 2).min(READ_EVERY);
                return;
            }
        }
        if mappings.is_empty() {
            self.later.insert(pid, now + TRY_AGAIN);
            return;
        }
        let found = self.find(pid, &mappings);
        let Some(space) = self.place(pid, mappings, found) else {
            self.later.insert(pid, now + TRY_AGAIN);
            return;
        };
        self.tell_process(pid, &space);
        self.later.remove(&pid);
        let space = Rc::new(space);
        let known = Known {
            space,
            not_before: now + FIRST_PAUSE,
            pause: FIRST_PAUSE,
            read: now,
            vain: None,
            whole: None,
        };
        if let Some(before) = self.known.insert(pid, known) {
            self.give(before.space, now);
        }
    }

    /// Reads binaries, for a while. Says whether there are more.
    fn read_binaries(&mut self) -> bool {
        let until = Instant::now() + READ_FOR;
        let more = loop {
            let next = self.known.iter().filter_map(|(pid, known)| {
                let (at, work) = known.space.smallest(&self.images)?;
                Some((*pid, at, work))
            });
            if let Some((pid, at, _)) = next.min_by_key(|&(.., work)| work) {
                self.begin(pid, at);
            } else if !self.images.is_reading() {
                break false;
            }
            if let Some(done) = self.images.go_on() {
                self.resolve(&done);
            }
            if Instant::now() >= until {
                break true;
            }
        };
        self.tell_changed();
        more
    }

    /// Begins to read what is behind a process's mapping.
    fn begin(&mut self, pid: u32, at: usize) {
        let Some(space) = self.known.get(&pid).map(|known| Rc::clone(&known.space)) else { return };
        let found = space.found.borrow().get(at).cloned();
        let (Some(mapping), Some(Found::Wanted(wanted))) = (space.mappings.get(at), found) else {
            return;
        };
        match self.images.begin(pid, mapping, &wanted) {
            Ok(None) => {}
            Ok(Some(done)) => self.resolve(&done),
            Err(error) => {
                tracing::debug!(pid, "{:?}: {error}", mapping.backing);
                if let Some(found) = space.found.borrow_mut().get_mut(at) {
                    *found = Found::Nothing;
                    space.is_known();
                }
            }
        }
    }

    /// A binary was read.
    fn resolve(&self, done: &Done) {
        for space in self.known.values().map(|known| &known.space) {
            if space.wanted.get() == 0 {
                continue;
            }
            for found in space.found.borrow_mut().iter_mut() {
                if found.resolve(done) {
                    space.is_known();
                }
            }
        }
    }

    /// Tells BPF what was read.
    fn tell_changed(&mut self) {
        let now = Instant::now();
        let changed = self.known.iter().filter(|(_, known)| known.space.is_changed.get());
        let changed: Vec<_> = changed.map(|(pid, known)| (*pid, Rc::clone(&known.space))).collect();
        for (pid, space) in changed {
            // Another process that has the same may have been first.
            if !space.is_changed.replace(false) {
                continue;
            }
            let (mappings, found) = (space.mappings.clone(), space.found.borrow().clone());
            let Some(told) = self.place(pid, mappings, found) else {
                // What was given back has not rested yet.
                space.is_changed.set(true);
                continue;
            };
            let told = Rc::new(told);
            let sharing = |(pid, known): (&u32, &mut Known)| {
                Rc::ptr_eq(&known.space, &space).then(|| {
                    known.space = Rc::clone(&told);
                    *pid
                })
            };
            let sharing: Vec<u32> = self.known.iter_mut().filter_map(sharing).collect();
            for pid in sharing {
                self.tell_process(pid, &told);
            }
            self.give(space, now);
        }
    }

    fn tell_process(&mut self, pid: u32, space: &AddressSpace) {
        let told = self.maps.processes.update(&pid.to_ne_bytes(), &space.value(), MapFlags::ANY);
        if let Err(error) = told {
            tracing::warn!(pid, "its stacks cannot be walked: {error}");
            self.refused += 1;
        }
    }

    /// What is behind mappings, as far as it is known.
    fn find(&mut self, pid: u32, mappings: &[Mapping]) -> Vec<Found> {
        let find = |mapping: &Mapping| {
            self.images.of(pid, mapping).unwrap_or_else(|error| {
                tracing::debug!(pid, "{:?}: {error}", mapping.backing);
                Found::Nothing
            })
        };
        mappings.iter().map(find).collect()
    }

    /// Puts a list of mappings where BPF finds it.
    fn place(
        &mut self,
        pid: u32,
        mappings: Vec<Mapping>,
        found: Vec<Found>,
    ) -> Option<AddressSpace> {
        let count = mappings.len() as u32;
        let extent = (count <= UNWIND_PROCESS_MAPPINGS).then(|| self.space.take(count)).flatten();
        let Some(extent) = extent else {
            if self.refused == 0 {
                tracing::warn!(pid, "no room for its {count} mappings: its stacks are not walked");
            }
            self.refused += 1;
            return None;
        };
        let records: Vec<u8> = mappings
            .iter()
            .zip(&found)
            .flat_map(|(mapping, found)| bytes_of(&record(mapping, found)).to_vec())
            .collect();
        let keys: Vec<u8> =
            (extent.first..).take(mappings.len()).flat_map(u32::to_ne_bytes).collect();
        let any = MapFlags::ANY;
        if let Err(error) = self.maps.mappings.update_batch(&keys, &records, count, any, any) {
            tracing::warn!(pid, "its mappings cannot be told: {error}");
            self.space.give(extent, Instant::now());
            return None;
        }
        self.generation = self.generation.wrapping_add(1).max(1);
        let wanted = found.iter().filter(|found| found.wanted().is_some()).count();
        Some(AddressSpace {
            mappings,
            extent,
            generation: self.generation,
            found: RefCell::new(found),
            wanted: Cell::new(wanted),
            is_changed: Cell::new(false),
        })
    }

    fn forget(&mut self, pid: u32, now: Instant) {
        let _ = self.maps.stale.delete(&pid.to_ne_bytes());
        if let Some(known) = self.known.remove(&pid) {
            self.give(known.space, now);
        }
    }

    /// Gives a list back that no process has any more.
    fn give(&mut self, space: Rc<AddressSpace>, now: Instant) {
        if let Ok(space) = Rc::try_unwrap(space) {
            self.space.give(space.extent, now);
        }
    }

    fn tell(&mut self) {
        let mut spaces: Vec<_> = self.known.values().map(|known| known.space.extent).collect();
        spaces.sort_unstable_by_key(|extent| extent.first);
        spaces.dedup();
        for known in self.known.values_mut() {
            if !known.space.is_whole() {
                known.whole = None;
            } else if known.whole.is_none() {
                self.last_whole += 1;
                known.whole = Some(self.last_whole);
            }
        }
        let whole = self.known.iter().filter_map(|(pid, known)| Some((known.whole?, *pid)));
        let mut whole: Vec<(u64, u32)> = whole.collect();
        whole.sort_unstable();
        let stats = UnwindStats {
            processes: whole.into_iter().map(|(_, pid)| pid).collect(),
            mappings: spaces.iter().map(|extent| extent.count as usize).sum(),
            tables: self.images.count(),
            table_bytes: self.images.tables.bytes(),
            refused: self.refused + self.images.refused,
        };
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }
}

/// A mapping as BPF has it.
fn record(mapping: &Mapping, found: &Found) -> unwind_mapping {
    let (start, end) = (mapping.start, mapping.end);
    let plain = unwind_mapping { start, end, ..unwind_mapping::default() };
    let binary = match found {
        Found::Known(binary) => binary,
        Found::Nothing => return plain,
        // No address is in it, until it is known how to leave a function there.
        Found::Wanted(_) => return unwind_mapping { end: start, ..plain },
    };
    let Some(placed) = &binary.table else {
        let blocks = if binary.no_room { UNWIND_NO_TABLE } else { 0 };
        return unwind_mapping { blocks, ..plain };
    };
    let Some(base) = binary.base(placed, start, mapping.offset) else { return plain };
    unwind_mapping { base, blocks: placed.blocks(), span: placed.span, ..plain }
}

/// All entries of a map whose keys are process ids.
fn by_pid(map: &MapHandle) -> libbpf_rs::Result<HashMap<u32, Vec<u8>>> {
    let pid = |key: Vec<u8>| Some(u32::from_ne_bytes(*key.first_chunk()?));
    let entries = entries(map)?.into_iter();
    Ok(entries.filter_map(|(key, value)| Some((pid(key)?, value))).collect())
}
