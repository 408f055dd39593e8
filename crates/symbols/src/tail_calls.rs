//! The evaluator of CPython 3.14 where it was compiled with tail calls: each instruction of Python has a
//! function of its own, and they jump into each other. The native frame of an evaluator that called
//! something is that of an instruction's function.
//!
//! These are found in stripped builds too: their addresses are in a table of 256, one for each opcode.
//! No other table consists of so many functions, of which only one, that for unknown opcodes, repeats.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection as _};
use object::elf::R_X86_64_RELATIVE;
use object::{Object as _, ObjectSection as _, RelocationFlags, RelocationTarget, SectionKind};

use crate::image::Image;

/// What functions of instructions are called in builds with symbols.
pub(crate) const PREFIX: &str = "_TAIL_CALL_";

const OPCODES: usize = 256;
/// Instructions that there are at least; and opcodes that are none.
const INSTRUCTIONS: usize = 128;
const UNKNOWN: usize = 8;

/// The code of all instructions, as virtual addresses of the file. Empty if there is no such table, or
/// more than one that could be it.
pub(crate) fn ranges(image: &Image<'_>) -> Vec<Range<u64>> {
    let functions = functions(image).unwrap_or_default();
    let mut found = tables(&pointers(image), &functions);
    let (Some(table), None) = (found.pop(), found.pop()) else { return Vec::new() };
    let known = table.iter().filter_map(|start| Some(*start..*functions.get(start)?));
    known.collect()
}

/// Where functions begin, and where each ends.
fn functions(image: &Image<'_>) -> gimli::Result<HashMap<u64, u64>> {
    let (Some(data), Some(place)) = (image.section(".eh_frame"), image.place(".eh_frame")) else {
        return Ok(HashMap::new());
    };
    let section = EhFrame::new(&data, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(place.address);
    let mut functions = HashMap::new();
    let mut entries = section.entries(&bases);
    while let Some(entry) = entries.next()? {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(EhFrame::cie_from_offset)?;
        let start = fde.initial_address();
        functions.insert(start, start.saturating_add(fde.len()));
    }
    Ok(functions)
}

/// The words of the file's data, by address, that may be pointers: as they are in an executable that is
/// loaded where it says, else as they are relocated.
fn pointers(image: &Image<'_>) -> BTreeMap<u64, u64> {
    let elf = image.elf();
    let mut pointers = BTreeMap::new();
    for (address, relocation) in elf.dynamic_relocations().into_iter().flatten() {
        let relative = RelocationFlags::Elf { r_type: R_X86_64_RELATIVE };
        if relocation.flags() == relative && relocation.target() == RelocationTarget::Absolute {
            pointers.insert(address, relocation.addend().cast_unsigned());
        }
    }
    if elf.kind() != object::ObjectKind::Executable {
        return pointers;
    }
    for section in elf.sections() {
        let data = matches!(section.kind(), SectionKind::Data | SectionKind::ReadOnlyData)
            || section.name().is_ok_and(|name| name.contains("rodata"));
        let Some(bytes) =
            data.then(|| section.name().ok()).flatten().and_then(|n| image.section(n))
        else {
            continue;
        };
        let (words, _) = bytes.as_chunks::<8>();
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        pointers.extend((section.address()..).step_by(8).zip(words).filter(|(_, word)| *word != 0));
    }
    pointers
}

/// Runs of pointers to functions that are as long as a table is, and look like one.
fn tables(pointers: &BTreeMap<u64, u64>, functions: &HashMap<u64, u64>) -> Vec<Vec<u64>> {
    let mut found = Vec::new();
    let mut run: Vec<u64> = Vec::new();
    let mut next = None;
    for (&address, &pointer) in pointers {
        let is_function = functions.contains_key(&pointer);
        if !is_function || next != Some(address) {
            found.extend(distinct(&run));
            run.clear();
        }
        if is_function {
            run.push(pointer);
        }
        next = Some(address + 8);
    }
    found.extend(distinct(&run));
    found
}

/// The functions of a table.
fn distinct(run: &[u64]) -> Option<Vec<u64>> {
    if run.len() != OPCODES {
        return None;
    }
    let mut times: BTreeMap<u64, usize> = BTreeMap::new();
    for pointer in run {
        *times.entry(*pointer).or_default() += 1;
    }
    let repeated = times.values().filter(|times| **times >= UNKNOWN).count();
    (times.len() >= INSTRUCTIONS && repeated == 1).then(|| times.into_keys().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn functions() -> HashMap<u64, u64> {
        (0..1000).map(|n| (0x1000 + 16 * n, 0x1000 + 16 * n + 16)).collect()
    }

    /// 228 instructions, and the function for unknown opcodes in between.
    fn table(at: u64) -> BTreeMap<u64, u64> {
        let opcode = |n: u64| if n % 9 == 4 { 0 } else { n + 1 };
        (0..256).map(|n| (at + 8 * n, 0x1000 + 16 * opcode(n))).collect()
    }

    #[test]
    fn a_table_is_found_between_other_data() {
        let mut pointers = table(0x8000);
        pointers.insert(0x8000 - 8, 0xdead);
        pointers.insert(0x8000 + 8 * 256, 0xbeef);
        pointers.extend((0..300).map(|n| (0xa000 + 8 * n, 0x1000 + 16 * n)));
        let found = tables(&pointers, &functions());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].len(), 256 - 28 + 1);
    }

    #[test]
    fn what_only_resembles_one_is_none() {
        let functions = functions();
        // One pointer is missing, one is to something else, one is too much.
        let mut short = table(0x8000);
        short.remove(&0x8008);
        let mut other = table(0x8000);
        other.insert(0x8010, 0x1001);
        let mut long = table(0x8000);
        long.insert(0x8000 + 8 * 256, 0x1000);
        // No opcode is unknown.
        let full = (0..256).map(|n| (0x8000 + 8 * n, 0x1000 + 16 * n)).collect();
        for pointers in [short, other, long, full] {
            assert!(tables(&pointers, &functions).is_empty());
        }
    }
}
