//! Tables as BPF reads them: see `stack/native.h`.

use underspan_unwind::{Cfa, Rbp, Row, Rule};

use super::space::Extent;
use crate::record::{
    UNWIND_BLOCK, UNWIND_SHARD, unwind_block, unwind_cfa, unwind_entry, unwind_rbp, unwind_row,
    unwind_rule,
};

/// Bytes of an entry.
pub(super) const ENTRY: usize = size_of::<unwind_entry>();
/// As it is written.
pub(super) type Entry = [u8; ENTRY];

/// Entries that are asked for, and written, at once: 32 KiB.
const RUN: u32 = 4096;
/// Rows of one block at the most: one for each byte.
const BLOCK_ROWS: u32 = UNWIND_BLOCK;

/// Where entries are put.
pub(super) trait Array {
    /// Room for so many, next to each other. `None`: there is none.
    fn take(&mut self, count: u32) -> Option<Extent>;
    /// Gives the end of what was taken back.
    fn trim(&mut self, extent: &mut Extent, count: u32);
    /// Puts entries there.
    fn write(&mut self, first: u32, entries: &[Entry]) -> libbpf_rs::Result<()>;
}

/// Why a table is not in place.
#[derive(Debug)]
pub(super) enum Failed {
    NoRoom,
    Write(libbpf_rs::Error),
}

/// Packs one table, row by row, and writes what is finished. What it has taken is in `extents`, also if it fails.
pub(super) struct Packer {
    /// Blocks of the table, and where they are put.
    blocks: u32,
    at: u32,
    /// What the extents are: first that of the blocks, then those of rows.
    pub(super) extents: Vec<Extent>,
    /// Entries of finished blocks that are not written yet.
    finished: Vec<Entry>,
    /// The block that rows are collected of, and its rows: first the one that holds at its first byte.
    block: u32,
    rows: Vec<Entry>,
    /// The first of them is the last one that has a place.
    is_placed: bool,
    /// Entries of rows that are not written yet, and where they are put.
    pending: Vec<Entry>,
    first: u32,
    /// Entries that are taken at once for them.
    run: u32,
}

impl Packer {
    /// A table that speaks of `span` bytes of code, and has about so many rows.
    pub(super) fn new(array: &mut impl Array, span: u32, rows: u64) -> Result<Self, Failed> {
        let blocks = span.div_ceil(UNWIND_BLOCK).max(1);
        let extent = array.take(blocks).ok_or(Failed::NoRoom)?;
        let run = u32::try_from(rows).unwrap_or(u32::MAX).clamp(BLOCK_ROWS, RUN);
        Ok(Packer {
            blocks,
            at: extent.first,
            extents: vec![extent],
            finished: Vec::new(),
            block: 0,
            // The first row replaces it.
            rows: vec![entry(&Row { pc: 0, rule: Rule::Gap })],
            is_placed: false,
            pending: Vec::new(),
            first: 0,
            run,
        })
    }

    /// The next row, in the order of addresses.
    pub(super) fn row(&mut self, array: &mut impl Array, row: Row) -> Result<(), Failed> {
        let block = row.pc / UNWIND_BLOCK;
        if block >= self.blocks {
            // The end of the table's last block.
            return Ok(());
        }
        while self.block < block {
            self.finish_block(array)?;
        }
        // What holds at the first byte of a block is one row.
        if row.pc.is_multiple_of(UNWIND_BLOCK) {
            self.rows.clear();
            self.is_placed = false;
        }
        self.rows.push(entry(&row));
        Ok(())
    }

    /// There are no more rows. Gives back what was not needed.
    pub(super) fn finish(&mut self, array: &mut impl Array) -> Result<(), Failed> {
        while self.block < self.blocks {
            self.finish_block(array)?;
        }
        self.write_blocks(array)?;
        self.write_rows(array)?;
        if let [_, .., last] = self.extents.as_mut_slice() {
            array.trim(last, self.first - last.first);
        }
        Ok(())
    }

