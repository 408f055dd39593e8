//! What an ELF file says, read once per binary. Only the sections that matter are read.

use std::fs::File;
use std::path::Path;

use object::elf::{DT_NEEDED, PT_INTERP, PT_LOAD, STT_FILE, STT_FUNC};
use object::read::elf::{ElfFile64, ProgramHeader, SectionHeader, Sym};
use object::{LittleEndian, Object, ObjectSection, ReadCache};

use crate::InspectError;

/// Larger tables than any interpreter's; a bound against damaged files.
const MAX_SECTION: u64 = 256 << 20;

type Elf<'a> = ElfFile64<'a, LittleEndian, &'a ReadCache<File>>;

/// An open ELF file.
pub(crate) struct Image<'a> {
    elf: Elf<'a>,
}

/// A loadable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) offset: u64,
    pub(crate) file_size: u64,
}

/// A defined symbol.
#[derive(Clone, Debug)]
pub(crate) struct Symbol {
    pub(crate) name: String,
    pub(crate) address: u64,
    pub(crate) is_function: bool,
    /// The source file that the symbol table names before it, for local symbols.
    pub(crate) source: String,
}

pub(crate) fn damaged(path: &Path, why: impl ToString) -> InspectError {
    InspectError::Binary { path: path.display().to_string(), why: why.to_string() }
}

impl<'a> Image<'a> {
    /// `Ok(None)` for a file that is no 64-bit little-endian ELF.
    pub(crate) fn parse(cache: &'a ReadCache<File>) -> Option<Self> {
        ElfFile64::parse(cache).ok().map(|elf| Image { elf })
    }

    pub(crate) fn segments(&self) -> Vec<Segment> {
        let headers = self.elf.elf_program_headers().iter();
        let loads = headers.filter(|header| header.p_type.get(LittleEndian) == PT_LOAD);
        loads
            .map(|header| Segment {
                address: header.p_vaddr(LittleEndian),
                offset: header.p_offset(LittleEndian),
                file_size: header.p_filesz(LittleEndian),
            })
            .collect()
    }

    pub(crate) fn build_id(&self) -> Option<Vec<u8>> {
        self.elf.build_id().ok().flatten().map(<[u8]>::to_vec)
    }

    /// The dynamic loader it asks for.
    pub(crate) fn loader(&self) -> Option<String> {
        let mut headers = self.elf.elf_program_headers().iter();
        let header = headers.find(|header| header.p_type.get(LittleEndian) == PT_INTERP)?;
        let data = header.data(LittleEndian, self.elf.data()).ok()?;
        Some(String::from_utf8_lossy(data).trim_end_matches('\0').to_owned())
    }

    /// The libraries it needs.
    pub(crate) fn needed(&self) -> Vec<String> {
        let strings = self.section(".dynstr").unwrap_or_default();
        let dynamic = self.section(".dynamic").unwrap_or_default();
        let (entries, _) = dynamic.as_chunks::<16>();
        let entries = entries.iter().map(|entry| {
            let (tag, value) = entry.split_at(8);
            (crate::memory::word(tag, 0), crate::memory::word(value, 0))
        });
        entries
            .filter(|&(tag, _)| tag == DT_NEEDED.0 as u64)
            .filter_map(|(_, offset)| string_at(&strings, offset as usize))
            .collect()
    }

    /// A section's bytes. Missing, empty or absurdly large sections are `None`.
    pub(crate) fn section(&self, name: &str) -> Option<Vec<u8>> {
        let section = self.elf.section_by_name(name)?;
        if section.size() > MAX_SECTION {
            return None;
        }
        section.data().ok().map(<[u8]>::to_vec)
    }

    /// Where a section is mapped.
    pub(crate) fn section_address(&self, name: &str) -> Option<u64> {
        self.elf.section_by_name(name).map(|section| section.address())
    }

    /// `len` bytes at a virtual address, from the file.
    pub(crate) fn bytes_at(&self, address: u64, len: u64) -> Option<Vec<u8>> {
        let segments = self.segments();
        let offset = file_offset(&segments, address)?;
        use object::ReadRef;
        self.elf.data().read_bytes_at(offset, len).ok().map(<[u8]>::to_vec)
    }

    /// Whether it has a full symbol table.
    pub(crate) fn has_symtab(&self) -> bool {
        self.elf.section_by_name(".symtab").is_some_and(|section| section.size() > 0)
    }

    /// The defined symbols of `.symtab` or `.dynsym` that `wanted` accepts by name.
    pub(crate) fn symbols(&self, table: &str, wanted: impl Fn(&str) -> bool) -> Vec<Symbol> {
        let strings = if table == ".symtab" { ".strtab" } else { ".dynstr" };
        let (Some(data), Some(strings)) = (self.section(table), self.section(strings)) else {
            return Vec::new();
        };
        let count = data.len() / size_of::<object::elf::Sym64<LittleEndian>>();
        let Ok((entries, _)) =
            object::slice_from_bytes::<object::elf::Sym64<LittleEndian>>(&data, count)
        else {
            return Vec::new();
        };
        let mut source = String::new();
        let mut found = Vec::new();
        for entry in entries {
            let Some(name) = string_at(&strings, entry.st_name(LittleEndian) as usize) else {
                continue;
            };
            if entry.st_type() == STT_FILE {
                source = name;
            } else if !entry.is_undefined(LittleEndian)
                && entry.st_value(LittleEndian) != 0
                && wanted(&name)
            {
                found.push(Symbol {
                    name,
                    address: entry.st_value(LittleEndian),
                    is_function: entry.st_type() == STT_FUNC,
                    source: if entry.is_local() { source.clone() } else { String::new() },
                });
            }
        }
        found
    }

    /// The notes of a section: name, type, descriptor.
    pub(crate) fn notes(&self, section: &str) -> Vec<(Vec<u8>, u32, Vec<u8>)> {
        let table = self.elf.elf_section_table();
        let Some((_, header)) = table.section_by_name(LittleEndian, section.as_bytes()) else {
            return Vec::new();
        };
        let mut out = Vec::new();
        if let Ok(Some(mut notes)) = header.notes(LittleEndian, self.elf.data()) {
            while let Ok(Some(note)) = notes.next() {
                out.push((note.name().to_vec(), note.n_type(LittleEndian).0, note.desc().to_vec()));
            }
        }
        out
    }
}

/// Where a virtual address lies in the file.
pub(crate) fn file_offset(segments: &[Segment], address: u64) -> Option<u64> {
    let inside = |segment: &&Segment| {
        address.checked_sub(segment.address).is_some_and(|into| into < segment.file_size)
    };
    let segment = segments.iter().find(inside)?;
    (address - segment.address).checked_add(segment.offset)
}

fn string_at(strings: &[u8], offset: usize) -> Option<String> {
    let rest = strings.get(offset..)?;
    let len = rest.iter().position(|&byte| byte == 0)?;
    rest.get(..len).map(|name| String::from_utf8_lossy(name).into_owned())
}
