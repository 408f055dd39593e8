//! Functions, files and lines out of Go's function table, which also stripped programs carry.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use underspan_remote::word;

use crate::image::{Image, Section};
use crate::module::{Header, Module};
use crate::{Error, Version};

/// Size of a function's record before its variable parts: before Go 1.20, and from then on.
const RECORD_118: u64 = 40;
const RECORD_120: u64 = 44;
/// Per-function tables: which inlined call a pc belongs to, and those calls.
const PCDATA_INLINE_INDEX: u32 = 2;
const FUNCDATA_INLINE_TREE: u32 = 3;
/// The outermost function of a stack, such as `runtime.goexit`.
const FLAG_TOP_FRAME: u8 = 1;
/// Longest name or path that is read, in bytes.
const MAX_NAME: usize = 4096;
/// Inlined calls in each other, at the most.
const MAX_INLINED: usize = 64;

/// Where code came from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// As `main.(*consumer).poll`.
    pub function: String,
    /// Source file, as the compiler was given it.
    pub file: String,
    /// Line in it, or 0.
    pub line: u32,
}

/// What it takes to find a function's caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameSize {
    /// Bytes between the stack pointer and the return address.
    pub(crate) bytes: u64,
    /// There is no caller.
    pub(crate) outermost: bool,
}

/// The functions of a Go program. Reads from the file what is asked for and keeps nothing, so that
/// it costs no memory: keep what you look up.
#[derive(Debug)]
pub struct Functions {
    file: Arc<File>,
    header: Header,
    module: Module,
    readonly: Vec<Section>,
    version: Version,
}

/// A function's record.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Where it is in the section.
    at: u64,
    entry: u64,
    name: u32,
    pcsp: u32,
    pcfile: u32,
    pcline: u32,
    tables: u32,
    unit: u32,
    outermost: bool,
    data: u8,
}

impl Functions {
    /// Reads the heads of the tables.
    ///
    /// # Errors
    /// [`Error::NotGo`] for other programs; otherwise what is wrong with the file.
    pub fn open(file: File) -> Result<Self, Error> {
        Self::of(&Image::open(file)?)
    }

    pub(crate) fn of(image: &Image) -> Result<Self, Error> {
        let header = Header::read(image)?;
        let module = Module::find(image, &header)?;
        Ok(Functions {
            file: Arc::clone(&image.file),
            header,
            module,
            readonly: image.sections.iter().filter(|section| section.in_file).cloned().collect(),
            version: image.version,
        })
    }

    /// The Go that made the program.
    pub fn version(&self) -> Version {
        self.version
    }

    pub(crate) fn module(&self) -> &Module {
        &self.module
    }

    /// The function around `address` (as in the file: for a position-independent executable less the
    /// address it was loaded at), and the functions inlined there: outermost first. Empty if no Go
    /// function is there. For a return address ask for the byte before.
    pub fn locate(&self, address: u64) -> Vec<Location> {
        self.try_locate(address).unwrap_or_default()
    }

    /// The function that contains `address`, without files and inlined calls.
    pub fn name(&self, address: u64) -> Option<String> {
        let record = self.find(address)?;
        self.string(self.header.names + u64::from(record.name))
    }

    /// Start and end of the function with this name. Looks at the names of all functions.
    pub(crate) fn range_of(&self, name: &str) -> Option<(u64, u64)> {
        for index in 0..self.header.functions {
            let record = self.record(index)?;
            let at = self.header.names + u64::from(record.name);
            let mut buffer = vec![0; name.len() + 1];
            self.read(at, &mut buffer)?;
            if buffer.strip_suffix(&[0]) == Some(name.as_bytes()) {
                return Some((record.entry, self.entry(index + 1)?));
            }
        }
        None
    }

    pub(crate) fn frame_size(&self, address: u64) -> Option<FrameSize> {
        let record = self.find(address)?;
        let bytes = self.value(record.pcsp, record.entry, address)?;
        Some(FrameSize { bytes: u64::try_from(bytes).ok()?, outermost: record.outermost })
    }

