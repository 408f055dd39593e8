//! Dicts and instance attributes. Every size is bounded before it is used.

use super::object::{DICT, INLINE_VALUES, MANAGED_DICT, Objects, Problem};
use crate::memory::word;

/// More entries than `sys.modules` or `threading._active` ever has.
const MAX_ENTRIES: u64 = 1 << 16;

/// The keys of a dict, perhaps shared by the instances of a class.
struct Keys {
    /// Address of the first entry.
    entries: u64,
    count: u64,
    /// Whether entries hold a hash first (24 bytes) or not (16 bytes).
    hashed: bool,
}

impl Objects {
    /// A dict's keys and values, in the order of insertion.
    pub(super) fn dict_items(&mut self, dict: u64) -> Result<Vec<(u64, u64)>, Problem> {
        let (_, flags) = self.class(dict)?;
        if flags & DICT == 0 {
            return Err(Problem::Odd("an object that should be a dict"));
        }
        let block: [u8; 48] = self.memory.block(dict)?;
        let (keys, values) = (word(&block, 32), word(&block, 40));
        let values = (values != 0).then(|| values + self.values_header());
        self.items(keys, values)
    }

    /// An instance's attributes.
    pub(super) fn attributes(&mut self, object: u64) -> Result<Vec<(u64, u64)>, Problem> {
        let (class, flags) = self.class(object)?;
        let minor = self.version.minor_pair();
        if minor < (3, 11) || flags & MANAGED_DICT == 0 {
            let dict = self.plain_dict(object, class)?;
            return self.dict_items(dict);
        }
        // 3.11: a pointer to values and one to a dict, before the object. 3.12: one of the two,
        // told apart by its low bit. From 3.13: a pointer to a dict; values lie in the object.
        let before: [u8; 32] = self.memory.block(object.saturating_sub(32))?;
        let (first, second) = (word(&before, 0), word(&before, 8));
        let values = match minor {
            (3, 11) => (first != 0).then_some(first),
            (3, 12) => (second & 1 == 1).then(|| second + 1),
            _ if second == 0 && flags & INLINE_VALUES != 0 => {
                Some(object + 16 + self.values_header())
            }
            _ => None,
        };
        match values {
            Some(values) => {
                let keys = self.memory.u64(class + self.layout.type_cached_keys)?;
                self.items(keys, Some(values))
            }
            None => self.dict_items(second),
        }
    }

    /// What precedes the pointers of `PyDictValues`: sizes, from 3.13.
    fn values_header(&self) -> u64 {
        if self.version.minor_pair() >= (3, 13) { 8 } else { 0 }
    }

    fn items(&self, keys: u64, values: Option<u64>) -> Result<Vec<(u64, u64)>, Problem> {
        let keys = self.keys(keys)?;
        let entry = if keys.hashed { 24 } else { 16 };
        let entries = self.memory.bytes(keys.entries, keys.count as usize * entry)?;
        let split = match values {
            Some(values) => Some(self.memory.bytes(values, keys.count as usize * 8)?),
            None => None,
        };
        let pair = |(index, entry): (usize, &[u8])| {
            let start = entry.len() - 16;
            let value = match &split {
                Some(values) => word(values, index * 8),
                None => word(entry, start + 8),
            };
            (word(entry, start), value)
        };
        let items = entries.chunks_exact(entry).enumerate().map(pair);
        Ok(items.filter(|&(key, value)| key != 0 && value != 0).collect())
    }

    fn keys(&self, keys: u64) -> Result<Keys, Problem> {
        let block: [u8; 40] = self.memory.block(keys)?;
        let odd = Problem::Odd("a dict of absurd size");
        let (size, found) = if self.version.minor_pair() >= (3, 11) {
            let [log_size, log_index, kind] = [block[8], block[9], block[10]];
            if log_size > 24 || log_index > 27 || kind > 2 {
                return Err(odd);
            }
            let entries = keys + 32 + (1 << log_index);
            (1 << log_size, Keys { entries, count: word(&block, 24), hashed: kind == 0 })
        } else {
            let size = word(&block, 8);
            let index = match size {
                0..=0xff => 1,
                0x100..=0xffff => 2,
                0x1_0000..=0x100_0000 => 4,
                _ => return Err(odd),
            };
            let entries = keys + 40 + size * index;
            (size, Keys { entries, count: word(&block, 32), hashed: true })
        };
        if found.count > size || found.count > MAX_ENTRIES { Err(odd) } else { Ok(found) }
    }
}
