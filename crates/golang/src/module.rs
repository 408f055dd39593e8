//! Go's own description of the program: where its code begins, and where its tables are.
//!
//! The linker writes a `moduledata` into the data section. It is found by its pointer to the function
//! table, which no symbol is needed for; in a position-independent executable that pointer is a
//! relocation.

use std::collections::HashMap;

use underspan_remote::word;

use crate::Error;
use crate::image::{Image, Section};

/// Magic numbers of function tables: Go 1.18, and 1.20 on.
const MAGIC_118: u32 = 0xffff_fff0;
const MAGIC_120: u32 = 0xffff_fff1;
/// Sections that the function table may be in.
const TABLE: [&str; 2] = [".gopclntab", ".data.rel.ro.gopclntab"];
/// Sections that `moduledata` may be in: its own from Go 1.26 on.
const MODULE: [&str; 4] = [".go.module", ".noptrdata", ".data", ".data.rel.ro"];

/// Offsets in `moduledata`; the same in Go 1.18 to 1.26, but for two words from 1.20 on.
const FUNCNAMETAB: usize = 8;
const PCLNTABLE: usize = 104;
const TEXT: usize = 176;
const ETEXT: usize = 184;
const NOPTRDATA: usize = 192;
const ENOPTRBSS: usize = 248;
const GOFUNC_118: usize = 304;
const GOFUNC_120: usize = 320;
const SIZE: usize = 336;

/// What is taken from it. Addresses are those in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    /// Where the functions begin and end.
    pub(crate) text: (u64, u64),
    /// Where the variables begin and end.
    pub(crate) variables: (u64, u64),
    /// What offsets to per-function data are relative to.
    pub(crate) gofunc: u64,
}

/// The head of the function table.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    /// The section it is in.
    pub(crate) section: Section,
    /// Functions have one more field from Go 1.20 on.
    pub(crate) go120: bool,
    pub(crate) functions: u64,
    /// Offsets into the section.
    pub(crate) names: u64,
    pub(crate) units: u64,
    pub(crate) files: u64,
    pub(crate) values: u64,
    pub(crate) table: u64,
}

impl Header {
    pub(crate) fn read(image: &Image) -> Result<Self, Error> {
        let section = image.section(&TABLE).ok_or_else(|| {
            Error::damaged("it has no .gopclntab section: its section headers were removed")
        })?;
        let head = Section { size: section.size.min(72), ..section.clone() };
        let head = image.bytes(&head)?;
        let magic = word(&head, 0) as u32;
        let (quantum, pointer) = (head.get(6).copied(), head.get(7).copied());
        if ![MAGIC_118, MAGIC_120].contains(&magic) || (quantum, pointer) != (Some(1), Some(8)) {
            return Err(Error::Binary(format!(
                "its function table is of an unknown kind {magic:#x}"
            )));
        }
        let header = Header {
            section: section.clone(),
            go120: magic == MAGIC_120,
            functions: word(&head, 8),
            names: word(&head, 32),
            units: word(&head, 40),
            files: word(&head, 48),
            values: word(&head, 56),
            table: word(&head, 64),
        };
        let offsets = [header.names, header.units, header.files, header.values, header.table];
        let fits = offsets.iter().all(|offset| *offset < section.size)
            && header.functions < section.size / 8;
        if fits { Ok(header) } else { Err(Error::damaged("its function table is cut off")) }
    }
}

impl Module {
    pub(crate) fn find(image: &Image, header: &Header) -> Result<Self, Error> {
        let table = header.section.address;
        let gofunc = if header.go120 { GOFUNC_120 } else { GOFUNC_118 };
        let relocations = relocations(image, table)?;
        for section in MODULE.iter().filter_map(|name| image.section(&[name])) {
            let Ok(bytes) = image.bytes(section) else { continue };
            for at in (0..bytes.len().saturating_sub(SIZE)).step_by(8) {
                let field = |offset: usize| {
                    let address = section.address + (at + offset) as u64;
                    relocations.get(&address).copied().unwrap_or_else(|| word(&bytes, at + offset))
                };
                let is_module = field(0) == table
                    && field(FUNCNAMETAB) == table + header.names
                    && field(PCLNTABLE) == table + header.table;
                if is_module {
                    return Ok(Module {
                        text: (field(TEXT), field(ETEXT)),
                        variables: (field(NOPTRDATA), field(ENOPTRBSS)),
                        gofunc: field(gofunc),
                    });
                }
            }
        }
        Err(Error::damaged("Go's moduledata was not found in it"))
    }
}

/// The relocations that make up `moduledata`, by address: those behind a pointer to the table.
fn relocations(image: &Image, table: u64) -> Result<HashMap<u64, u64>, Error> {
    let all = image.relative_relocations()?;
    let starts = all.iter().filter(|(_, what)| *what == table).map(|(at, _)| *at);
    let starts: Vec<u64> = starts.collect();
    let near = |at: u64| starts.iter().any(|start| at.wrapping_sub(*start) < SIZE as u64);
    Ok(all.into_iter().filter(|(at, _)| near(*at)).collect())
}
