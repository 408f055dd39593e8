//! A file's bytes, read where they are needed and forgotten again: what is read of a large binary takes no more
//! memory than of a small one.
//!
//! Not mapped: who shortens a mapped file kills whoever reads it.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

/// Bytes that are read at once.
const PAGE: usize = 4096;
/// Pages that are kept: 256 KiB. What belongs to neighbouring functions mostly is in neighbouring pages, but a
/// linker that puts hot functions together jumps about.
const KEPT: usize = 64;

/// What can be read at any place.
pub trait ReadAt {
    /// Bytes.
    ///
    /// # Errors
    /// If the system does not say.
    fn size(&self) -> io::Result<u64>;

    /// Reads some bytes, none only at the end.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl ReadAt for File {
    fn size(&self) -> io::Result<u64> {
        self.metadata().map(|meta| meta.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }
}

impl ReadAt for Vec<u8> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = usize::try_from(offset).ok().and_then(|from| self.get(from..));
        io::Read::read(&mut from.unwrap_or_default(), buffer)
    }
}

/// What was read last of a file.
pub(crate) struct Pages {
    source: Box<dyn ReadAt>,
    size: u64,
    /// Page n is at place n % KEPT, if at all.
    kept: RefCell<Vec<Option<Page>>>,
}

struct Page {
    number: u64,
    bytes: Box<[u8; PAGE]>,
}

impl Pages {
    pub(crate) fn new(source: Box<dyn ReadAt>) -> io::Result<Rc<Self>> {
        let size = source.size()?;
        let kept = RefCell::new((0..KEPT).map(|_| None).collect());
        Ok(Rc::new(Pages { source, size, kept }))
    }

    /// Bytes of the whole file.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Reads all of `buffer`.
    pub(crate) fn read(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        let mut kept = self.kept.borrow_mut();
        while !buffer.is_empty() {
            let (number, into) = (offset / PAGE as u64, (offset % PAGE as u64) as usize);
            let place = &mut kept[(number % KEPT as u64) as usize];
            if place.as_ref().is_none_or(|page| page.number != number) {
                self.fill(place, number)?;
            }
            let Some(page) = place else { return Err(io::ErrorKind::UnexpectedEof.into()) };
            let count = buffer.len().min(PAGE - into);
            let (now, later) = buffer.split_at_mut(count);
            now.copy_from_slice(&page.bytes[into..into + count]);
            buffer = later;
            offset += count as u64;
        }
        Ok(())
    }

    /// A single byte: most of what an unwind table's instructions are read by.
    pub(crate) fn byte(&self, offset: u64) -> io::Result<u8> {
        let (number, into) = (offset / PAGE as u64, (offset % PAGE as u64) as usize);
        if let Some(page) = &self.kept.borrow()[(number % KEPT as u64) as usize]
            && page.number == number
        {
            return Ok(page.bytes[into]);
        }
        let mut byte = [0];
        self.read(&mut byte, offset)?;
        Ok(byte[0])
    }

    /// What is beyond the file's end is 0: nobody asks for it.
    fn fill(&self, place: &mut Option<Page>, number: u64) -> io::Result<()> {
        let mut bytes = place.take().map_or_else(|| Box::new([0; PAGE]), |page| page.bytes);
        let mut filled = 0;
        while filled < PAGE {
            let offset = number * PAGE as u64 + filled as u64;
            match self.source.read_at(&mut bytes[filled..], offset) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // The file has become shorter.
        if number * PAGE as u64 + (filled as u64) < self.size && filled < PAGE {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes[filled..].fill(0);
        *place = Some(Page { number, bytes });
        Ok(())
    }
}
