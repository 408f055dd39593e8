//! A binary, whether it is a file or lies in memory.

use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

use gimli::{BaseAddresses, EhFrameHdr, Pointer};

use crate::frames::Frames;
use crate::functions::{Binary, Functions, List, Place as Entry};
use crate::go::Go;
use crate::headers::{Headers, Place};
use crate::pages::{Pages, ReadAt};
use crate::section::Section;
use crate::{Error, Table};

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

/// An ELF file, of which the headers were read.
pub struct Image {
    pages: Rc<Pages>,
    headers: Headers,
}

impl Image {
    /// Reads the headers.
    ///
    /// # Errors
    /// If it cannot be read, or is no 64-bit little-endian ELF file.
    pub fn parse(source: impl ReadAt + 'static) -> Result<Self, Error> {
        let pages = Pages::new(Box::new(source))
            .map_err(|source| Error::Io { path: PathBuf::from("it"), source })?;
        let headers = Headers::read(&pages)?;
        Ok(Image { pages, headers })
    }

    /// What is mapped of it.
    pub fn segments(&self) -> &[Segment] {
        &self.headers.segments
    }

    /// The binary's identity, if its build left one.
    pub fn identity(&self) -> Option<Identity> {
        let build_id = self.headers.build_id.clone().filter(|id| !id.is_empty())?;
        let code = self.segments().iter().filter(|segment| segment.executable);
        Some(Identity {
            build_id,
            code: code.fold(0, |sum, segment| sum.saturating_add(segment.size)),
            eh_frame: self.headers.eh_frame.map_or(0, |section| section.size),
        })
    }

    /// Bytes that are to be read for its rules: how long that takes is in proportion.
    pub fn work(&self) -> u64 {
        let Headers { eh_frame, index, gopclntab, .. } = &self.headers;
        let sizes = [eh_frame.or(*index), *gopclntab].into_iter().flatten().map(|part| part.size);
        sizes.fold(0, u64::saturating_add)
    }

    /// Its functions.
    ///
    /// # Errors
    /// If it has none, they are damaged, or there are too many.
    pub fn functions(&self) -> Result<Functions, Error> {
        let code: Vec<Range<u64>> = self
            .segments()
            .iter()
            .filter(|segment| segment.executable)
            .map(|segment| segment.address..segment.address.saturating_add(segment.size))
            .collect();
        let low = code.iter().map(|range| range.start).min().ok_or(Error::NoTable)?;
        let mut list = List::new(low);
        let mut frames = self.eh_frame()?.map(|(address, section)| {
            let text = self.headers.text.map_or(0, |text| text.address);
            Frames::new(section, BaseAddresses::default().set_eh_frame(address).set_text(text))
        });
        if let Some(frames) = &mut frames {
            frames.functions(&code, |start, offset| list.add(start, Entry::in_eh_frame(offset)))?;
        }
        let go = match self.headers.gopclntab {
            Some(place) => {
                // Where C was linked in, Go's code does not begin where code does.
                let is_alone = list.is_empty();
                let text = || self.headers.text.map(|text| text.address).filter(|_| is_alone);
                Go::new(&self.section(place)?, || self.symbol(b"runtime.text").or_else(text))
            }
            None => None,
        };
        if let Some(go) = &go {
            go.functions(&code, |start, number| list.add(start, Entry::in_go(number)))?;
        }
        Functions::new(Binary { frames, go }, list)
    }

    /// All of its rules.
    ///
    /// # Errors
    /// Those of [`functions`](Self::functions), or if there are too many rows.
    pub fn table(&self) -> Result<Table, Error> {
        Table::new(self.functions()?)
    }

    fn section(&self, place: Place) -> Result<Section, Error> {
        let bytes = place.size;
        if bytes > MAX_SECTION {
            return Err(Error::TooLarge { bytes, limit: MAX_SECTION });
        }
        Section::new(&self.pages, place.offset, bytes).ok_or(Error::CutOff)
    }

    /// A symbol's address.
    fn symbol(&self, wanted: &[u8]) -> Option<u64> {
        // Elf64_Sym: the name's offset in 4 bytes, at 8 the value; 24 in all.
        const SYMBOL: u64 = 24;
        let (symbols, names) = self.headers.symbols?;
        let section = Section::new(&self.pages, symbols.offset, symbols.size)?;
        let names = Section::new(&self.pages, names.offset, names.size)?;
        let is_wanted = |name: u32| {
            let Some(name) = names.after(name.into()) else { return false };
            let bytes = wanted.iter().chain([&0]).zip(0..);
            bytes.into_iter().all(|(&byte, at)| name.bytes(at) == Some([byte]))
        };
        (0..symbols.size / SYMBOL).find_map(|number| {
            let name = section.bytes(number * SYMBOL).map(u32::from_le_bytes)?;
            if !is_wanted(name) {
                return None;
            }
            section.bytes(number * SYMBOL + 8).map(u64::from_le_bytes)
        })
    }

    /// Address and bytes of `.eh_frame`. Where section headers were stripped, it is found the way
    /// that a running program finds it.
    fn eh_frame(&self) -> Result<Option<(u64, Section)>, Error> {
        if let Some(place) = self.headers.eh_frame {
            return Ok(Some((place.address, self.section(place)?)));
        }
        let Some(index) = self.headers.index else { return Ok(None) };
        let bases = BaseAddresses::default().set_eh_frame_hdr(index.address);
        let parsed = EhFrameHdr::from(self.section(index)?).parse(&bases, 8)?;
        let Pointer::Direct(at) = parsed.eh_frame_ptr() else { return Ok(None) };
        Ok(self.rest_of_segment(at).map(|section| (at, section)))
    }

    fn rest_of_segment(&self, address: u64) -> Option<Section> {
        let inside = |segment: &&Segment| {
            address.checked_sub(segment.address).is_some_and(|into| into < segment.size)
        };
        let segment = self.segments().iter().find(inside)?;
        let into = address - segment.address;
        let size = (segment.size - into).min(MAX_SECTION);
        Section::new(&self.pages, segment.offset.checked_add(into)?, size)
    }
}
