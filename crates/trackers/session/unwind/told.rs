//! Lists of mappings, put where BPF finds them.

use std::rc::Rc;
use std::time::Instant;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use underspan_unwind::Mapping;

use super::address_space::AddressSpace;
use super::images::Found;
use super::space::Space;
use crate::record::{
    UNWIND_MAPPINGS, UNWIND_NO_TABLE, UNWIND_PROCESS_MAPPINGS, bytes_of, unwind_mapping,
};

/// What BPF is told of processes.
pub(super) struct Told {
    pub(super) processes: MapHandle,
    mappings: MapHandle,
    space: Space,
    /// Of the newest list of mappings.
    generation: u32,
    /// Lists that could not be told.
    pub(super) refused: u64,
}

impl Told {
    pub(super) fn new(processes: MapHandle, mappings: MapHandle) -> Self {
        let space = Space::new(UNWIND_MAPPINGS);
        Told { processes, mappings, space, generation: 0, refused: 0 }
    }

    /// Puts a list of mappings where BPF finds it.
    pub(super) fn place(
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
        if let Err(error) = self.mappings.update_batch(&keys, &records, count, any, any) {
            tracing::warn!(pid, "its mappings cannot be told: {error}");
            self.space.give(extent, Instant::now());
            return None;
        }
        self.generation = self.generation.wrapping_add(1).max(1);
        Some(AddressSpace::told(mappings, found, extent, self.generation))
    }

    /// Tells which list is a process's.
    pub(super) fn tell(&mut self, pid: u32, space: &AddressSpace) {
        let told = self.processes.update(&pid.to_ne_bytes(), &space.value(), MapFlags::ANY);
        if let Err(error) = told {
            tracing::warn!(pid, "its stacks cannot be walked: {error}");
            self.refused += 1;
        }
    }

    /// A process that is no longer watched.
    pub(super) fn forget(&self, pid: u32) {
        let _ = self.processes.delete(&pid.to_ne_bytes());
    }

    /// Gives a list back that no process has any more.
    pub(super) fn give(&mut self, space: Rc<AddressSpace>, now: Instant) {
        if let Ok(space) = Rc::try_unwrap(space) {
            self.space.give(space.extent, now);
        }
    }

    /// Makes room that was given back usable again, once it has rested.
    pub(super) fn wake(&mut self, now: Instant) {
        self.space.wake(now);
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
