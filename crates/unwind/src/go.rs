//! Go's own tables (`.gopclntab`): how far the stack pointer has moved, for every instruction.
//!
//! Go binaries have no `.eh_frame` for Go code. They have frame pointers, but a function without a
//! frame, as the one that makes system calls, would hide its caller.

use std::ops::Range;

use gimli::Reader as _;

use crate::section::Section;
use crate::{Cfa, Error, Rbp, Rule};

/// Go 1.18, and 1.20 and later; before, functions were told by address.
const GO_1_18: u32 = 0xffff_fff0;
const GO_1_20: u32 = 0xffff_fff1;

/// Bits of `_func.flag`.
const TOP_FRAME: u8 = 1;
const SP_WRITE: u8 = 2;

/// Offset of `_func.pcsp`.
const FUNC_PCSP: u64 = 16;

/// A Go program's functions.
pub(crate) struct Go {
    /// Address of the first one.
    text: u64,
    count: u32,
    /// Offset of `_func.flag`.
    flag: u64,
    /// Of the functions, then the functions themselves.
    index: Section,
    /// How far the stack pointer has moved.
    deltas: Section,
}

/// How to leave a function.
enum How {
    /// By one rule.
    Always(Rule),
    /// By a table of stack pointers.
    Table(Section),
}

impl Go {
    /// Reads the header. `runtime_text` is asked for the address of the symbol `runtime.text`: recent versions do
    /// not write it there. `None`: it is of no known version.
    pub(crate) fn new(
        section: &Section,
        runtime_text: impl FnOnce() -> Option<u64>,
    ) -> Option<Self> {
        let flag = match half(section, 0)? {
            GO_1_18 => 37,
            GO_1_20 => 41,
            _ => return None,
        };
        let [quantum, pointer] = section.bytes(6)?;
        if quantum != 1 || pointer != 8 {
            return None;
        }
        let header = |index: u64| word(section, 8 + 8 * index);
        // Numbers of functions beyond that would not fit into an index that is read.
        let count = u32::try_from(header(0)?).unwrap_or(u32::MAX);
        let text = Some(word(section, 24)?).filter(|&text| text != 0).or_else(runtime_text)?;
        let (deltas, index) = (section.after(header(6)?)?, section.after(header(7)?)?);
        Some(Go { text, count, flag, index, deltas })
    }

    /// Tells of all functions within `code`: where each begins, and its number. It stops at the first that is not
    /// in the section.
    ///
    /// # Errors
    /// Those of `each`.
    pub(crate) fn functions(
        &self,
        code: &[Range<u64>],
        mut each: impl FnMut(u64, u32) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for number in 0..self.count {
            let Some(range) = self.code(number) else { break };
            if range.start >= range.end
                || !code.iter().any(|code| code.contains(&range.start) && range.end <= code.end)
            {
                continue;
            }
            if self.how(number).is_none() {
                break;
            }
            each(range.start, number)?;
        }
        Ok(())
    }

    /// Tells the function's rules, from its first byte on, in ascending order, of two at one address the later one.
    /// Returns its end.
    pub(crate) fn rules(&self, number: u32, mut each: impl FnMut(u64, Rule)) -> Option<u64> {
        let code = self.code(number)?;
        match self.how(number)? {
            How::Always(rule) => each(code.start, rule),
            How::Table(table) => rules(table, code.clone(), each),
        }
        Some(code.end)
    }

    /// Pairs of 32-bit offsets: of the code, from `text`; of the `_func`, from the index itself.
    fn code(&self, number: u32) -> Option<Range<u64>> {
        let at = 8 * u64::from(number);
        let start = self.text.checked_add(half(&self.index, at)?.into())?;
        let end = self.text.checked_add(half(&self.index, at + 8)?.into())?;
        self.function(number)?;
        Some(start..end)
    }

    fn function(&self, number: u32) -> Option<Section> {
        self.index.after(half(&self.index, 8 * u64::from(number) + 4)?.into())
    }

    fn how(&self, number: u32) -> Option<How> {
        let function = self.function(number)?;
        let [flag] = function.bytes(self.flag)?;
        if flag & TOP_FRAME != 0 {
            return Some(How::Always(Rule::End));
        }
        if flag & SP_WRITE != 0 {
            return Some(How::Always(Rule::FramePointer));
        }
        self.deltas.after(half(&function, FUNC_PCSP)?.into()).map(How::Table)
    }
}

/// The rules of a table of (difference in value, difference in address).
fn rules(mut table: Section, code: Range<u64>, mut each: impl FnMut(u64, Rule)) {
    let (mut pc, mut moved) = (code.start, -1i32);
    let mut any = false;
    while pc < code.end {
        let Some(difference) = varint(&mut table) else { break };
        if difference == 0 && pc != code.start {
            break;
        }
        // Zigzag.
        let difference = (difference >> 1) as i32 ^ -((difference & 1) as i32);
        let Some(length) = varint(&mut table) else { break };
        moved = moved.wrapping_add(difference);
        each(pc, rule(moved));
        any = true;
        pc = pc.saturating_add(length.into());
    }
    if !any {
        each(code.start, Rule::FramePointer);
    }
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

fn varint(bytes: &mut Section) -> Option<u32> {
    let mut value = 0;
    for shift in (0..32).step_by(7) {
        let byte = bytes.read_u8().ok()?;
        value |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn word(bytes: &Section, at: u64) -> Option<u64> {
    bytes.bytes(at).map(u64::from_le_bytes)
}

fn half(bytes: &Section, at: u64) -> Option<u32> {
    bytes.bytes(at).map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Pages;

    fn section(bytes: &[u8]) -> Section {
        let pages = Pages::new(Box::new(bytes.to_vec())).unwrap();
        Section::new(&pages, 0, bytes.len() as u64).unwrap()
    }

    fn rows(table: &[u8], start: u64, end: u64) -> Vec<(u64, Rule)> {
        let mut rows = Vec::new();
        rules(section(table), start..end, |pc, rule| rows.push((pc, rule)));
        rows
    }

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

    use proptest::prelude::*;

    proptest! {
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
            let Some(go) = Go::new(&section(&bytes), || None) else { return Ok(()) };
            let mut numbers = Vec::new();
            let told = go.functions(&[code], |_, number| { numbers.push(number); Ok(()) });
            prop_assert!(told.is_ok());
            for number in numbers {
                let end = go.rules(number, |_, _| {});
                prop_assert!(end.is_some());
            }
        }
    }
}
