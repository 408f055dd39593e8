//! Offsets out of DWARF, where the program has it.

use std::collections::HashMap;

use gimli::{AttributeValue, EndianSlice, LittleEndian};
use object::{Object as _, ObjectSection as _};

use crate::Error;
use crate::image::Image;
use crate::layout::Layout;

/// Decompressed size beyond which the table by version is used: reading it would cost more memory
/// than the agent may take.
const MAX_SECTION: u64 = 48 << 20;
/// The types whose fields are looked up.
const TYPES: [&str; 4] = ["runtime.g", "runtime.m", "runtime.gobuf", "runtime.stack"];

type Slice<'a> = EndianSlice<'a, LittleEndian>;
/// Type → field → offset.
type Fields = HashMap<String, HashMap<String, usize>>;

/// The layout as the compiler wrote it down; `None` without (complete) DWARF.
pub(crate) fn layout(image: &Image) -> Result<Option<Layout>, Error> {
    let fields = image.parse(|elf| {
        let section = |id: gimli::SectionId| -> Result<Vec<u8>, gimli::Error> {
            let Some(section) = elf.section_by_name(id.name()) else { return Ok(Vec::new()) };
            let compressed = section.compressed_file_range();
            if compressed.is_ok_and(|range| range.uncompressed_size > MAX_SECTION) {
                return Ok(Vec::new());
            }
            Ok(section.uncompressed_data().map(|data| data.into_owned()).unwrap_or_default())
        };
        fields(section).unwrap_or_default()
    })?;
    Ok(from_fields(&fields).filter(Layout::fits))
}

fn fields(
    section: impl FnMut(gimli::SectionId) -> Result<Vec<u8>, gimli::Error>,
) -> Result<Fields, gimli::Error> {
    let sections = gimli::DwarfSections::load(section)?;
    let dwarf = sections.borrow(|bytes| EndianSlice::new(bytes, LittleEndian));
    let mut found = Fields::new();
    let mut units = dwarf.units();
    while found.len() < TYPES.len()
        && let Some(header) = units.next()?
    {
        let unit = dwarf.unit(header)?;
        read_unit(&dwarf, &unit, &mut found)?;
    }
    Ok(found)
}

fn read_unit(
    dwarf: &gimli::Dwarf<Slice<'_>>,
    unit: &gimli::Unit<Slice<'_>>,
    found: &mut Fields,
) -> Result<(), gimli::Error> {
    let name = |value: Option<AttributeValue<Slice<'_>>>| {
        let text = dwarf.attr_string(unit, value?).ok()?;
        Some(text.to_string_lossy().into_owned())
    };
    // The structure whose members follow, and the depth it is at.
    let mut inside: Option<(String, isize)> = None;
    let mut entries = unit.entries();
    while let Some(entry) = entries.next_dfs()? {
        let depth = entry.depth();
        if inside.as_ref().is_some_and(|(_, at)| depth <= *at) {
            inside = None;
            if found.len() == TYPES.len() {
                return Ok(());
            }
        }
        match (&inside, entry.tag()) {
            (None, gimli::DW_TAG_structure_type) => {
                let wanted = name(entry.attr_value(gimli::DW_AT_name));
                if let Some(wanted) = wanted.filter(|name| TYPES.contains(&name.as_str())) {
                    found.entry(wanted.clone()).or_default();
                    inside = Some((wanted, depth));
                }
            }
            (Some((parent, _)), gimli::DW_TAG_member) => {
                let field = name(entry.attr_value(gimli::DW_AT_name));
                let offset = entry.attr_value(gimli::DW_AT_data_member_location);
                if let (Some(field), Some(offset)) = (field, offset.and_then(|v| v.udata_value()))
                    && let Some(fields) = found.get_mut(parent)
                {
                    fields.insert(field, offset as usize);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn from_fields(fields: &Fields) -> Option<Layout> {
    let at = |of: &str, field: &str| fields.get(of)?.get(field).copied();
    let (g, m) = (|field| at("runtime.g", field), |field| at("runtime.m", field));
    let sched = g("sched")?;
    Some(Layout {
        stack: g("stack")? + at("runtime.stack", "lo")?,
        m: g("m")?,
        sched_sp: sched + at("runtime.gobuf", "sp")?,
        sched_pc: sched + at("runtime.gobuf", "pc")?,
        syscall_sp: g("syscallsp")?,
        syscall_pc: g("syscallpc")?,
        // Since 1.20 an atomic.Uint32: its value comes after markers of no size.
        status: g("atomicstatus")?,
        goid: g("goid")?,
        wait_since: g("waitsince")?,
        wait_reason: g("waitreason")?,
        tracking_seq: g("trackingSeq")?,
        start_pc: g("startpc")?,
        g0: m("g0")?,
        procid: m("procid")?,
    })
}
