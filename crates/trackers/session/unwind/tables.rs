//! Tables in the array that BPF reads, which grows and shrinks by shards.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Instant;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};
use underspan_unwind::Table;

use super::pack::{ENTRY, pack, room};
use super::space::{Extent, Space};
use crate::record::UNWIND_SHARD;

/// Where a table is.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) extent: Extent,
    /// The virtual address, as the file has it, of the table's first byte of code.
    pub(super) base: u64,
    /// Bytes of code that it speaks of.
    pub(super) span: u32,
}

/// All tables.
pub(super) struct Tables {
    array: MapHandle,
    shards: Vec<Option<MapHandle>>,
    space: Space,
}

impl Tables {
    /// `limit`: shards at the most.
    pub(super) fn new(array: MapHandle, limit: u32) -> Self {
        let limit = limit.clamp(1, array.max_entries());
        Tables {
            array,
            shards: (0..limit).map(|_| None).collect(),
            space: Space::new(limit * UNWIND_SHARD),
        }
    }

    /// Puts a table there. `Ok(None)`: there is no room.
    pub(super) fn place(&mut self, table: &Table) -> libbpf_rs::Result<Option<Placed>> {
        let Some(mut extent) = self.space.take(room(table)) else { return Ok(None) };
        let entries = pack(table, extent.first);
        self.space.trim(&mut extent, entries.len() as u32);
        if let Err(error) = self.write(extent.first, &entries) {
            self.space.give(extent, Instant::now());
            return Err(error);
        }
        Ok(Some(Placed { extent, base: table.base, span: table.span() }))
    }

    /// Takes a table away that no mapping refers to any more.
    pub(super) fn remove(&mut self, extent: Extent, now: Instant) {
        self.space.give(extent, now);
    }

    /// Makes rested room usable again, and gives the memory of empty shards back.
    pub(super) fn wake(&mut self, now: Instant) {
        if !self.space.wake(now) {
            return;
        }
        for (number, shard) in (0u32..).zip(&mut self.shards) {
            // Place 0 is never handed out.
            let first = (number * UNWIND_SHARD).max(1);
            let all = Extent { first, count: (number + 1) * UNWIND_SHARD - first };
            if shard.is_some() && self.space.is_free(all) {
                // The kernel frees it once no program looks at it.
                let _ = self.array.delete(&number.to_ne_bytes());
                *shard = None;
            }
        }
    }

    /// Bytes of the shards there are.
    pub(super) fn bytes(&self) -> u64 {
        let shards = self.shards.iter().flatten().count() as u64;
        shards * u64::from(UNWIND_SHARD) * ENTRY as u64
    }

    fn write(&mut self, first: u32, entries: &[[u8; ENTRY]]) -> libbpf_rs::Result<()> {
        let mut at = first;
        let mut rest = entries;
        while !rest.is_empty() {
            let (number, slot) = (at / UNWIND_SHARD, at % UNWIND_SHARD);
            let count = rest.len().min((UNWIND_SHARD - slot) as usize);
            let (part, others) = rest.split_at(count);
            let shard = self.shard(number)?;
            let keys: Vec<u8> = (slot..).take(count).flat_map(u32::to_ne_bytes).collect();
            shard.update_batch(
                &keys,
                part.as_flattened(),
                count as u32,
                MapFlags::ANY,
                MapFlags::ANY,
            )?;
            at += count as u32;
            rest = others;
        }
        Ok(())
    }

    fn shard(&mut self, number: u32) -> libbpf_rs::Result<&MapHandle> {
        let Some(shard) = self.shards.get_mut(number as usize) else {
            return Err(libbpf_rs::Error::from_raw_os_error(libc::E2BIG));
        };
        if shard.is_none() {
            let options = libbpf_sys::bpf_map_create_opts {
                sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
                ..Default::default()
            };
            let name = Some("unwind_shard");
            let entry = ENTRY as u32;
            let made = MapHandle::create(MapType::Array, name, 4, entry, UNWIND_SHARD, &options)?;
            let fd = made.as_fd().as_raw_fd().to_ne_bytes();
            self.array.update(&number.to_ne_bytes(), &fd, MapFlags::ANY)?;
            *shard = Some(made);
        }
        shard.as_ref().ok_or_else(|| libbpf_rs::Error::from_raw_os_error(libc::ENOENT))
    }
}
