//! Which of a process's files may hold its interpreter, and where they are mapped.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::InspectError;
use crate::binary::BinaryFacts;
use crate::elf::Segment;
use crate::interpreter::BinaryKind;
use crate::process::{Mapping, Process};

/// A candidate: a file that is mapped, and could hold the interpreter.
pub(crate) struct Candidate {
    pub(crate) kind: BinaryKind,
    pub(crate) path: PathBuf,
    pub(crate) mapped_path: String,
}

/// The executable, then every mapped `libpython`.
pub(crate) fn candidates(
    process: Process,
    mappings: &[Mapping],
) -> Result<Vec<Candidate>, InspectError> {
    let exe = fs::read_link(process.file("exe")).map_err(|error| process.explain("exe", error))?;
    let exe = exe.to_string_lossy().into_owned();
    let exe = exe.strip_suffix(" (deleted)").unwrap_or(&exe).to_owned();
    let mut found: Vec<Candidate> = Vec::new();
    for mapping in mappings {
        let name = mapping.path.rsplit('/').next().unwrap_or_default();
        if !name.starts_with("libpython")
            || mapping.path == exe
            || found.iter().any(|candidate| candidate.mapped_path == mapping.path)
        {
            continue;
        }
        found.push(Candidate {
            kind: BinaryKind::Library,
            path: openable(process, mapping),
            mapped_path: mapping.path.clone(),
        });
    }
    let executable = mappings.iter().find(|mapping| mapping.path == exe);
    let path = executable
        .map(|mapping| openable(process, mapping))
        .filter(|path| path.starts_with(process.file("root")))
        .unwrap_or_else(|| process.file("exe"));
    found.insert(0, Candidate { kind: BinaryKind::Executable, path, mapped_path: exe });
    Ok(found)
}

/// A path that opens the very file that is mapped.
fn openable(process: Process, mapping: &Mapping) -> PathBuf {
    let mut path = process.file("root").into_os_string();
    path.push(&mapping.path);
    let path = PathBuf::from(path);
    let is_it = |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.ino() == mapping.inode);
    if !mapping.deleted && is_it(&path) {
        return path;
    }
    process.file(&format!("map_files/{:x}-{:x}", mapping.start, mapping.end))
}

/// Process address − virtual address, from any mapping of a loadable segment.
pub(crate) fn load_bias(mappings: &[Mapping], path: &str, facts: &BinaryFacts) -> Option<u64> {
    const PAGE: u64 = 4096;
    mappings.iter().filter(|mapping| mapping.path == path).find_map(|mapping| {
        let of = |segment: &&Segment| segment.offset / PAGE == mapping.offset / PAGE;
        let segment = facts.segments.iter().find(of)?;
        Some(mapping.start.wrapping_sub(segment.address / PAGE * PAGE))
    })
}
