//! The thread that tells BPF of processes' mappings and binaries' tables: which processes there are, and when the mappings
//! of each are read.
//!
//! What is watched is read from the map `processes`, which programs change on fork, exec and exit
//! before user space hears of it. A watched process without an entry in `unwind_processes` is new or
//! runs another program; one with an entry that was not put there is a forked child and shares its
//! parent's.
//!
//! A list of mappings is told at once, with the binaries that are known by then; the others are read one after another,
//! and the list is told again (`worker/binaries.rs`).

mod binaries;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore as _, MapHandle};
use underspan_unwind::{Mapping, executable_mappings};

use super::UnwindStats;
use super::images::{Found, Images};
use super::known::Known;
use super::tables::Tables;
use super::told::Told;
use crate::record::{UNWIND_SHARD, unwind_entry};
use crate::session::entries::entries;

/// How often the maps are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
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

/// Values of a map whose keys are process ids.
type ByPid = HashMap<u32, Vec<u8>>;

pub(super) struct Worker {
    watched: MapHandle,
    stale: MapHandle,
    told: Told,
    images: Images,
    known: HashMap<u32, Known>,
    /// Processes whose mappings cannot be read: tried again then.
    later: HashMap<u32, Instant>,
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
            watched: maps.watched,
            stale: maps.stale,
            told: Told::new(maps.processes, maps.mappings),
            images: Images::new(Tables::new(shards, limit)),
            known: HashMap::new(),
            later: HashMap::new(),
            last_whole: 0,
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
            self.told.wake(now);
            self.images.tables.wake(now);
            if now >= forget {
                forget = now + FORGET_EVERY;
                self.images.forget_unused(now);
            }
            let wait = if self.read_binaries() { Duration::ZERO } else { LOOK_EVERY };
            self.publish();
            match nudged.recv_timeout(wait) {
                Ok(()) => while nudged.try_recv().is_ok() {},
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Looks at all maps, and reads the mappings that have to be.
    fn look(&mut self) -> libbpf_rs::Result<()> {
        // In this order: a fork puts the child here first, then among the watched.
        let placed = by_pid(&self.told.processes)?;
        let watched = by_pid(&self.watched)?;
        let now = Instant::now();
        self.forget_gone(&placed, &watched, now);
        self.meet(&placed, &watched, now);
        self.read_stale()?;
        self.read_due();
        Ok(())
    }

    fn forget_gone(&mut self, placed: &ByPid, watched: &ByPid, now: Instant) {
        let gone = self.known.keys().filter(|pid| !watched.contains_key(pid));
        let gone: Vec<u32> = gone.copied().collect();
        for pid in gone {
            self.forget(pid, now);
        }
        self.later.retain(|pid, _| watched.contains_key(pid));
        for &pid in placed.keys().filter(|pid| !watched.contains_key(pid)) {
            self.told.forget(pid);
        }
    }

    /// Processes that are new, were forked, or run another program.
    fn meet(&mut self, placed: &ByPid, watched: &ByPid, now: Instant) {
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
    }

    /// Processes of which an address was met that is in no mapping.
    fn read_stale(&mut self) -> libbpf_rs::Result<()> {
        for (pid, value) in by_pid(&self.stale)? {
            let code = value.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
            let known = self.known.get_mut(&pid);
            let is_known = known.is_some();
            if known.is_some_and(|known| !known.is_worth_reading(code)) {
                continue;
            }
            // Out first: what is met while the list is read may be missing in it.
            let _ = self.stale.delete(&pid.to_ne_bytes());
            if is_known {
                self.read(pid);
            }
            if let Some(known) = self.known.get_mut(&pid) {
                known.was_read_for(code);
            }
        }
        Ok(())
    }

    fn read_due(&mut self) {
        let now = Instant::now();
        let due = self.known.iter().filter(|(_, known)| known.is_due(now));
        let due: Vec<u32> = due.map(|(pid, _)| *pid).collect();
        for pid in due {
            self.read(pid);
        }
    }

    /// A child of a known process: it shares its parent's mappings, as BPF has told it.
    fn adopt(&mut self, pid: u32, value: &[u8], now: Instant) {
        let parent = self.known.values().find(|known| known.space.value() == *value);
        let Some(parent) = parent else {
            self.read(pid);
            return;
        };
        let space = Rc::clone(&parent.space);
        self.known.insert(pid, Known::adopted(space, now));
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
                    known.cannot_be_read(now);
                }
                return;
            }
        };
        if let Some(known) = self.known.get_mut(&pid) {
            known.was_read(now);
            if known.space.mappings == mappings {
                known.has_not_changed(now);
                return;
            }
        }
        if mappings.is_empty() {
            self.later.insert(pid, now + TRY_AGAIN);
            return;
        }
        let found = self.find(pid, &mappings);
        let Some(space) = self.told.place(pid, mappings, found) else {
            self.later.insert(pid, now + TRY_AGAIN);
            return;
        };
        self.told.tell(pid, &space);
        self.later.remove(&pid);
        if let Some(before) = self.known.insert(pid, Known::new(Rc::new(space), now)) {
            self.told.give(before.space, now);
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

    fn forget(&mut self, pid: u32, now: Instant) {
        let _ = self.stale.delete(&pid.to_ne_bytes());
        if let Some(known) = self.known.remove(&pid) {
            self.told.give(known.space, now);
        }
    }

    /// Says what is known and used by now.
    fn publish(&mut self) {
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
            refused: self.told.refused + self.images.refused,
        };
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }
}

/// All entries of a map whose keys are process ids.
fn by_pid(map: &MapHandle) -> libbpf_rs::Result<ByPid> {
    let pid = |key: Vec<u8>| Some(u32::from_ne_bytes(*key.first_chunk()?));
    let entries = entries(map)?.into_iter();
    Ok(entries.filter_map(|(key, value)| Some((pid(key)?, value))).collect())
}
