//! The library that the kernel maps into every process. It is the same one in all of them, so it is
//! read in our own.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use object::{LittleEndian, Object as _, ObjectSymbol as _};

use crate::mappings::{Mapped, Mappings};

/// Larger than it is.
const MAX_BYTES: u64 = 1 << 20;

/// Its functions, by offset in the mapping.
#[derive(Debug, Default)]
pub(crate) struct Vdso(Vec<(u64, u64, String)>);

impl Vdso {
    /// Empty if it cannot be read.
    pub(crate) fn read() -> Self {
        Vdso(functions().unwrap_or_default())
    }

    pub(crate) fn find(&self, offset: u64) -> Option<&str> {
        let inside = |(start, size, _): &&(u64, u64, String)| {
            offset.checked_sub(*start).is_some_and(|into| into < *size)
        };
        self.0.iter().find(inside).map(|(_, _, name)| name.as_str())
    }
}

fn functions() -> Option<Vec<(u64, u64, String)>> {
    let mappings = Mappings::read(std::process::id()).ok()?;
    let vdso = mappings.iter().find(|mapping| mapping.mapped == Mapped::Vdso)?;
    let mut bytes = vec![0; usize::try_from((vdso.end - vdso.start).min(MAX_BYTES)).ok()?];
    File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, vdso.start).ok()?;
    let elf = object::read::elf::ElfFile64::<LittleEndian>::parse(&*bytes).ok()?;
    let symbols = elf.dynamic_symbols().filter(|symbol| symbol.is_definition());
    let mut functions: Vec<_> = symbols
        .filter_map(|symbol| {
            Some((symbol.address(), symbol.size(), symbol.name().ok()?.to_owned()))
        })
        .collect();
    // Aliases: `__vdso_…` says more than the bare name.
    functions.sort_by_key(|(start, _, name)| (*start, !name.starts_with("__vdso")));
    Some(functions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_in_it() {
        let vdso = Vdso::read();
        let (start, ..) =
            vdso.0.iter().find(|(_, _, name)| name == "__vdso_clock_gettime").unwrap();
        assert_eq!(vdso.find(start + 1), Some("__vdso_clock_gettime"));
        assert_eq!(vdso.find(u64::MAX), None);
    }
}
