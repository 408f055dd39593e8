//! A part of a file, as gimli reads it.

use std::borrow::Cow;
use std::fmt;
use std::rc::Rc;

use gimli::{Error, LittleEndian, Reader, ReaderOffsetId, Result};

use crate::pages::Pages;

/// What is left to read of a section.
#[derive(Clone)]
pub(crate) struct Section {
    pages: Rc<Pages>,
    /// Bytes of the file.
    at: u64,
    end: u64,
}

impl Section {
    /// These bytes of a file. `None`: it has not so many.
    pub(crate) fn new(pages: &Rc<Pages>, offset: u64, size: u64) -> Option<Self> {
        let end = offset.checked_add(size).filter(|&end| end <= pages.size())?;
        Some(Section { pages: Rc::clone(pages), at: offset, end })
    }

    /// What is from byte `from` on.
    pub(crate) fn after(&self, from: u64) -> Option<Self> {
        let at = self.at.checked_add(from).filter(|&at| at <= self.end)?;
        Some(Section { at, ..self.clone() })
    }

    /// The bytes at `from`.
    pub(crate) fn bytes<const N: usize>(&self, from: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.after(from)?.read_slice(&mut bytes).ok()?;
        Some(bytes)
    }

    fn left(&self) -> u64 {
        self.end - self.at
    }

    fn check(&self, count: usize) -> Result<()> {
        if count as u64 > self.left() {
            Err(Error::UnexpectedEof(self.offset_id()))
        } else {
            Ok(())
        }
    }
}

impl fmt::Debug for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.at, self.end)
    }
}

impl Reader for Section {
    type Endian = LittleEndian;
    type Offset = usize;

    fn endian(&self) -> LittleEndian {
        LittleEndian
    }

    fn len(&self) -> usize {
        self.left() as usize
    }

    fn empty(&mut self) {
        self.end = self.at;
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        self.check(len)?;
        self.end = self.at + len as u64;
        Ok(())
    }

    fn offset_from(&self, base: &Self) -> usize {
        (self.at - base.at) as usize
    }

    fn offset_id(&self) -> ReaderOffsetId {
        ReaderOffsetId(self.at)
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        (self.at..=self.end).contains(&id.0).then(|| (id.0 - self.at) as usize)
    }

    fn find(&self, byte: u8) -> Result<usize> {
        let mut rest = self.clone();
        while rest.left() > 0 {
            if rest.read_u8()? == byte {
                return Ok(rest.offset_from(self) - 1);
            }
        }
        Err(Error::UnexpectedEof(self.offset_id()))
    }

    fn skip(&mut self, len: usize) -> Result<()> {
        self.check(len)?;
        self.at += len as u64;
        Ok(())
    }

    fn split(&mut self, len: usize) -> Result<Self> {
        let mut first = self.clone();
        first.truncate(len)?;
        self.at = first.end;
        Ok(first)
    }

    fn to_slice(&self) -> Result<Cow<'_, [u8]>> {
        let mut bytes = vec![0; self.len()];
        self.clone().read_slice(&mut bytes)?;
        Ok(Cow::Owned(bytes))
    }

    fn to_string(&self) -> Result<Cow<'_, str>> {
        let bytes = self.to_slice()?.into_owned();
        String::from_utf8(bytes).map(Cow::Owned).map_err(|_| Error::BadUtf8)
    }

    fn to_string_lossy(&self) -> Result<Cow<'_, str>> {
        Ok(Cow::Owned(String::from_utf8_lossy(&self.to_slice()?).into_owned()))
    }

    fn read_slice(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.check(buffer.len())?;
        self.pages.read(buffer, self.at).map_err(|_| Error::Io)?;
        self.at += buffer.len() as u64;
        Ok(())
    }

    fn read_u8(&mut self) -> Result<u8> {
        self.check(1)?;
        let byte = self.pages.byte(self.at).map_err(|_| Error::Io)?;
        self.at += 1;
        Ok(byte)
    }
}
