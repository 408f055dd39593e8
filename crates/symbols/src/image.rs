//! What is read of an ELF file beside its symbols. Only the parts that matter are read.

use std::fs::File;

use object::elf::PT_LOAD;
use object::read::elf::{ElfFile64, ProgramHeader as _};
use object::{LittleEndian, Object as _, ObjectSection as _, ReadCache};

/// Larger than any interpreter's section; a bound against damaged files.
const MAX_SECTION: u64 = 64 << 20;

/// A loadable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) offset: u64,
    pub(crate) file_size: u64,
}

/// A section's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) address: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

type Elf<'a> = ElfFile64<'a, LittleEndian, &'a ReadCache<&'a File>>;

/// An ELF file while it is looked at.
pub(crate) struct Image<'a>(Elf<'a>);

impl<'a> Image<'a> {
    /// `None` for what is no 64-bit little-endian ELF file.
    pub(crate) fn parse(cache: &'a ReadCache<&'a File>) -> Option<Self> {
        Some(Image(ElfFile64::parse(cache).ok()?))
    }

    pub(crate) fn segments(&self) -> Vec<Segment> {
        let headers = self.0.elf_program_headers().iter();
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
        let id = self.0.build_id().ok().flatten()?;
        // A directory and a file name are made of it.
        (2..=64).contains(&id.len()).then(|| id.to_vec())
    }

    pub(crate) fn place(&self, section: &str) -> Option<Place> {
        let section = self.0.section_by_name(section)?;
        let (offset, size) = section.file_range()?;
        Some(Place { address: section.address(), offset, size })
    }

    /// A section's bytes. Missing and absurdly large sections are `None`.
    pub(crate) fn section(&self, name: &str) -> Option<Vec<u8>> {
        let section = self.0.section_by_name(name)?;
        if section.size() > MAX_SECTION {
            return None;
        }
        section.data().ok().map(<[u8]>::to_vec)
    }

    pub(crate) fn elf(&self) -> &Elf<'a> {
        &self.0
    }
}

/// The virtual address of a byte in the file.
pub(crate) fn virtual_address(segments: &[Segment], offset: u64) -> Option<u64> {
    let inside = |segment: &&Segment| {
        offset.checked_sub(segment.offset).is_some_and(|into| into < segment.file_size)
    };
    let segment = segments.iter().find(inside)?;
    (offset - segment.offset).checked_add(segment.address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_executable() {
        let file = File::open("/proc/self/exe").unwrap();
        let cache = ReadCache::new(&file);
        let image = Image::parse(&cache).unwrap();
        let text = image.place(".text").unwrap();
        assert_eq!(virtual_address(&image.segments(), text.offset), Some(text.address));
        assert_eq!(virtual_address(&image.segments(), u64::MAX), None);
        assert_eq!(image.section(".text").unwrap().len() as u64, text.size);
        assert_eq!(image.place(".nonsense"), None);
    }

    #[test]
    fn no_elf_is_no_image() {
        let file = File::open("/proc/self/cmdline").unwrap();
        assert!(Image::parse(&ReadCache::new(&file)).is_none());
    }
}
