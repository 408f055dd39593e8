//! Tables in the array that BPF reads, which grows and shrinks by shards.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Instant;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};
use underspan_unwind::{Error, Functions};

use super::pack::{Array, ENTRY, Entry, Failed, Packer};
use super::space::{Extent, Space};
use crate::record::UNWIND_SHARD;

/// Where a table is.
#[derive(Debug)]
pub(super) struct Placed {
    /// The blocks, then rows.
    extents: Vec<Extent>,
    /// The virtual address, as the file has it, of the table's first byte of code.
    pub(super) base: u64,
    /// Bytes of code that it speaks of.
    pub(super) span: u32,
}

impl Placed {
    /// The first of its blocks.
    pub(super) fn blocks(&self) -> u32 {
        self.extents.first().map_or(0, |blocks| blocks.first)
    }
}

/// A table that is being put in place.
pub(super) struct Placing {
    functions: Functions,
    packer: Packer,
}

/// How that ended.
pub(super) enum Outcome {
    /// There is more to do.
    Unfinished,
    Placed(Placed),
    NoRoom,
    /// The binary's tables are no good.
    Bad(Error),
    /// The kernel would not have it.
    Refused(libbpf_rs::Error),
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

    /// Begins to put a table there, of which so many bytes are read.
    pub(super) fn place(&mut self, functions: Functions, bytes: u64) -> Result<Placing, Outcome> {
        // A row takes five bytes of a C++ library.
        let packer = Packer::new(self, functions.span(), bytes / 4);
        match packer {
            Ok(packer) => Ok(Placing { functions, packer }),
            Err(Failed::NoRoom) => Err(Outcome::NoRoom),
            Err(Failed::Write(error)) => Err(Outcome::Refused(error)),
        }
    }

    /// Reads on, for about that many functions. After any other outcome than `Unfinished` it is over.
    pub(super) fn go_on(&mut self, placing: &mut Placing, functions: usize) -> Outcome {
        let Placing { functions: read, packer } = placing;
        let mut failed = None;
        let more = read.read(functions, |row| {
            if failed.is_none() {
                failed = packer.row(self, row).err();
            }
        });
        let outcome = match (more, failed) {
            (Err(error), _) => Outcome::Bad(error),
            (_, Some(Failed::NoRoom)) => Outcome::NoRoom,
            (_, Some(Failed::Write(error))) => Outcome::Refused(error),
            (Ok(true), None) => return Outcome::Unfinished,
            (Ok(false), None) => match packer.finish(self) {
                Ok(()) => {
                    let extents = std::mem::take(&mut packer.extents);
                    return Outcome::Placed(Placed {
                        extents,
                        base: read.base(),
                        span: read.span(),
                    });
                }
                Err(Failed::NoRoom) => Outcome::NoRoom,
                Err(Failed::Write(error)) => Outcome::Refused(error),
            },
        };
        self.give(&packer.extents, Instant::now());
        packer.extents.clear();
        outcome
    }

    /// Takes a table away that no mapping refers to any more.
    pub(super) fn remove(&mut self, placed: &Placed, now: Instant) {
        self.give(&placed.extents, now);
    }

    fn give(&mut self, extents: &[Extent], now: Instant) {
        for &extent in extents {
            self.space.give(extent, now);
        }
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

impl Array for Tables {
    fn take(&mut self, count: u32) -> Option<Extent> {
        self.space.take(count)
    }

    fn trim(&mut self, extent: &mut Extent, count: u32) {
        self.space.trim(extent, count);
    }

    fn write(&mut self, first: u32, entries: &[Entry]) -> libbpf_rs::Result<()> {
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
}
