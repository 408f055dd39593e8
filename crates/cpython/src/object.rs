//! Python objects in another process's memory. Types are checked before fields are believed.

use std::collections::HashMap;

use crate::layout::Layout;
use crate::memory::{Memory, ReadError, after, word};
use crate::{InspectError, Version};

/// `PyModuleObject.md_dict`, in all supported versions.
pub(crate) const MODULE_DICT: u64 = 16;
const TYPE_NAME: u64 = 24;
const TYPE_BASICSIZE: u64 = 32;
const TYPE_FLAGS: u64 = 168;
/// Size of `PyBytesObject` up to its content.
const BYTES_HEADER: u64 = 32;
pub(crate) const TYPE_DICT_OFFSET: u64 = 288;

/// `tp_flags`
pub(crate) const INLINE_VALUES: u64 = 1 << 2;
pub(crate) const MANAGED_DICT: u64 = 1 << 4;
const INT: u64 = 1 << 24;
const BYTES: u64 = 1 << 27;
const STR: u64 = 1 << 28;
pub(crate) const DICT: u64 = 1 << 29;

/// Characters of a name that are kept.
const MAX_TEXT: u64 = 256;

/// Why an object could not be read.
pub(crate) enum Problem {
    /// It is not what it should be: it changed meanwhile, or the offsets are wrong.
    Odd(&'static str),
    /// The process cannot be read.
    Error(InspectError),
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Fault(_) => Problem::Odd("a pointer to nowhere"),
            other => Problem::Error(other.into()),
        }
    }
}

impl From<Problem> for InspectError {
    fn from(problem: Problem) -> Self {
        match problem {
            Problem::Error(error) => error,
            Problem::Odd(found) => InspectError::SelfCheck {
                what: "threading._active",
                expected: "threads with names".into(),
                found: found.into(),
            },
        }
    }
}

/// The objects of one interpreter.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) memory: Memory,
    pub(crate) version: Version,
    pub(crate) layout: Layout,
    /// Where the attribute that was asked for stands in shared keys, by the keys' address.
    pub(crate) slots: HashMap<u64, u64>,
    /// Fields of types, by type and offset.
    classes: HashMap<(u64, u64), u64>,
}

impl Objects {
    pub(crate) fn new(memory: Memory, version: Version, layout: Layout) -> Self {
        Objects { memory, version, layout, slots: HashMap::new(), classes: HashMap::new() }
    }

    /// A field of a type. Types do not change: each field is read once.
    pub(crate) fn class_word(&mut self, class: u64, offset: u64) -> Result<u64, Problem> {
        if let Some(&value) = self.classes.get(&(class, offset)) {
            return Ok(value);
        }
        let value = self.memory.u64(after(class, offset))?;
        self.classes.insert((class, offset), value);
        Ok(value)
    }

    pub(crate) fn class_flags(&mut self, class: u64) -> Result<u64, Problem> {
        self.class_word(class, TYPE_FLAGS)
    }

    /// Whether a type has this name and this size of its objects.
    pub(crate) fn class_is(&mut self, class: u64, name: &str, size: u64) -> Result<bool, Problem> {
        if self.class_word(class, TYPE_BASICSIZE)? != size {
            return Ok(false);
        }
        let at = self.class_word(class, TYPE_NAME)?;
        let found = self.memory.bytes(at, name.len() + 1)?;
        Ok(found.strip_suffix(&[0]) == Some(name.as_bytes()))
    }

    /// A non-negative `int`.
    pub(crate) fn integer(&mut self, object: u64) -> Result<u64, Problem> {
        let block: [u8; 36] = self.memory.block(object)?;
        if self.class_flags(word(&block, 8))? & INT == 0 {
            return Err(Problem::Odd("a thread's ident that is no int"));
        }
        let size = word(&block, 16);
        // From 3.12 the low three bits are the sign and others; before, the size is signed.
        let (digits, negative) = if self.version.minor_pair() >= (3, 12) {
            (size >> 3, size & 3 == 2)
        } else {
            (size, (size as i64) < 0)
        };
        if negative || digits > 3 {
            return Err(Problem::Odd("a thread's ident that is no address"));
        }
        let (words, _) = block[24..].as_chunks::<4>();
        let value = words.iter().zip(0..digits as u32).try_fold(0u64, |value, (digit, index)| {
            let digit = u64::from(u32::from_ne_bytes(*digit));
            let shifted = digit << (30 * index);
            (shifted >> (30 * index) == digit).then_some(value | shifted)
        });
        value.ok_or(Problem::Odd("a thread's ident that is too large"))
    }

