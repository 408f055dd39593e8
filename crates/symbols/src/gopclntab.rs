//! Go's own function table, `.gopclntab`: it is there in stripped programs too.
//!
//! Written for Go 1.18 and later (the layout since then). The table is searched where it lies in the
//! file: those of large programs have tens of megabytes.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crate::image::{Image, Place};

const GO_1_18: u32 = 0xffff_fff0;
const GO_1_20: u32 = 0xffff_fff1;
/// Longer than any function's name that is of use.
const MAX_NAME: usize = 1024;

/// The function table of one program.
#[derive(Debug)]
pub(crate) struct GoTable {
    /// The section's.
    offset: u64,
    size: u64,
    functions: u64,
    /// Virtual address to which the functions' addresses are relative.
    text: u64,
    /// Offsets in the section, of names
    names: u64,
    /// and of functions.
    table: u64,
}

impl GoTable {
    /// `None` if the file has no table, or one that is not known.
    pub(crate) fn read(file: &File, image: &Image<'_>) -> Option<Self> {
        let place = image.place(".gopclntab").or_else(|| image.place(".data.rel.ro.gopclntab"))?;
        let mut header = [0; 8 + 8 * 8];
        file.read_exact_at(&mut header, place.offset).ok()?;
        let magic = u32::from_le_bytes(*header.first_chunk()?);
        let pointer_size = header[7];
        if !matches!(magic, GO_1_18 | GO_1_20) || pointer_size != 8 {
            return None;
        }
        let word =
            |index: usize| Some(u64::from_le_bytes(*header.get(8 + index * 8..)?.first_chunk()?));
        let table = GoTable {
            offset: place.offset,
            size: place.size,
            functions: word(0)?,
            text: text_start(word(2)?, image)?,
            names: word(3)?,
            table: word(7)?,
        };
        let end = table.functions.checked_mul(8).and_then(|bytes| bytes.checked_add(table.table));
        (end? < table.size && table.names < table.size && table.functions > 0).then_some(table)
    }

    /// The name of the function at a virtual address.
    pub(crate) fn find(&self, file: &File, address: u64) -> Option<String> {
        let wanted = u32::try_from(address.checked_sub(self.text)?).ok()?;
        let (mut low, mut high) = (0, self.functions);
        // The entry after the last one is the end of the code.
        if wanted >= self.u32(file, self.table.checked_add(high * 8)?)? {
            return None;
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.u32(file, self.table + middle * 8)? <= wanted {
                low = middle
            } else {
                high = middle
            }
        }
        let function = u64::from(self.u32(file, self.table + low * 8 + 4)?);
        let name = u64::from(self.u32(file, self.table.checked_add(function)?.checked_add(4)?)?);
        self.string(file, self.names.checked_add(name)?)
    }

    fn u32(&self, file: &File, at: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.fill(file, &mut bytes, at)?;
        Some(u32::from_le_bytes(bytes))
    }

    fn string(&self, file: &File, at: u64) -> Option<String> {
        let mut bytes = [0; MAX_NAME];
        let len = usize::try_from(self.size.checked_sub(at)?).ok()?.min(MAX_NAME);
        let bytes = bytes.get_mut(..len)?;
        self.fill(file, bytes, at)?;
        let end = bytes.iter().position(|byte| *byte == 0)?;
        Some(String::from_utf8_lossy(bytes.get(..end)?).into_owned())
    }

    fn fill(&self, file: &File, bytes: &mut [u8], at: u64) -> Option<()> {
        let end = at.checked_add(bytes.len() as u64)?;
        if end > self.size {
            return None;
        }
        file.read_exact_at(bytes, self.offset.checked_add(at)?).ok()
    }
}

/// Until 1.25 the header says where the code starts; in position-independent programs it has to be
/// relocated, and from 1.26 on it is 0. Go's own linker puts the code at the start of `.text`; with
/// a C linker something comes before it, which has an `.init` section.
fn text_start(in_header: u64, image: &Image<'_>) -> Option<u64> {
    let Place { address, size, .. } = image.place(".text")?;
    if in_header.checked_sub(address).is_some_and(|into| into < size) {
        return Some(in_header);
    }
    image.place(".init").is_none().then_some(address)
}
