//! A binary, whether it is a file or lies in memory.

use std::ops::Range;

use gimli::{BaseAddresses, EhFrameHdr, LittleEndian as Little, Pointer};
use object::elf::{PF_X, PT_GNU_EH_FRAME, PT_LOAD};
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{LittleEndian, Object as _, ObjectSection as _, ObjectSymbol as _, ReadRef};

use crate::table::Functions;
use crate::{Error, Table, frames, go};

/// Larger sections are not read. Chromium's has 20 MiB.
const MAX_SECTION: u64 = 128 << 20;

/// A part of the file that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Virtual address, as the file has it.
    pub address: u64,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Bytes in the file.
    pub size: u64,
    /// Holds code.
    pub executable: bool,
}

/// The virtual address, as the file has it, of a byte of the file's code. Mappings begin at a page,
/// segments need not.
pub fn address_of(segments: &[Segment], offset: u64) -> Option<u64> {
    const PAGE: u64 = 4096;
    let inside = |segment: &&Segment| {
        let start = segment.offset & !(PAGE - 1);
        let end = segment.offset.saturating_add(segment.size);
        segment.executable && (start..end).contains(&offset)
    };
    let segment = segments.iter().find(inside)?;
    segment.address.checked_add(offset)?.checked_sub(segment.offset)
}

/// What two copies of one binary share, and no others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Build id, as the linker wrote it.
    pub build_id: Vec<u8>,
    /// Bytes of code: some build ids are written by hand.
    pub code: u64,
    /// Bytes of unwind tables.
    pub eh_frame: u64,
}

/// An ELF file.
pub struct Image<'data, R: ReadRef<'data>> {
    elf: ElfFile64<'data, LittleEndian, R>,
    segments: Vec<Segment>,
}

impl<'data, R: ReadRef<'data>> Image<'data, R> {
    /// Reads the headers.
    ///
    /// # Errors
    /// If it is no 64-bit little-endian ELF file.
    pub fn parse(data: R) -> Result<Self, Error> {
        let elf = ElfFile64::<LittleEndian, R>::parse(data)?;
        let headers = elf.elf_program_headers().iter();
        let segments = headers
            .filter(|header| header.p_type(LittleEndian) == PT_LOAD)
            .map(|header| Segment {
                address: header.p_vaddr(LittleEndian),
                offset: header.p_offset(LittleEndian),
                size: header.p_filesz(LittleEndian),
                executable: header.p_flags(LittleEndian).contains(PF_X),
            })
            .collect();
        Ok(Image { elf, segments })
    }

    /// What is mapped of it.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The binary's identity, if its build left one.
    pub fn identity(&self) -> Option<Identity> {
        let build_id = self.elf.build_id().ok().flatten().filter(|id| !id.is_empty())?.to_vec();
        let code = self.segments.iter().filter(|segment| segment.executable);
        Some(Identity {
            build_id,
            code: code.fold(0, |sum, segment| sum.saturating_add(segment.size)),
            eh_frame: self.elf.section_by_name(".eh_frame").map_or(0, |section| section.size()),
        })
    }

    /// Its rules.
    ///
    /// # Errors
    /// If it has none, they are damaged, or there are too many.
    pub fn table(&self) -> Result<Table, Error> {
        let code: Vec<Range<u64>> = self
            .segments
            .iter()
            .filter(|segment| segment.executable)
            .map(|segment| segment.address..segment.address.saturating_add(segment.size))
            .collect();
        let mut functions = Functions::default();
        let eh_frame = self.eh_frame()?;
        if let Some((address, bytes)) = eh_frame {
            let text = self.elf.section_by_name(".text").map_or(0, |text| text.address());
            let bases = BaseAddresses::default().set_eh_frame(address).set_text(text);
            frames::read(bytes, &bases, &code, &mut functions)?;
        }
        for name in [".gopclntab", ".data.rel.ro.gopclntab"] {
            if let Some(section) = self.section(name)? {
                // Where C was linked in, Go's code does not begin where code does.
                let text = self.symbol("runtime.text").or_else(|| {
                    let text = self.elf.section_by_name(".text").map(|text| text.address());
                    text.filter(|_| functions.rows() == 0)
                });
                go::read(section, text, &code, &mut functions);
            }
        }
        let (low, high) = functions.span().ok_or(Error::NoTable)?;
        if high - low > u64::from(u32::MAX) {
            return Err(Error::TooWide);
        }
        Table::from_functions(functions).ok_or(Error::NoTable)
    }

    fn section(&self, name: &str) -> Result<Option<&'data [u8]>, Error> {
        let Some(section) = self.elf.section_by_name(name) else { return Ok(None) };
        let bytes = section.size();
        if bytes > MAX_SECTION {
            return Err(Error::TooLarge { bytes, limit: MAX_SECTION });
        }
        Ok(Some(section.data()?))
    }

    fn symbol(&self, name: &str) -> Option<u64> {
        self.elf.symbol_by_name(name).map(|symbol| symbol.address())
    }

    /// Address and bytes of `.eh_frame`. Where section headers were stripped, it is found the way
    /// that a running program finds it.
    fn eh_frame(&self) -> Result<Option<(u64, &'data [u8])>, Error> {
        if let Some(section) = self.elf.section_by_name(".eh_frame") {
            return Ok(self.section(".eh_frame")?.map(|bytes| (section.address(), bytes)));
        }
        let mut headers = self.elf.elf_program_headers().iter();
        let is_index =
            |header: &&_| ProgramHeader::p_type(*header, LittleEndian) == PT_GNU_EH_FRAME;
        let Some(index) = headers.find(is_index) else { return Ok(None) };
        let address = index.p_vaddr(LittleEndian);
        let data = index.data(LittleEndian, self.elf.data()).unwrap_or_default();
        let bases = BaseAddresses::default().set_eh_frame_hdr(address);
        let parsed = EhFrameHdr::new(data, Little).parse(&bases, 8)?;
        let Pointer::Direct(at) = parsed.eh_frame_ptr() else { return Ok(None) };
        Ok(self.rest_of_segment(at).map(|bytes| (at, bytes)))
    }

    fn rest_of_segment(&self, address: u64) -> Option<&'data [u8]> {
        let inside = |segment: &&Segment| {
            address.checked_sub(segment.address).is_some_and(|into| into < segment.size)
        };
        let segment = self.segments.iter().find(inside)?;
        let into = address - segment.address;
        let size = (segment.size - into).min(MAX_SECTION);
        self.elf.data().read_bytes_at(segment.offset.checked_add(into)?, size).ok()
    }
}