    /// A thread's name, cut at 256 characters.
    pub(crate) fn name(&mut self, object: u64) -> Result<String, Problem> {
        self.text(object, MAX_TEXT)
    }

    /// A `str`, cut at `limit` characters.
    pub(crate) fn text(&mut self, object: u64, limit: u64) -> Result<String, Problem> {
        let block: [u8; 40] = self.memory.block(object)?;
        if self.class_flags(word(&block, 8))? & STR == 0 {
            return Err(Problem::Odd("something else than a str"));
        }
        let length = word(&block, 16).min(limit) as usize;
        let state = word(&block, 32);
        let (width, compact, ascii) = (state >> 2 & 7, state >> 5 & 1 == 1, state >> 6 & 1 == 1);
        if !matches!(width, 1 | 2 | 4) {
            return Err(Problem::Odd("a str of unknown width"));
        }
        let compact_header = if self.layout.ascii_header == 48 { 72 } else { 56 };
        let characters = match (compact, ascii) {
            (true, true) => after(object, self.layout.ascii_header),
            (true, false) => after(object, compact_header),
            (false, _) => self.memory.u64(after(object, compact_header))?,
        };
        if length == 0 {
            return Ok(String::new());
        }
        let bytes = self.memory.bytes(characters, length * width as usize)?;
        Ok(bytes.chunks_exact(width as usize).map(character).collect())
    }

    /// The content of a `bytes`, if it is at most `limit` bytes long.
    pub(crate) fn bytes(&mut self, object: u64, limit: u64) -> Result<Vec<u8>, Problem> {
        let block: [u8; 24] = self.memory.block(object)?;
        if self.class_flags(word(&block, 8))? & BYTES == 0 {
            return Err(Problem::Odd("something else than bytes"));
        }
        match word(&block, 16) {
            0 => Ok(Vec::new()),
            length if length > limit => Err(Problem::Odd("bytes longer than they can be")),
            length => Ok(self.memory.bytes(after(object, BYTES_HEADER), length as usize)?),
        }
    }

    /// Looks a short ASCII `key` up among items.
    pub(crate) fn find(
        &self,
        items: &[(u64, u64)],
        key: &str,
    ) -> Result<Option<(u64, u64)>, Problem> {
        let start = self.layout.ascii_header as usize;
        let is_key = |block: &[u8]| {
            word(block, 16) == key.len() as u64
                && block.get(start..start + key.len()) == Some(key.as_bytes())
        };
        let keys: Vec<u64> = items.iter().map(|&(key, _)| key).collect();
        let blocks = self.memory.scatter::<64>(&keys)?;
        for (item, block) in items.iter().zip(blocks) {
            let found = match block {
                Some(block) => is_key(&block),
                // The last object before a hole in memory may be shorter than what was asked for.
                None => {
                    self.memory.bytes(item.0, start + key.len()).is_ok_and(|block| is_key(&block))
                }
            };
            if found {
                return Ok(Some(*item));
            }
        }
        Ok(None)
    }
}

fn character(bytes: &[u8]) -> char {
    let code = bytes.iter().rev().fold(0u32, |code, &byte| code << 8 | u32::from(byte));
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_of_each_width() {
        assert_eq!(character(&[0xe4]), 'ä');
        assert_eq!(character(&0x6f22u16.to_le_bytes()), '漢');
        assert_eq!(character(&0x1f40du32.to_le_bytes()), '🐍');
        assert_eq!(character(&0xd800u16.to_le_bytes()), char::REPLACEMENT_CHARACTER);
    }
}