    fn try_locate(&self, address: u64) -> Option<Vec<Location>> {
        let record = self.find(address)?;
        let mut inner = Vec::new();
        let mut at = address;
        // From the innermost inlined call outwards: each says where in its caller it stands.
        while inner.len() < MAX_INLINED
            && let Some(index) = self.pcdata(&record, PCDATA_INLINE_INDEX, at).filter(|i| *i >= 0)
            && let Some((name, parent)) = self.inlined(&record, index as u64)
        {
            let function = self.string(self.header.names + u64::from(name))?;
            inner.push(self.location(&record, at, function));
            let outside = record.entry + u64::from(parent);
            if outside == at {
                break;
            }
            at = outside;
        }
        let function = self.string(self.header.names + u64::from(record.name))?;
        inner.push(self.location(&record, at, function));
        inner.reverse();
        Some(inner)
    }

    fn location(&self, record: &Record, address: u64, function: String) -> Location {
        let line = self.value(record.pcline, record.entry, address);
        let file = self.value(record.pcfile, record.entry, address);
        let file = file.and_then(|file| self.file_name(record, u32::try_from(file).ok()?));
        Location {
            function,
            file: file.unwrap_or_default(),
            line: line.and_then(|line| u32::try_from(line).ok()).unwrap_or(0),
        }
    }

    fn file_name(&self, record: &Record, file: u32) -> Option<String> {
        let index = u64::from(record.unit).checked_add(u64::from(file))?;
        let offset = self.u32(self.header.units + index * 4)?;
        if offset == u32::MAX {
            return None;
        }
        self.string(self.header.files + u64::from(offset))
    }

    /// The value of a per-function table at `address`. -1: nothing is there.
    fn pcdata(&self, record: &Record, table: u32, address: u64) -> Option<i32> {
        if table >= record.tables {
            return None;
        }
        let offset = self.u32(record.at + self.record_size() + u64::from(table) * 4)?;
        if offset == 0 {
            return None;
        }
        self.value(offset, record.entry, address)
    }

    /// Name and place of an inlined call.
    fn inlined(&self, record: &Record, index: u64) -> Option<(u32, u32)> {
        if u32::from(record.data) <= FUNCDATA_INLINE_TREE {
            return None;
        }
        let lists = record.at + self.record_size() + u64::from(record.tables) * 4;
        let offset = self.u32(lists + u64::from(FUNCDATA_INLINE_TREE) * 4)?;
        if offset == u32::MAX {
            return None;
        }
        // Before 1.20: parent i16, funcID u8, file i32, line i32, name i32, parentPc i32 (20 bytes
        // with padding); since: funcID u8, name i32, parentPc i32, startLine i32 (16 bytes).
        let (size, name) = if self.header.go120 { (16, 4) } else { (20, 12) };
        let address = self.module.gofunc.checked_add(u64::from(offset))? + index * size + name;
        let section = self.readonly.iter().find(|section| section.contains(address))?;
        let mut bytes = [0; 8];
        let at = address - section.address + section.offset;
        self.file.read_exact_at(&mut bytes, at).ok()?;
        let both = u64::from_ne_bytes(bytes);
        Some((both as u32, (both >> 32) as u32))
    }

