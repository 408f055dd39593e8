//! The ways to see a collection in a process, best first.

use crate::elf::{self, Image, Segment, Symbol};
use crate::memory::word;
use crate::{Version, elf::file_offset};

/// One way to see every collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GcRung {
    /// USDT probes `python:gc__start` (argument: generation) and `python:gc__done` (argument:
    /// objects collected). libbpf attaches by provider and name to [`crate::Binary::path`].
    Usdt {
        /// `python`
        provider: &'static str,
        /// A collection begins.
        start: UsdtProbe,
        /// It has ended.
        done: UsdtProbe,
    },
    /// Uprobe and uretprobe on the collecting function.
    Symbol {
        /// All of them must be attached: a compiler may have made several clones of one.
        functions: Vec<GcFunction>,
        /// Which argument, from 0, is the generation; `None` for a clone, whose arguments the
        /// compiler may have changed.
        generation_argument: Option<u8>,
        /// Whether the return value is collected + uncollectable objects.
        returns_collected: bool,
    },
    /// A write watchpoint on `gc.collecting`: 4 bytes that are 1 during a collection. It costs
    /// microseconds each time and a debug register per CPU.
    Watchpoint {
        /// In the process.
        address: u64,
    },
}

/// A USDT probe of a binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsdtProbe {
    /// `gc__start` or `gc__done`.
    pub name: String,
    /// A probe can be compiled in at several places.
    pub locations: Vec<UsdtLocation>,
}

/// One place of a USDT probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsdtLocation {
    /// Of the instruction, in the file.
    pub file_offset: u64,
    /// Of the 16-bit semaphore, in the file; 0 when the probe is not guarded.
    pub semaphore_offset: u64,
    /// Where the arguments are, in the assembler's notation.
    pub arguments: String,
}

/// A function to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcFunction {
    /// As in the symbol table, clones with their suffix.
    pub name: String,
    /// In the file, as uprobes take it. Not a virtual address.
    pub file_offset: u64,
    /// Whether it begins with `endbr64`, which the kernel cannot emulate.
    pub endbr64: bool,
}

impl GcFunction {
    /// Where to put an entry uprobe. After `endbr64` comes a `push`, which the kernel emulates
    /// instead of single-stepping it.
    pub fn entry_offset(&self) -> u64 {
        if self.endbr64 { self.file_offset + 4 } else { self.file_offset }
    }
}

/// What one binary offers, and why it does not offer more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Probes {
    pub(crate) rungs: Vec<GcRung>,
    pub(crate) missing: Vec<String>,
}

/// The function that every collection goes through; its second argument is the generation.
/// The incremental collector of early 3.14 has none, and falls to the next rung.
fn collector(version: Version) -> &'static str {
    match version.minor_pair() {
        (3, 8 | 9) => "collect",
        _ => "gc_collect_main",
    }
}

pub(crate) fn probes(image: &Image<'_>, debug: Option<&Image<'_>>, version: Version) -> Probes {
    let segments = image.segments();
    let mut probes = Probes::default();
    match usdt(image, &segments) {
        Some(rung) => probes.rungs.push(rung),
        None => probes.missing.push(
            "no USDT: the interpreter was built without --with-dtrace \
             (.note.stapsdt has no python:gc__start and gc__done)"
                .into(),
        ),
    }
    match symbol(image, debug, &segments, version) {
        Ok(rung) => probes.rungs.push(rung),
        Err(why) => probes.missing.push(why),
    }
    probes
}

