//! Where the runtime keeps the list of all goroutines.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;

use underspan_remote::Memory;

use crate::Error;
use crate::functions::Functions;
use crate::image::Image;

/// More goroutines than a process can have.
pub(crate) const MOST: u64 = 1 << 26;
/// The function that appends to the list, and the longest it can be.
const APPENDS: &str = "runtime.allgadd";
const MAX_CODE: u64 = 4096;

/// Addresses in the process of `runtime.allgptr` and `runtime.allglen`. The runtime updates them in an
/// order that lets others read length, then pointer, without a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) pointer: u64,
    pub(crate) length: u64,
}

impl List {
    /// From the symbol table, else from the code that appends to the list.
    pub(crate) fn find(
        image: &Image,
        functions: &Functions,
        memory: &Memory,
        bias: u64,
    ) -> Result<Self, Error> {
        let symbols = image.symbols(&["runtime.allgptr", "runtime.allglen"])?;
        if let [(pointer, _), (length, _)] = symbols[..]
            && pointer != 0
            && length != 0
        {
            let at = |address: u64| bias.wrapping_add(address);
            return Ok(List { pointer: at(pointer), length: at(length) });
        }
        let values: Vec<_> = candidates(image, functions)?
            .iter()
            .map(|address| bias.wrapping_add(*address))
            .filter_map(|address| Some((address, memory.u64(address).ok()?)))
            .collect();
        choose(&values, |address| memory.u64(address).ok())
    }
}

/// Variables that the code of `runtime.allgadd` names: what its instructions address relative to
/// themselves. Every byte is tried as an instruction's ModRM, so there are some too many.
fn candidates(image: &Image, functions: &Functions) -> Result<BTreeSet<u64>, Error> {
    let range = functions.range_of(APPENDS);
    let (start, end) = range.ok_or(Error::NoList("its function table has no runtime.allgadd"))?;
    let text = image.sections.iter().find(|section| section.contains(start) && section.in_file);
    let text = text.ok_or_else(|| Error::damaged("its code is in no section"))?;
    let mut code = vec![0; end.saturating_sub(start).min(MAX_CODE) as usize];
    let read = image.file.read_exact_at(&mut code, start - text.address + text.offset);
    read.map_err(|error| Error::io("the executable", error))?;
    let (low, high) = functions.module().variables;
    let mut found = BTreeSet::new();
    for (at, window) in code.windows(5).enumerate() {
        if let &[modrm, a, b, c, d] = window
            && modrm & 0xc7 == 0x05
        {
            let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
            let next = start + at as u64 + 5;
            let target = next.wrapping_add_signed(distance);
            if target % 8 == 0 && (low..high).contains(&target) {
                found.insert(target);
            }
        }
    }
    Ok(found)
}

/// Among variables and their values: `allgs` is a slice (pointer, length, capacity), `allgptr` equals
/// its pointer and `allglen` its length.
fn choose(values: &[(u64, u64)], read: impl Fn(u64) -> Option<u64>) -> Result<List, Error> {
    let mut starting = false;
    for &(slice, pointer) in values {
        let (Some(length), Some(capacity)) = (read(slice + 8), read(slice + 16)) else { continue };
        starting |= pointer == 0 && length == 0 && capacity == 0;
        if pointer < 4096 || length == 0 || length > capacity || capacity > MOST {
            continue;
        }
        let other = |value: u64| {
            let outside = |at: u64| !(slice..slice + 24).contains(&at);
            values.iter().find(|(at, found)| outside(*at) && *found == value).map(|(at, _)| *at)
        };
        if let (Some(pointer), Some(length)) = (other(pointer), other(length)) {
            return Ok(List { pointer, length });
        }
    }
    if starting {
        return Err(Error::NotReady("it has made no goroutine yet".into()));
    }
    Err(Error::NoList("no variable that runtime.allgadd uses is such a list"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(values: &[(u64, u64)]) -> Result<List, Error> {
        choose(values, |at| values.iter().find(|(a, _)| *a == at).map(|(_, value)| *value))
    }

    #[test]
    fn the_slice_and_its_copies() {
        let values = [(0x100, 1), (0x200, 0xc000_0000), (0x208, 7), (0x210, 8)];
        let copies = [(0x300, 7), (0x308, 0xc000_0000)];
        let found = chosen(&[&values[..], &copies[..]].concat()).unwrap();
        assert_eq!(found, List { pointer: 0x308, length: 0x300 });
    }

    #[test]
    fn no_list_is_not_guessed() {
        let values =
            [(0x200, 0xc000_0000), (0x208, 9), (0x210, 8), (0x300, 9), (0x308, 0xc000_0000)];
        assert!(matches!(chosen(&values), Err(Error::NoList(_))));
        assert!(matches!(chosen(&[]), Err(Error::NoList(_))));
        let empty = [(0x200, 0), (0x208, 0), (0x210, 0)];
        assert!(chosen(&empty).is_err_and(|error| error.is_transient()));
    }
}