    /// Finds a place for a block's rows. The next one begins with the last of them.
    fn finish_block(&mut self, array: &mut impl Array) -> Result<(), Failed> {
        let count = self.rows.len() as u32;
        let first = loop {
            let first = self.next() - u32::from(self.is_placed);
            if self.fits(first, count) {
                break first;
            }
            self.make_room(array, first)?;
        };
        self.pending.extend_from_slice(&self.rows[usize::from(self.is_placed)..]);
        self.finished.push(bytes_of_block(unwind_block { first, rows: count }));
        if self.pending.len() as u32 >= RUN {
            self.write_rows(array)?;
        }
        if self.finished.len() as u32 >= RUN {
            self.write_blocks(array)?;
        }
        self.rows.drain(..self.rows.len() - 1);
        self.is_placed = true;
        self.block += 1;
        Ok(())
    }

    /// Where the next row is put.
    fn next(&self) -> u32 {
        self.first + self.pending.len() as u32
    }

    /// Whether there is room for a block's rows. They are all in one shard.
    fn fits(&self, first: u32, count: u32) -> bool {
        let last = first + count - 1;
        last < self.end() && first / UNWIND_SHARD == last / UNWIND_SHARD
    }

    /// The end of the room for rows that was taken last.
    fn end(&self) -> u32 {
        match self.extents.as_slice() {
            [_, .., run] => run.first + run.count,
            _ => 0,
        }
    }

    /// Goes on in the next shard, or takes more. Elsewhere a block's first row is written again.
    fn make_room(&mut self, array: &mut impl Array, first: u32) -> Result<(), Failed> {
        let shard = (first / UNWIND_SHARD + 1) * UNWIND_SHARD;
        let end = self.end();
        if shard < end {
            self.write_rows(array)?;
            self.first = shard;
            self.is_placed = false;
            return Ok(());
        }
        let extent = array.take(self.run).ok_or(Failed::NoRoom)?;
        if let [_, .., run] = self.extents.as_mut_slice()
            && extent.first == end
        {
            run.count += extent.count;
            return Ok(());
        }
        self.write_rows(array)?;
        self.extents.push(extent);
        self.first = extent.first;
        self.is_placed = false;
        Ok(())
    }

    fn write_rows(&mut self, array: &mut impl Array) -> Result<(), Failed> {
        array.write(self.first, &self.pending).map_err(Failed::Write)?;
        self.first += self.pending.len() as u32;
        self.pending.clear();
        Ok(())
    }

    fn write_blocks(&mut self, array: &mut impl Array) -> Result<(), Failed> {
        array.write(self.at, &self.finished).map_err(Failed::Write)?;
        self.at += self.finished.len() as u32;
        self.finished.clear();
        Ok(())
    }
}

fn bytes_of_block(block: unwind_block) -> Entry {
    let (first, rows) = (block.first.to_ne_bytes(), block.rows.to_ne_bytes());
    let [a, b, c, d] = first;
    let [e, f, g, h] = rows;
    [a, b, c, d, e, f, g, h]
}

fn entry(row: &Row) -> Entry {
    let rule = rule(row.rule).unwrap_or_else(|| plain(unwind_cfa::UNWIND_UNSUPPORTED));
    // SAFETY: a C struct of integers of the entry's size, without padding.
    unsafe { std::mem::transmute::<unwind_row, Entry>(unwind_row { pc: row.pc, rule }) }
}

fn plain(cfa: u32) -> unwind_rule {
    let mut rule = unwind_rule::default();
    rule.set_cfa(cfa as u8);
    rule
}

