//! Where CPython's evaluator lies in a binary: the function whose native frames stand for Python's.
//!
//! Its name is exported, so it is known in stripped builds as well. The compiler moves what it
//! thinks is rare to a part of its own, `_PyEval_EvalFrameDefault.cold`, whose name is local and goes
//! when a build is stripped. But the parts' unwind entries follow each other, and a part that is
//! jumped into begins with a frame already on the stack, which no function does.

use std::ops::Range;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, FrameDescriptionEntry, LittleEndian, UnwindContext,
    UnwindSection as _, X86_64,
};
use object::{Object as _, ObjectSymbol as _};

use crate::image::Image;
use crate::tail_calls;

/// The evaluator, in all versions that are supported.
pub(crate) const NAME: &str = "_PyEval_EvalFrameDefault";

/// Below this many bytes the evaluator does not hold the code of all instructions.
const SMALL: u64 = 8 << 10;

type Slice<'a> = gimli::EndianSlice<'a, LittleEndian>;

/// The evaluator's code, as virtual addresses of the file. Empty if it is not in this one.
pub(crate) fn ranges(image: &Image<'_>) -> Vec<Range<u64>> {
    let Some(start) = entry(image) else { return Vec::new() };
    let symbols = image.elf().symbols().chain(image.elf().dynamic_symbols());
    let ours = symbols.filter(|symbol| symbol.size() > 0 && symbol.name().is_ok_and(is_part));
    let mut ranges: Vec<_> = ours
        .map(|symbol| symbol.address()..symbol.address().saturating_add(symbol.size()))
        .collect();
    ranges.extend(parts(image, start).unwrap_or_default());
    if ranges.iter().all(|range| range.end - range.start < SMALL) {
        ranges.extend(tail_calls::ranges(image));
    }
    ranges.sort_by_key(|range| (range.start, range.end));
    ranges.dedup();
    ranges
}

fn is_part(name: &str) -> bool {
    name.strip_prefix(NAME).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        || name.starts_with(tail_calls::PREFIX)
}

/// The evaluator's first instruction.
fn entry(image: &Image<'_>) -> Option<u64> {
    let dynamic = image.elf().dynamic_symbols();
    let mut symbols = dynamic.chain(image.elf().symbols());
    let symbol = symbols.find(|symbol| symbol.is_definition() && symbol.name() == Ok(NAME))?;
    Some(symbol.address())
}

/// The ranges of the unwind entry that begins at `start` and of the cold part's, if there is one.
fn parts(image: &Image<'_>, start: u64) -> gimli::Result<Vec<Range<u64>>> {
    let (Some(data), Some(place)) = (image.section(".eh_frame"), image.place(".eh_frame")) else {
        return Ok(Vec::new());
    };
    let section = EhFrame::new(&data, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(place.address);
    let mut found = Vec::new();
    let mut entries = section.entries(&bases);
    while let Some(entry) = entries.next()? {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(EhFrame::cie_from_offset)?;
        if fde.initial_address() == start {
            found.push(range(&fde));
        } else if !found.is_empty() {
            if begins_with_a_frame(&section, &bases, &fde)? {
                found.push(range(&fde));
            }
            break;
        }
    }
    Ok(found)
}

fn range(fde: &FrameDescriptionEntry<Slice<'_>>) -> Range<u64> {
    fde.initial_address()..fde.initial_address().saturating_add(fde.len())
}

/// A function begins with nothing but its return address on the stack: CFA = rsp + 8.
fn begins_with_a_frame(
    section: &EhFrame<Slice<'_>>,
    bases: &BaseAddresses,
    fde: &FrameDescriptionEntry<Slice<'_>>,
) -> gimli::Result<bool> {
    let mut context = UnwindContext::new();
    let mut rows = fde.rows(section, bases, &mut context)?;
    let Some(row) = rows.next_row()? else { return Ok(false) };
    let plain = CfaRule::RegisterAndOffset { register: X86_64::RSP, offset: 8 };
    Ok(*row.cfa() != plain)
}
