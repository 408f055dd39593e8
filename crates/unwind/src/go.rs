//! Go's own tables (`.gopclntab`): how far the stack pointer has moved, for every instruction.
//!
//! Go binaries have no `.eh_frame` for Go code. They have frame pointers, but a function without a
//! frame, as the one that makes system calls, would hide its caller.

use std::ops::Range;

use crate::table::Functions;
use crate::{Cfa, Rbp, Rule};

/// Go 1.18, and 1.20 and later; before, functions were told by address.
const GO_1_18: u32 = 0xffff_fff0;
const GO_1_20: u32 = 0xffff_fff1;

/// Bits of `_func.flag`.
const TOP_FRAME: u8 = 1;
const SP_WRITE: u8 = 2;

/// Offset of `_func.pcsp`.
const FUNC_PCSP: usize = 16;

/// Adds the functions of a Go program. `runtime_text` is the address of the symbol `runtime.text`:
/// recent versions do not write it into the header. What cannot be read is left out.
pub(crate) fn read(
    section: &[u8],
    runtime_text: Option<u64>,
    code: &[Range<u64>],
    functions: &mut Functions,
) -> Option<()> {
    let magic = u32::from_le_bytes(*section.first_chunk()?);
    let (quantum, pointer) = (*section.get(6)?, *section.get(7)?);
    let flag_at = match magic {
        GO_1_18 => 37,
        GO_1_20 => 41,
        _ => return None,
    };
    if quantum != 1 || pointer != 8 {
        return None;
    }
    let header = |index: usize| usize::try_from(word(section, 8 + 8 * index)?).ok();
    let count = header(0)?;
    let text = Some(word(section, 24)?).filter(|&text| text != 0).or(runtime_text)?;
    let deltas = section.get(header(6)?..)?;
    let index = section.get(header(7)?..)?;
    for at in 0..count {
        // Pairs of 32-bit offsets: of the code, from `text`; of the `_func`, from the index itself.
        let entry = u64::from(half(index, 8 * at)?);
        let end = u64::from(half(index, 8 * at + 8)?);
        let function = index.get(half(index, 8 * at + 4)? as usize..)?;
        let start = text.checked_add(entry)?;
        let end = text.checked_add(end)?;
        if start >= end || !code.iter().any(|code| code.contains(&start) && end <= code.end) {
            continue;
        }
        let flag = *function.get(flag_at)?;
        if flag & TOP_FRAME != 0 {
            functions.add(start, end, [(start, Rule::End)]);
        } else if flag & SP_WRITE != 0 {
            functions.add(start, end, [(start, Rule::FramePointer)]);
        } else {
            let table = deltas.get(half(function, FUNC_PCSP)? as usize..)?;
            functions.add(start, end, rows(table, start, end));
        }
    }
    Some(())
}

/// The rows of a table of (difference in value, difference in address).
fn rows(mut table: &[u8], start: u64, end: u64) -> Vec<(u64, Rule)> {
    let mut rows = Vec::new();
    let (mut pc, mut moved) = (start, -1i32);
    while pc < end {
        let Some(difference) = varint(&mut table) else { break };
        if difference == 0 && pc != start {
            break;
        }
        // Zigzag.
        let difference = (difference >> 1) as i32 ^ -((difference & 1) as i32);
        let Some(length) = varint(&mut table) else { break };
        moved = moved.wrapping_add(difference);
        rows.push((pc, rule(moved)));
        pc = pc.saturating_add(length.into());
    }
    if rows.is_empty() {
        rows.push((start, Rule::FramePointer));
    }
    rows
}

/// A function's first instruction that moves the stack pointer pushes `rbp`.
fn rule(moved: i32) -> Rule {
    match moved {
        0 => Rule::ENTRY,
        1.. if moved < i32::MAX - 8 => {
            Rule::Frame { cfa: Cfa::Rsp(moved + 8), rbp: Rbp::AtCfa(-16) }
        }
        _ => Rule::Unsupported,
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u32> {
    let mut value = 0;
    for shift in (0..32).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|half| u32::from_le_bytes(*half))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_of_24_bytes() {
        // The value goes from -1 to 0 for 1 byte of code, to 8 for 3, to 24 for 16.
        let table = [2, 1, 16, 3, 32, 16, 0];
        let frame = |size| Rule::Frame { cfa: Cfa::Rsp(size), rbp: Rbp::AtCfa(-16) };
        let expected = [(0x100, Rule::ENTRY), (0x101, frame(16)), (0x104, frame(32))];
        assert_eq!(rows(&table, 0x100, 0x200), expected);
        assert_eq!(rows(&table[..3], 0x100, 0x200), expected[..1], "cut off");
        assert_eq!(rows(&[], 0x100, 0x200), [(0x100, Rule::FramePointer)]);
        assert_eq!(rows(&[0xff; 9], 0x100, 0x200), [(0x100, Rule::FramePointer)]);
    }

    proptest::proptest! {
        #[test]
        fn anything_is_read_without_harm(
            mut bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..600),
            count in 0u64..40,
        ) {
            // A header that is believed, before anything.
            let header = [0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8];
            let places = [count, 0, 0x1000, 0, 0, 0, 80, 100];
            for (at, byte) in header.into_iter().chain(places.into_iter().flat_map(u64::to_le_bytes)).enumerate() {
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
            }
            let code = 0x1000..u64::MAX;
            let mut functions = Functions::default();
            let _ = read(&bytes, None, &[code], &mut functions);
        }
    }
}