/// `None` if an offset does not fit: of frames above half a megabyte, mostly.
fn rule(rule: Rule) -> Option<unwind_rule> {
    let (cfa, rbp) = match rule {
        Rule::Frame { cfa, rbp } => (cfa, rbp),
        Rule::InRegister { register, offset } => {
            let mut rule = plain(unwind_cfa::UNWIND_IN_REGISTER);
            rule.words = two(offset, register.into())?;
            return Some(rule);
        }
        Rule::FramePointer => return Some(plain(unwind_cfa::UNWIND_FRAME_POINTER)),
        Rule::End => return Some(plain(unwind_cfa::UNWIND_END)),
        Rule::Signal => return Some(plain(unwind_cfa::UNWIND_SIGNAL)),
        Rule::Unsupported => return Some(plain(unwind_cfa::UNWIND_UNSUPPORTED)),
        Rule::Gap => return Some(plain(unwind_cfa::UNWIND_GAP)),
    };
    let (kind, words) = match cfa {
        Cfa::Rsp(offset) => (unwind_cfa::UNWIND_RSP, u16::try_from(in_words(offset)?).ok()?),
        Cfa::Rbp(offset) => {
            (unwind_cfa::UNWIND_RBP, i16::try_from(in_words(offset)?).ok()?.cast_unsigned())
        }
        Cfa::AtRsp { offset, add } => (unwind_cfa::UNWIND_AT_RSP, two(offset, in_words(add)?)?),
        Cfa::AtRbp { offset, add } => (unwind_cfa::UNWIND_AT_RBP, two(offset, in_words(add)?)?),
        Cfa::Other { register, offset } => {
            (unwind_cfa::UNWIND_REGISTER, two(offset, register.into())?)
        }
        Cfa::Plt { pushed } => (unwind_cfa::UNWIND_PLT, pushed.into()),
    };
    let (rbp, rbp_words) = match rbp {
        Rbp::Same => (unwind_rbp::UNWIND_RBP_SAME, 0),
        Rbp::AtCfa(offset) => {
            (unwind_rbp::UNWIND_RBP_AT_CFA, i8::try_from(in_words(offset)?).ok()?)
        }
        Rbp::AtRbp(offset) => {
            (unwind_rbp::UNWIND_RBP_AT_RBP, i8::try_from(in_words(offset)?).ok()?)
        }
        Rbp::Unknown => (unwind_rbp::UNWIND_RBP_UNKNOWN, 0),
    };
    let mut rule = plain(kind);
    rule.set_rbp(rbp as u8);
    rule.rbp_words = rbp_words;
    rule.words = words;
    Some(rule)
}

fn in_words(bytes: i32) -> Option<i32> {
    (bytes % 8 == 0).then_some(bytes / 8)
}

