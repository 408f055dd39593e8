//! Dicts and instance attributes. Every size is bounded before it is used.

use crate::memory::{after, word};
use crate::object::{DICT, INLINE_VALUES, MANAGED_DICT, Objects, Problem, TYPE_DICT_OFFSET};

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

/// Where an object's attributes, or a dict's items, are.
#[derive(Clone, Copy)]
pub(super) struct Table {
    keys: u64,
    /// The values, where they are not beside their keys.
    values: Option<u64>,
}

impl Objects {
    /// A dict's keys and values, in the order of insertion.
    pub(super) fn dict_items(&mut self, dict: u64) -> Result<Vec<(u64, u64)>, Problem> {
        let table = self.dict(dict)?;
        self.items(table)
    }

    fn dict(&mut self, dict: u64) -> Result<Table, Problem> {
        let block: [u8; 48] = self.memory.block(dict)?;
        if self.class_flags(word(&block, 8))? & DICT == 0 {
            return Err(Problem::Odd("an object that should be a dict"));
        }
        let (keys, values) = (word(&block, 32), word(&block, 40));
        Ok(Table { keys, values: (values != 0).then(|| after(values, self.values_header())) })
    }

    /// Where an instance's attributes are.
    fn attributes(&mut self, object: u64) -> Result<Table, Problem> {
        let block: [u8; 48] = self.memory.block(object.saturating_sub(32))?;
        let (first, second, class) = (word(&block, 0), word(&block, 8), word(&block, 40));
        let flags = self.class_flags(class)?;
        let minor = self.version.minor_pair();
        if minor < (3, 11) || flags & MANAGED_DICT == 0 {
            let offset = self.class_word(class, TYPE_DICT_OFFSET)?;
            if !(1..4096).contains(&offset) {
                return Err(Problem::Odd("a Thread without __dict__"));
            }
            let dict = self.memory.u64(after(object, offset))?;
            return self.dict(dict);
        }
        // 3.11: a pointer to values and one to a dict, before the object. 3.12: one of the two,
        // told apart by its low bit. From 3.13: a pointer to a dict; values lie in the object.
        let values = match minor {
            (3, 11) => (first != 0).then_some(first),
            (3, 12) => (second & 1 == 1).then(|| after(second, 1)),
            _ if second == 0 && flags & INLINE_VALUES != 0 => {
                Some(after(object, 16 + self.values_header()))
            }
            _ => None,
        };
        if values.is_none() {
            return self.dict(second);
        }
        let keys = self.class_word(class, self.layout.type_cached_keys)?;
        Ok(Table { keys, values })
    }

    /// The value of an instance's attribute. Instances of a class share their keys: where `name`
    /// stands among them is looked up once.
    pub(super) fn attribute(&mut self, object: u64, name: &str) -> Result<u64, Problem> {
        let missing = Problem::Odd("a Thread without a name");
        let table = self.attributes(object)?;
        let Some(values) = table.values else {
            let items = self.items(table)?;
            return self.find(&items, name)?.map(|(_, value)| value).ok_or(missing);
        };
        let slot = match self.slots.get(&table.keys) {
            Some(&slot) => slot,
            None => {
                let keys = self.entries(table.keys)?;
                let (key, _) = self.find(&keys, name)?.ok_or(missing)?;
                let slot = keys.iter().position(|entry| entry.0 == key).unwrap_or_default() as u64;
                self.slots.insert(table.keys, slot);
                slot
            }
        };
        match self.memory.u64(after(values, slot * 8))? {
            0 => Err(Problem::Odd("a Thread whose name is not set yet")),
            value => Ok(value),
        }
    }

    /// What precedes the pointers of `PyDictValues`: sizes, from 3.13.
    fn values_header(&self) -> u64 {
        if self.version.minor_pair() >= (3, 13) { 8 } else { 0 }
    }

    fn items(&self, table: Table) -> Result<Vec<(u64, u64)>, Problem> {
        let mut items = self.entries(table.keys)?;
        if let Some(values) = table.values {
            let values = self.memory.bytes(values, items.len() * 8)?;
            for (index, item) in items.iter_mut().enumerate() {
                item.1 = word(&values, index * 8);
            }
        }
        items.retain(|&(key, value)| key != 0 && value != 0);
        Ok(items)
    }

    /// All entries, also unused ones.
    fn entries(&self, keys: u64) -> Result<Vec<(u64, u64)>, Problem> {
        let keys = self.keys(keys)?;
        let size = if keys.hashed { 24 } else { 16 };
        let entries = self.memory.bytes(keys.entries, keys.count as usize * size)?;
        let pair = |entry: &[u8]| (word(entry, size - 16), word(entry, size - 8));
        Ok(entries.chunks_exact(size).map(pair).collect())
    }

    fn keys(&self, keys: u64) -> Result<Keys, Problem> {
        let block: [u8; 40] = self.memory.block(keys)?;
        let odd = Problem::Odd("a dict of absurd size");
        let (size, found) = if self.version.minor_pair() >= (3, 11) {
            let [log_size, log_index, kind] = [block[8], block[9], block[10]];
            if log_size > 24 || log_index > 27 || kind > 2 {
                return Err(odd);
            }
            let entries = after(keys, 32 + (1 << log_index));
            (1 << log_size, Keys { entries, count: word(&block, 24), hashed: kind == 0 })
        } else {
            let size = word(&block, 8);
            let index = match size {
                0..=0xff => 1,
                0x100..=0xffff => 2,
                0x1_0000..=0x100_0000 => 4,
                _ => return Err(odd),
            };
            let entries = after(keys, 40 + size * index);
            (size, Keys { entries, count: word(&block, 32), hashed: true })
        };
        if found.count > size || found.count > MAX_ENTRIES { Err(odd) } else { Ok(found) }
    }
}
