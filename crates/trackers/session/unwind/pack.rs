//! Tables as BPF reads them: see `stack/native.h`.

use underspan_unwind::{Cfa, Rbp, Row, Rule, Table};

use crate::record::{
    UNWIND_BLOCK, UNWIND_SHARD, unwind_block, unwind_cfa, unwind_entry, unwind_rbp, unwind_row,
    unwind_rule,
};

/// Bytes of an entry.
pub(super) const ENTRY: usize = size_of::<unwind_entry>();

/// Entries that a table takes at the most, wherever it is put.
pub(super) fn room(table: &Table) -> u32 {
    let (blocks, rows) = (blocks(table), table.rows.len() as u32);
    // A block's rows are in one shard: each shard may begin with a block's rows again, and end
    // with as many unused.
    let shards = (blocks + rows).div_ceil(UNWIND_SHARD) + 2;
    blocks + rows + shards * 2 * UNWIND_BLOCK
}

fn blocks(table: &Table) -> u32 {
    table.span().div_ceil(UNWIND_BLOCK).max(1)
}

/// The entries of a table whose first is entry `at`.
pub(super) fn pack(table: &Table, at: u32) -> Vec<[u8; ENTRY]> {
    let blocks = blocks(table);
    let mut entries = Vec::with_capacity(blocks as usize + table.rows.len());
    // Filled in as the rows behind them get their places.
    entries.resize(blocks as usize, [0; ENTRY]);
    // Rows up to this one are placed, the last of them at the end of `entries`.
    let mut placed: Option<usize> = None;
    let mut next = 0;
    for block in 0..blocks {
        let (start, end) = (u64::from(block) * u64::from(UNWIND_BLOCK), block + 1);
        let end = u64::from(end) * u64::from(UNWIND_BLOCK);
        // The row that holds at the block's first byte, and those that begin within.
        while table.rows.get(next + 1).is_some_and(|row| u64::from(row.pc) <= start) {
            next += 1;
        }
        let within = (next..).map_while(|row| table.rows.get(row));
        let count = within.take_while(|row| u64::from(row.pc) < end).count().max(1);
        let shares = placed == Some(next);
        let mut first = at + entries.len() as u32 - u32::from(shares);
        let last = first + count as u32 - 1;
        let mut skip = usize::from(shares);
        if first / UNWIND_SHARD != last / UNWIND_SHARD {
            first = (first / UNWIND_SHARD + 1) * UNWIND_SHARD;
            entries.resize((first - at) as usize, [0; ENTRY]);
            skip = 0;
        }
        let within = (next + skip..next + count).filter_map(|row| table.rows.get(row));
        entries.extend(within.map(|row| entry(&row)));
        placed = Some(next + count - 1);
        entries[block as usize] = bytes_of_block(unwind_block { first, rows: count as u32 });
    }
    entries
}

fn bytes_of_block(block: unwind_block) -> [u8; ENTRY] {
    let (first, rows) = (block.first.to_ne_bytes(), block.rows.to_ne_bytes());
    let [a, b, c, d] = first;
    let [e, f, g, h] = rows;
    [a, b, c, d, e, f, g, h]
}

fn entry(row: &Row) -> [u8; ENTRY] {
    let rule = rule(row.rule).unwrap_or_else(|| plain(unwind_cfa::UNWIND_UNSUPPORTED));
    // SAFETY: a C struct of integers of the entry's size, without padding.
    unsafe { std::mem::transmute::<unwind_row, [u8; ENTRY]>(unwind_row { pc: row.pc, rule }) }
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
    use crate::record::UNWIND_SHARD;

    fn row(pc: u32, words: i32) -> Row {
        Row { pc, rule: Rule::Frame { cfa: Cfa::Rsp(8 * words), rbp: Rbp::Same } }
    }

    fn unpack(entry: [u8; ENTRY]) -> unwind_row {
        // SAFETY: of integers, and of the same size.
        unsafe { std::mem::transmute::<[u8; ENTRY], unwind_row>(entry) }
    }

    /// As the walker does it.
    fn find(entries: &[[u8; ENTRY]], at: u32, pc: u32) -> unwind_row {
        let block = entries[(pc / UNWIND_BLOCK) as usize];
        let first = u32::from_ne_bytes(*block.first_chunk().unwrap());
        let rows = u32::from_ne_bytes(*block.last_chunk().unwrap());
        assert_eq!(first / UNWIND_SHARD, (first + rows - 1) / UNWIND_SHARD, "in one shard");
        let rows = &entries[(first - at) as usize..][..rows as usize];
        let after = rows.partition_point(|&row| unpack(row).pc <= pc);
        unpack(rows[after - 1])
    }

    #[test]
    fn every_address_has_its_row_wherever_the_table_is_put() {
        // Dense, sparse, and a block without a row of its own.
        let mut rows: Vec<_> = (0..90_000).map(|n| row(n, 1 + n as i32 % 1000)).collect();
        rows.extend((0..50).map(|n| row(90_000 + 3000 * n, 2 + n as i32)));
        rows.push(Row { pc: 240_000, rule: Rule::Gap });
        let table = Table { base: 0x1000, rows: rows.iter().copied().collect() };
        for at in [1, 777, UNWIND_SHARD - 300, UNWIND_SHARD, 3 * UNWIND_SHARD - 1] {
            let entries = pack(&table, at);
            assert!(entries.len() as u32 <= room(&table));
            for pc in (0..240_000).step_by(7) {
                let found = find(&entries, at, pc);
                let wanted = &rows[rows.partition_point(|row| row.pc <= pc) - 1];
                assert_eq!(found.pc, wanted.pc, "at {pc:#x}, table at {at}");
                assert_eq!(found.rule.cfa(), unwind_cfa::UNWIND_RSP as u8);
            }
        }
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
