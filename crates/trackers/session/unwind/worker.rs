//! The thread that tells BPF of processes' mappings and binaries' tables.
//!
//! What is watched is read from the map `processes`, which programs change on fork, exec and exit
//! before user space hears of it. A watched process without an entry in `unwind_processes` is new or
//! runs another program; one with an entry that was not put there is a forked child and shares its
//! parent's.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use underspan_unwind::{Backing, Mapping, executable_mappings};

use super::UnwindStats;
use super::images::Images;
use super::space::{Extent, Space};
use super::tables::{Placed, Tables};
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
    /// Kept while they are mapped.
    _tables: Vec<Rc<Placed>>,
}

impl AddressSpace {
    /// As BPF has it for each process.
    fn value(&self) -> Vec<u8> {
        let Extent { first, count } = self.extent;
        bytes_of(&unwind_process { first, count, generation: self.generation }).to_vec()
    }
}

/// A process.
struct Known {
    space: Rc<AddressSpace>,
    /// Its mappings are not read again before that, whatever is met.
    not_before: Instant,
    pause: Duration,
    read: Instant,
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
            self.tell();
            match nudged.recv_timeout(LOOK_EVERY) {
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
        for pid in by_pid(&self.maps.stale)?.into_keys() {
            let known = self.known.get(&pid);
            if known.is_some_and(|known| known.not_before > Instant::now()) {
                continue;
            }
            // Out first: what is met while the list is read may be missing in it.
            let _ = self.maps.stale.delete(&pid.to_ne_bytes());
            if known.is_some() {
                self.read(pid);
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
        self.known.insert(pid, Known { space, not_before: now, pause: FIRST_PAUSE, read: now });
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
        let Some(space) = self.place(pid, mappings) else {
            self.later.insert(pid, now + TRY_AGAIN);
            return;
        };
        let value = space.value();
        if let Err(error) = self.maps.processes.update(&pid.to_ne_bytes(), &value, MapFlags::ANY) {
            tracing::warn!(pid, "its stacks cannot be walked: {error}");
            self.refused += 1;
        }
        self.later.remove(&pid);
        let space = Rc::new(space);
        let known = Known { space, not_before: now + FIRST_PAUSE, pause: FIRST_PAUSE, read: now };
        if let Some(before) = self.known.insert(pid, known) {
            self.give(before, now);
        }
    }

    /// Puts a list of mappings, and the tables that they need, where BPF finds them.
    fn place(&mut self, pid: u32, mappings: Vec<Mapping>) -> Option<AddressSpace> {
        if mappings.is_empty() {
            return None;
        }
        let count = mappings.len() as u32;
        let extent = (count <= UNWIND_PROCESS_MAPPINGS).then(|| self.space.take(count)).flatten();
        let Some(extent) = extent else {
            if self.refused == 0 {
                tracing::warn!(pid, "no room for its {count} mappings: its stacks are not walked");
            }
            self.refused += 1;
            return None;
        };
        let mut tables = Vec::new();
        let mut records = Vec::with_capacity(mappings.len() * size_of::<unwind_mapping>());
        for mapping in &mappings {
            let record = self.record(pid, mapping, &mut tables);
            records.extend_from_slice(bytes_of(&record));
        }
        let keys: Vec<u8> =
            (extent.first..).take(mappings.len()).flat_map(u32::to_ne_bytes).collect();
        let any = MapFlags::ANY;
        if let Err(error) = self.maps.mappings.update_batch(&keys, &records, count, any, any) {
            tracing::warn!(pid, "its mappings cannot be told: {error}");
            self.space.give(extent, Instant::now());
            return None;
        }
        self.generation = self.generation.wrapping_add(1).max(1);
        Some(AddressSpace { mappings, extent, generation: self.generation, _tables: tables })
    }

    fn record(
        &mut self,
        pid: u32,
        mapping: &Mapping,
        tables: &mut Vec<Rc<Placed>>,
    ) -> unwind_mapping {
        let (start, end) = (mapping.start, mapping.end);
        let plain = unwind_mapping { start, end, ..unwind_mapping::default() };
        let binary = match self.images.of(pid, mapping) {
            Ok(binary) => binary,
            Err(error) => {
                if !matches!(mapping.backing, Backing::Anonymous) {
                    tracing::debug!(pid, "{:?}: {error}", mapping.backing);
                }
                None
            }
        };
        let Some(binary) = binary else { return plain };
        let Some(placed) = &binary.table else {
            let blocks = if binary.no_room { UNWIND_NO_TABLE } else { 0 };
            return unwind_mapping { blocks, ..plain };
        };
        let Some(base) = binary.base(placed, start, mapping.offset) else { return plain };
        tables.push(Rc::clone(placed));
        unwind_mapping { base, blocks: placed.extent.first, span: placed.span, ..plain }
    }

    fn forget(&mut self, pid: u32, now: Instant) {
        let _ = self.maps.stale.delete(&pid.to_ne_bytes());
        if let Some(known) = self.known.remove(&pid) {
            self.give(known, now);
        }
    }

    /// Gives back what only this process used.
    fn give(&mut self, known: Known, now: Instant) {
        if let Ok(space) = Rc::try_unwrap(known.space) {
            self.space.give(space.extent, now);
        }
    }

    fn tell(&self) {
        let mut spaces: Vec<_> = self.known.values().map(|known| known.space.extent).collect();
        spaces.sort_unstable_by_key(|extent| extent.first);
        spaces.dedup();
        let stats = UnwindStats {
            processes: self.known.len(),
            mappings: spaces.iter().map(|extent| extent.count as usize).sum(),
            tables: self.images.count(),
            table_bytes: self.images.tables.bytes(),
            refused: self.refused + self.images.refused,
        };
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }
}

/// All entries of a map whose keys are process ids.
fn by_pid(map: &MapHandle) -> libbpf_rs::Result<HashMap<u32, Vec<u8>>> {
    let pid = |key: Vec<u8>| Some(u32::from_ne_bytes(*key.first_chunk()?));
    let entries = entries(map)?.into_iter();
    Ok(entries.filter_map(|(key, value)| Some((pid(key)?, value))).collect())
}