/// 12 bits of words, signed, and 4 bits.
fn two(offset: i32, low: i32) -> Option<u16> {
    let words = in_words(offset)?;
    let fits = (-2048..2048).contains(&words) && (0..16).contains(&low);
    fits.then_some(((words << 4) | low) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::unwind::space::Space;

    fn row(pc: u32, words: i32) -> Row {
        Row { pc, rule: Rule::Frame { cfa: Cfa::Rsp(8 * words), rbp: Rbp::Same } }
    }

    fn unpack(entry: Entry) -> unwind_row {
        // SAFETY: of integers, and of the same size.
        unsafe { std::mem::transmute::<Entry, unwind_row>(entry) }
    }

    /// Three shards, and who has written to which entry.
    struct Written {
        space: Space,
        entries: Vec<Option<Entry>>,
        extents: Vec<Extent>,
    }

    impl Written {
        fn new() -> Self {
            let limit = 3 * UNWIND_SHARD;
            let entries = vec![None; limit as usize];
            Written { space: Space::new(limit), entries, extents: Vec::new() }
        }

        /// As the walker does it.
        fn find(&self, blocks: u32, pc: u32) -> unwind_row {
            let block = self.entries[(blocks + pc / UNWIND_BLOCK) as usize].unwrap();
            let first = u32::from_ne_bytes(*block.first_chunk().unwrap());
            let rows = u32::from_ne_bytes(*block.last_chunk().unwrap());
            assert_eq!(first / UNWIND_SHARD, (first + rows - 1) / UNWIND_SHARD, "in one shard");
            let rows = &self.entries[first as usize..][..rows as usize];
            let after = rows.partition_point(|row| unpack(row.unwrap()).pc <= pc);
            unpack(rows[after - 1].unwrap())
        }
    }

    impl Array for Written {
        fn take(&mut self, count: u32) -> Option<Extent> {
            let extent = self.space.take(count)?;
            self.extents.push(extent);
            Some(extent)
        }

        fn trim(&mut self, extent: &mut Extent, count: u32) {
            self.space.trim(extent, count);
        }

        fn write(&mut self, first: u32, entries: &[Entry]) -> libbpf_rs::Result<()> {
            for (at, &entry) in (first..).zip(entries) {
                let is_inside =
                    |taken: &Extent| (taken.first..taken.first + taken.count).contains(&at);
                assert!(self.extents.iter().any(is_inside), "entry {at} was not taken");
                assert!(self.entries[at as usize].is_none(), "entry {at} is written twice");
                self.entries[at as usize] = Some(entry);
            }
            Ok(())
        }
    }

    const SPAN: u32 = 240_000;

    /// Dense, sparse, and blocks without a row of their own.
    fn rows() -> Vec<Row> {
        let mut rows: Vec<_> = (0..90_000).map(|n| row(n, 1 + n as i32 % 1000)).collect();
        rows.extend((0..50).map(|n| row(90_000 + 3000 * n, 2 + n as i32)));
        rows.push(Row { pc: SPAN, rule: Rule::Gap });
        rows
    }

    fn pack(array: &mut Written, rows: &[Row], expected: u64) -> Result<Packer, Failed> {
        let mut packer = Packer::new(array, SPAN, expected)?;
        rows.iter().try_for_each(|&row| packer.row(array, row))?;
        packer.finish(array)?;
        Ok(packer)
    }

    #[test]
    fn every_address_has_its_row_wherever_the_table_is_put() {
        let rows = rows();
        // What is taken already, each time followed by room for so many.
        let crowded: Vec<(u32, u32)> = (0..8).map(|n| (7000 + n, 600 + 700 * n)).collect();
        let before: [&[(u32, u32)]; 6] = [
            &[],
            &[(777, 0)],
            &[(UNWIND_SHARD - 300, 0)],
            &[(UNWIND_SHARD - 1, 0)],
            &[(UNWIND_SHARD - 1000, 500), (2000, 3000), (10, 0)],
            &crowded,
        ];
        for (number, before) in before.into_iter().enumerate() {
            for expected in [0, 90_000] {
                let mut array = Written::new();
                let mut holes = Vec::new();
                for &(taken, free) in before {
                    array.space.take(taken).unwrap();
                    holes.extend((free > 0).then(|| array.space.take(free).unwrap()));
                }
                let now = std::time::Instant::now();
                holes.into_iter().for_each(|hole| array.space.give(hole, now));
                array.space.wake(now + std::time::Duration::from_secs(60));
                let packer = pack(&mut array, &rows, expected).unwrap();
                let blocks = packer.extents[0].first;
                for pc in (0..SPAN).step_by(7) {
                    let found = array.find(blocks, pc);
                    let wanted = &rows[rows.partition_point(|row| row.pc <= pc) - 1];
                    assert_eq!(found.pc, wanted.pc, "at {pc:#x}, case {number}");
                    assert_eq!(found.rule.cfa(), unwind_cfa::UNWIND_RSP as u8);
                }
                // 469 blocks, of which 176 have 512 rows; those in between begin with the row before.
                let used: u32 = packer.extents.iter().map(|extent| extent.count).sum();
                let written = array.entries.iter().flatten().count() as u32;
                assert!((90_519..91_519).contains(&written), "{written} entries");
                assert!(used - written < 8 * BLOCK_ROWS, "{used} taken, {written} written");
            }
        }
    }

    #[test]
    fn without_room_all_that_was_taken_is_told() {
        let rows = rows();
        let mut array = Written::new();
        array.space.take(3 * UNWIND_SHARD - 50_000).unwrap();
        assert!(matches!(pack(&mut array, &rows, 90_000), Err(Failed::NoRoom)));
        let mut array = Written::new();
        array.space.take(3 * UNWIND_SHARD - 400).unwrap();
        assert!(matches!(Packer::new(&mut array, SPAN, 0), Err(Failed::NoRoom)));
    }

    #[test]
    fn what_does_not_fit_is_unsupported() {
        let frame = |cfa, rbp| rule(Rule::Frame { cfa, rbp });
        assert!(frame(Cfa::Rsp(8 * 65535), Rbp::AtCfa(-1024)).is_some());
        assert!(frame(Cfa::Rsp(8 * 65536), Rbp::Same).is_none());
        assert!(frame(Cfa::Rsp(12), Rbp::Same).is_none());
        assert!(frame(Cfa::Rsp(8), Rbp::AtCfa(-1032)).is_none());
        let rule = frame(Cfa::AtRbp { offset: -8, add: 8 }, Rbp::AtRbp(0)).unwrap();
        assert_eq!((rule.words as i16 >> 4, rule.words & 15), (-1, 1));
        assert_eq!(u32::from(rule.cfa()), unwind_cfa::UNWIND_AT_RBP);
        assert_eq!(u32::from(rule.rbp()), unwind_rbp::UNWIND_RBP_AT_RBP);
        let odd = Row { pc: 5, rule: Rule::Frame { cfa: Cfa::Rsp(4), rbp: Rbp::Same } };
        let cfa = unpack(entry(&odd)).rule.cfa();
        assert_eq!(u32::from(cfa), unwind_cfa::UNWIND_UNSUPPORTED);
    }
}