fn symbol(
    image: &Image<'_>,
    debug: Option<&Image<'_>>,
    segments: &[Segment],
    version: Version,
) -> Result<GcRung, String> {
    let source = [Some(image), debug].into_iter().flatten().find(|image| image.has_symtab());
    let Some(source) = source else {
        return Err("no symbol: the binary is stripped and its debug file is not installed".into());
    };
    let base = collector(version);
    let mut found = source.symbols(".symtab", |name| is_function(name, base));
    found.retain(|symbol| symbol.is_function);
    // `collect` is a common name: where files are named, it must be the collector's own.
    if found.iter().any(in_collector) {
        found.retain(in_collector);
    } else if found.iter().filter(|symbol| symbol.name == base).count() > 1 {
        return Err(format!("no symbol: several functions are named {base}"));
    }
    let function = |symbol: Symbol| {
        let file_offset = file_offset(segments, symbol.address)?;
        let endbr64 = image.bytes_at(symbol.address, 4)? == [0xf3, 0x0f, 0x1e, 0xfa];
        Some(GcFunction { name: symbol.name, file_offset, endbr64 })
    };
    let functions: Vec<_> = found.into_iter().filter_map(function).collect();
    if functions.is_empty() {
        return Err(format!("no symbol: {base} is not in the symbol table (inlined?)"));
    }
    let whole = functions.iter().all(|function| keeps_arguments(&function.name, base));
    Ok(GcRung::Symbol {
        functions,
        generation_argument: whole.then_some(1),
        returns_collected: true,
    })
}

fn in_collector(symbol: &Symbol) -> bool {
    ["gcmodule.c", "gc.c"].iter().any(|file| symbol.source.ends_with(file))
}

/// `base` itself, or a compiler's clone of the whole of it. `.cold` and `.part` are pieces.
fn is_function(name: &str, base: &str) -> bool {
    let Some(suffix) = name.strip_prefix(base) else { return false };
    suffix.is_empty()
        || [".constprop", ".isra", ".lto_priv", ".llvm"].iter().any(|&clone| {
            suffix.starts_with(clone) && !suffix.contains(".cold") && !suffix.contains(".part")
        })
}

/// Link-time optimisation renames (`.lto_priv.0`); other clones may have lost arguments.
fn keeps_arguments(name: &str, base: &str) -> bool {
    let suffix = name.strip_prefix(base).unwrap_or(name);
    suffix.is_empty()
        || suffix
            .strip_prefix(".lto_priv.")
            .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
}

fn usdt(image: &Image<'_>, segments: &[Segment]) -> Option<GcRung> {
    let base = image.section_address(".stapsdt.base");
    let mut start = UsdtProbe { name: "gc__start".into(), locations: Vec::new() };
    let mut done = UsdtProbe { name: "gc__done".into(), locations: Vec::new() };
    for (owner, _, note) in image.notes(".note.stapsdt") {
        if !owner.starts_with(b"stapsdt") || note.len() < 24 {
            continue;
        }
        let texts = String::from_utf8_lossy(note.get(24..).unwrap_or_default()).into_owned();
        let mut texts = texts.split('\0');
        let (Some("python"), Some(name), Some(arguments)) =
            (texts.next(), texts.next(), texts.next())
        else {
            continue;
        };
        let probe = match name {
            "gc__start" => &mut start,
            "gc__done" => &mut done,
            _ => continue,
        };
        // The note keeps the addresses of link time; prelink moves the section but not the note.
        let moved = base.map_or(0, |base| base.wrapping_sub(word(&note, 8)));
        let semaphore = match word(&note, 16) {
            0 => 0,
            address => elf::file_offset(segments, address.wrapping_add(moved))?,
        };
        probe.locations.push(UsdtLocation {
            file_offset: file_offset(segments, word(&note, 0).wrapping_add(moved))?,
            semaphore_offset: semaphore,
            arguments: arguments.into(),
        });
    }
    let complete = !start.locations.is_empty() && !done.locations.is_empty();
    complete.then_some(GcRung::Usdt { provider: "python", start, done })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_count_and_pieces_do_not() {
        for name in ["collect", "collect.constprop.0", "collect.isra.0.constprop.1"] {
            assert!(is_function(name, "collect"), "{name}");
        }
        assert!(keeps_arguments("collect", "collect"));
        assert!(keeps_arguments("collect.lto_priv.0", "collect"));
        assert!(!keeps_arguments("collect.constprop.0", "collect"));
        assert!(!keeps_arguments("collect.lto_priv.0.constprop.0", "collect"));
        for name in ["collect.cold", "collect.constprop.0.cold", "collect.part.0", "collector"] {
            assert!(!is_function(name, "collect"), "{name}");
        }
    }
}