    /// The function that contains `address`: functions are sorted by where they begin.
    fn find(&self, address: u64) -> Option<Record> {
        let (text, end) = self.module.text;
        if !(text..end).contains(&address) {
            return None;
        }
        let (mut low, mut high) = (0, self.header.functions);
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if self.entry(middle)? <= address {
                low = middle;
            } else {
                high = middle;
            }
        }
        let record = self.record(low)?;
        (record.entry <= address).then_some(record)
    }

    /// Where a function begins; for the index past the last one, where the code ends.
    fn entry(&self, index: u64) -> Option<u64> {
        let offset = self.u32(self.header.table + index * 8)?;
        self.module.text.0.checked_add(u64::from(offset))
    }

    fn record(&self, index: u64) -> Option<Record> {
        let offset = self.u32(self.header.table + index * 8 + 4)?;
        let at = self.header.table + u64::from(offset);
        let mut bytes = [0; RECORD_120 as usize];
        self.read(at, &mut bytes)?;
        let field = |index: usize| word(&bytes, index * 4) as u32;
        // Go 1.20 put the line of `func` before the last four bytes.
        let last = self.record_size() as usize - 4;
        Some(Record {
            at,
            entry: self.module.text.0.checked_add(u64::from(field(0)))?,
            name: field(1),
            pcsp: field(4),
            pcfile: field(5),
            pcline: field(6),
            tables: field(7),
            unit: field(8),
            outermost: bytes.get(last + 1).is_some_and(|flag| flag & FLAG_TOP_FRAME != 0),
            data: bytes.get(last + 3).copied().unwrap_or(0),
        })
    }

    fn record_size(&self) -> u64 {
        if self.header.go120 { RECORD_120 } else { RECORD_118 }
    }

    /// Walks a table of (change of value, change of pc) pairs up to `address`.
    fn value(&self, offset: u32, entry: u64, address: u64) -> Option<i32> {
        let mut reader = Varints::new(self, self.header.values + u64::from(offset));
        let (mut value, mut pc, mut first) = (-1i32, entry, true);
        loop {
            let change = reader.next()?;
            if change == 0 && !first {
                return None;
            }
            first = false;
            let change = if change & 1 != 0 { !(change >> 1) } else { change >> 1 };
            value = value.wrapping_add(change as i32);
            pc = pc.checked_add(u64::from(reader.next()?))?;
            if address < pc {
                return Some(value);
            }
        }
    }

    fn string(&self, at: u64) -> Option<String> {
        let mut text = Vec::new();
        let mut chunk = [0; 64];
        while text.len() < MAX_NAME {
            let read = self.read_some(at + text.len() as u64, &mut chunk)?;
            let chunk = chunk.get(..read)?;
            match chunk.iter().position(|byte| *byte == 0) {
                Some(end) => {
                    text.extend_from_slice(chunk.get(..end)?);
                    return Some(String::from_utf8_lossy(&text).into_owned());
                }
                None => text.extend_from_slice(chunk),
            }
        }
        None
    }

    fn u32(&self, at: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read(at, &mut bytes)?;
        Some(u32::from_ne_bytes(bytes))
    }

    /// Fills `buffer` from the section, or as much of it as there is: the rest stays 0.
    fn read(&self, at: u64, buffer: &mut [u8]) -> Option<()> {
        self.read_some(at, buffer).map(drop)
    }

    fn read_some(&self, at: u64, buffer: &mut [u8]) -> Option<usize> {
        let left = self.header.section.size.checked_sub(at)?;
        let len = buffer.len().min(usize::try_from(left).ok()?);
        let buffer = buffer.get_mut(..len).filter(|buffer| !buffer.is_empty())?;
        self.file.read_exact_at(buffer, self.header.section.offset + at).ok()?;
        Some(len)
    }
}

/// Numbers of variable length, read in small blocks.
struct Varints<'a> {
    functions: &'a Functions,
    at: u64,
    block: [u8; 256],
    filled: usize,
    next: usize,
}

impl<'a> Varints<'a> {
    fn new(functions: &'a Functions, at: u64) -> Self {
        Varints { functions, at, block: [0; 256], filled: 0, next: 0 }
    }

    fn byte(&mut self) -> Option<u8> {
        if self.next == self.filled {
            self.filled = self.functions.read_some(self.at, &mut self.block)?;
            self.at += self.filled as u64;
            self.next = 0;
        }
        let byte = self.block.get(self.next).copied();
        self.next += 1;
        byte
    }

    fn next(&mut self) -> Option<u32> {
        let mut value = 0u32;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            value |= u32::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}
