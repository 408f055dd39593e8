//! The executable's file: sections, build information, symbols, relocations.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use object::elf::{EM_X86_64, PT_LOAD, R_X86_64_RELATIVE, SHF_ALLOC, SHT_NOBITS, SHT_RELA};
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _, SectionHeader as _};
use object::{LittleEndian, Object as _, ObjectSection as _, ObjectSymbol as _, ReadCache};
use underspan_remote::word;

use crate::{Error, Version};

/// Larger than any section that is read as a whole; a bound against damaged files.
const MAX_SECTION: u64 = 96 << 20;
/// Go's build information: magic, pointer size, flags, then the strings inline (Go 1.18 on).
const BUILD_INFO_MAGIC: &[u8] = b"\xff Go buildinf:";
const BUILD_INFO_HEADER: usize = 32;
const BUILD_INFO_INLINE: u8 = 2;

/// A section that is there when the program runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) address: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) in_file: bool,
}

impl Section {
    pub(crate) fn contains(&self, address: u64) -> bool {
        address.checked_sub(self.address).is_some_and(|into| into < self.size)
    }
}

/// A Go executable.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) file: Arc<File>,
    pub(crate) version: Version,
    pub(crate) sections: Vec<Section>,
    /// Loadable segments: virtual address, and offset in the file.
    pub(crate) segments: Vec<(u64, u64)>,
}

impl Image {
    /// Reads the headers. Costs a few file reads, also for files that Go did not make.
    pub(crate) fn open(file: File) -> Result<Self, Error> {
        let file = Arc::new(file);
        let clone = file.try_clone().map_err(|error| Error::io("the executable", error))?;
        let cache = ReadCache::new(clone);
        let elf = ElfFile64::<LittleEndian, _>::parse(&cache).map_err(|_| Error::NotGo)?;
        let info = elf.section_by_name(".go.buildinfo").ok_or(Error::NotGo)?;
        if elf.elf_header().e_machine(LittleEndian) != EM_X86_64 {
            return Err(Error::damaged("it is not made for x86-64"));
        }
        let head = info.data_range(info.address(), info.size().min(256));
        let head = head.ok().flatten().ok_or(Error::NotGo)?;
        let text = version_text(head).ok_or_else(|| {
            Error::damaged("its build information is older than Go 1.18, or damaged")
        })?;
        let version = Version::parse(&text)
            .ok_or_else(|| Error::Binary(format!("made by {text:?}, which is no release of Go")))?;
        let table = elf.elf_section_table();
        let loaded =
            table.iter().filter(|header| header.sh_flags(LittleEndian).0 & SHF_ALLOC.0 != 0);
        let sections = loaded.map(|header| Section {
            name: String::from_utf8_lossy(
                table.section_name(LittleEndian, header).unwrap_or_default(),
            )
            .into_owned(),
            address: header.sh_addr(LittleEndian),
            offset: header.sh_offset(LittleEndian),
            size: header.sh_size(LittleEndian),
            in_file: header.sh_type(LittleEndian) != SHT_NOBITS,
        });
        let sections = sections.collect();
        let loads = elf.elf_program_headers().iter();
        let loads = loads.filter(|header| header.p_type(LittleEndian) == PT_LOAD);
        let segments = loads
            .map(|header| (header.p_vaddr(LittleEndian), header.p_offset(LittleEndian)))
            .collect();
        Ok(Image { file, version, sections, segments })
    }

    pub(crate) fn section(&self, names: &[&str]) -> Option<&Section> {
        self.sections.iter().find(|section| names.contains(&section.name.as_str()))
    }

    /// The bytes of a section that is in the file.
    pub(crate) fn bytes(&self, section: &Section) -> Result<Vec<u8>, Error> {
        if !section.in_file || section.size > MAX_SECTION {
            return Err(Error::Binary(format!("section {} cannot be read", section.name)));
        }
        let mut bytes = vec![0; section.size as usize];
        let read = self.file.read_exact_at(&mut bytes, section.offset);
        read.map_err(|error| Error::io("the executable", error))?;
        Ok(bytes)
    }

    /// Address and size of these symbols, in order; 0 for one that is not there.
    pub(crate) fn symbols(&self, wanted: &[&str]) -> Result<Vec<(u64, u64)>, Error> {
        let mut found = vec![(0, 0); wanted.len()];
        self.parse(|elf| {
            for symbol in elf.symbols() {
                let name = symbol.name().unwrap_or_default();
                if let Some(index) = wanted.iter().position(|wanted| *wanted == name)
                    && let Some(slot) = found.get_mut(index)
                {
                    *slot = (symbol.address(), symbol.size());
                }
            }
        })?;
        Ok(found)
    }

    /// Relative relocations of a position-independent executable: (where, what).
    pub(crate) fn relative_relocations(&self) -> Result<Vec<(u64, u64)>, Error> {
        let sections = self.parse(|elf| {
            let table = elf.elf_section_table().iter();
            let loaded = table.filter(|header| {
                header.sh_type(LittleEndian) == SHT_RELA
                    && header.sh_flags(LittleEndian).0 & SHF_ALLOC.0 != 0
            });
            let section = |header: &object::elf::SectionHeader64<LittleEndian>| Section {
                name: ".rela".to_owned(),
                address: header.sh_addr(LittleEndian),
                offset: header.sh_offset(LittleEndian),
                size: header.sh_size(LittleEndian),
                in_file: true,
            };
            loaded.map(section).collect::<Vec<_>>()
        })?;
        let mut found = Vec::new();
        for section in &sections {
            let bytes = self.bytes(section)?;
            let (entries, _) = bytes.as_chunks::<24>();
            let relative =
                entries.iter().filter(|entry| word(*entry, 8) as u32 == R_X86_64_RELATIVE.0);
            found.extend(relative.map(|entry| (word(entry, 0), word(entry, 16))));
        }
        Ok(found)
    }

    /// Calls `look` with the parsed file. What was read is forgotten afterwards.
    pub(crate) fn parse<T>(
        &self,
        look: impl FnOnce(&ElfFile64<'_, LittleEndian, &ReadCache<File>>) -> T,
    ) -> Result<T, Error> {
        let clone = self.file.try_clone().map_err(|error| Error::io("the executable", error))?;
        let cache = ReadCache::new(clone);
        let elf = ElfFile64::parse(&cache).map_err(Error::damaged)?;
        Ok(look(&elf))
    }
}

/// The version in the build information: a length and so many bytes, behind the header.
fn version_text(info: &[u8]) -> Option<String> {
    let inline = info.get(15)? & BUILD_INFO_INLINE != 0;
    if !info.starts_with(BUILD_INFO_MAGIC) || !inline {
        return None;
    }
    let (&len, text) = info.get(BUILD_INFO_HEADER..)?.split_first()?;
    // A length of more than one byte would be a version of 128 characters.
    let text = text.get(..usize::from(len))?;
    String::from_utf8(text.to_vec()).ok()
}
