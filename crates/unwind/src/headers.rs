//! What an ELF file's headers say. They are read as `object` wants them: whole, and kept until all are read.

use std::ops::Range;
use std::rc::Rc;

use object::elf::{
    ELF_NOTE_GNU, FileHeader64, NT_GNU_BUILD_ID, PF_X, PT_GNU_EH_FRAME, PT_LOAD, SHT_SYMTAB,
};
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _, SectionTable};
use object::read::{ReadCache, ReadCacheOps, ReadRef};
use object::{LittleEndian, elf};

use crate::pages::Pages;
use crate::{Error, Segment};

type Elf = FileHeader64<LittleEndian>;
const ENDIAN: LittleEndian = LittleEndian;

/// A header, or a note, of more bytes than that is none.
const MAX_HEADER: u64 = 16 << 20;

/// Where something is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) address: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// What is wanted of them.
pub(crate) struct Headers {
    pub(crate) segments: Vec<Segment>,
    /// Of the segment that leads to `.eh_frame`.
    pub(crate) index: Option<Place>,
    pub(crate) build_id: Option<Vec<u8>>,
    pub(crate) text: Option<Place>,
    pub(crate) eh_frame: Option<Place>,
    pub(crate) gopclntab: Option<Place>,
    /// Symbols, and their names.
    pub(crate) symbols: Option<(Place, Place)>,
}

impl Headers {
    pub(crate) fn read(pages: &Rc<Pages>) -> Result<Self, Error> {
        let cache = ReadCache::new(Cursor { pages: Rc::clone(pages), at: 0 });
        let data = Bounded(&cache);
        let header = Elf::parse(data)?;
        // Says so if it is of the other endianness.
        header.endian()?;
        let programs = header.program_headers(ENDIAN, data)?;
        let sections = header.sections(ENDIAN, data)?;
        let segments = programs
            .iter()
            .filter(|program| program.p_type(ENDIAN) == PT_LOAD)
            .map(|program| Segment {
                address: program.p_vaddr(ENDIAN),
                offset: program.p_offset(ENDIAN),
                size: program.p_filesz(ENDIAN),
                executable: program.p_flags(ENDIAN).contains(PF_X),
            })
            .collect();
        let index = programs.iter().find(|program| program.p_type(ENDIAN) == PT_GNU_EH_FRAME);
        let index = index.map(|program| Place {
            address: program.p_vaddr(ENDIAN),
            offset: program.p_offset(ENDIAN),
            size: program.p_filesz(ENDIAN),
        });
        let named = |name: &str| {
            sections.section_by_name(ENDIAN, name.as_bytes()).map(|(_, section)| place(section))
        };
        let symbols = sections.iter().find(|section| section.sh_type(ENDIAN) == SHT_SYMTAB);
        let symbols = symbols.and_then(|section| {
            Some((place(section), place(sections.section(section.link(ENDIAN)).ok()?)))
        });
        Ok(Headers {
            segments,
            index,
            build_id: build_id(&sections, programs, data).ok().flatten(),
            text: named(".text"),
            eh_frame: named(".eh_frame"),
            gopclntab: named(".gopclntab").or_else(|| named(".data.rel.ro.gopclntab")),
            symbols,
        })
    }
}

fn place(section: &elf::SectionHeader64<LittleEndian>) -> Place {
    // A debug file has the headers of what is only in the binary.
    let (offset, size) = section.file_range(ENDIAN).unwrap_or_default();
    Place { address: section.sh_addr(ENDIAN), offset, size }
}

/// Section headers are believed if there are any.
fn build_id<'data, R: ReadRef<'data>>(
    sections: &SectionTable<'data, Elf, R>,
    programs: &[elf::ProgramHeader64<LittleEndian>],
    data: R,
) -> object::Result<Option<Vec<u8>>> {
    let of_sections = sections.iter().map(|section| section.notes(ENDIAN, data));
    let of_programs = programs.iter().map(|program| program.notes(ENDIAN, data));
    let of_programs = of_programs.filter(|_| sections.is_empty());
    for notes in of_sections.chain(of_programs) {
        let Some(mut notes) = notes? else { continue };
        while let Some(note) = notes.next()? {
            if note.name() == ELF_NOTE_GNU && note.n_type(ENDIAN) == NT_GNU_BUILD_ID {
                return Ok(Some(note.desc().to_vec()));
            }
        }
    }
    Ok(None)
}

/// Reads from where it was left.
struct Cursor {
    pages: Rc<Pages>,
    at: u64,
}

impl ReadCacheOps for Cursor {
    fn len(&mut self) -> Result<u64, ()> {
        Ok(self.pages.size())
    }

    fn seek(&mut self, to: u64) -> Result<u64, ()> {
        self.at = to;
        Ok(to)
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ()> {
        let left = self.pages.size().saturating_sub(self.at);
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        self.read_exact(&mut buffer[..count]).map(|()| count)
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), ()> {
        self.pages.read(buffer, self.at).map_err(|_| ())?;
        self.at += buffer.len() as u64;
        Ok(())
    }
}

/// Sizes come from the file, and what they say is allocated.
#[derive(Clone, Copy)]
struct Bounded<'data>(&'data ReadCache<Cursor>);

impl<'data> ReadRef<'data> for Bounded<'data> {
    fn len(self) -> Result<u64, ()> {
        self.0.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'data [u8], ()> {
        if size > MAX_HEADER { Err(()) } else { self.0.read_bytes_at(offset, size) }
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'data [u8], ()> {
        self.0.read_bytes_at_until(range, delimiter)
    }
}
