//! What one binary file says about the interpreter in it. Read once, kept for all processes.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use object::ReadCache;

use crate::elf::{Image, Segment, damaged};
use crate::gc::{self, Probes};
use crate::{InspectError, Version};

/// The facts of one binary file.
#[derive(Debug)]
pub(crate) struct BinaryFacts {
    pub(crate) segments: Vec<Segment>,
    pub(crate) build_id: Option<String>,
    pub(crate) stripped: bool,
    /// Its interpreter, if there is one in it.
    pub(crate) interpreter: Option<InterpreterFacts>,
    /// It needs a libpython: the interpreter is there, once the loader has mapped it.
    pub(crate) needs_libpython: bool,
    /// Which C library it runs on.
    pub(crate) musl: bool,
}

/// What the file says of its interpreter.
#[derive(Debug)]
pub(crate) struct InterpreterFacts {
    pub(crate) version: Version,
    /// Virtual address of `_PyRuntime`; versions before 3.7 have none.
    pub(crate) runtime: Option<u64>,
    pub(crate) probes: Probes,
}

/// The symbols that tell an interpreter.
const SYMBOLS: [&str; 3] = ["_PyRuntime", "Py_Version", "Py_GetVersion"];

impl BinaryFacts {
    /// Reads `file`. `name` is its path as the process sees it, `roots` where debug files may be.
    pub(crate) fn read(mut file: File, name: &str, roots: &[&Path]) -> Result<Self, InspectError> {
        let path = Path::new(name);
        let mut magic = [0; 4];
        match file.read_exact(&mut magic) {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                return Err(InspectError::io(name, error));
            }
            Ok(()) if &magic == b"\x7fELF" => {}
            _ => return Err(damaged(path, "not an ELF file")),
        }
        let cache = ReadCache::new(file);
        let image = Image::parse(&cache).ok_or_else(|| damaged(path, "not a 64-bit ELF file"))?;
        let needed = image.needed();
        let loader = image.loader().unwrap_or_default();
        let build_id = image.build_id();
        Ok(BinaryFacts {
            segments: image.segments(),
            stripped: !image.has_symtab(),
            interpreter: interpreter(&image, name, build_id.as_deref(), roots),
            needs_libpython: needed.iter().any(|library| library.starts_with("libpython")),
            musl: is_musl(&loader, &needed),
            build_id: build_id.map(|id| hex(&id)),
        })
    }
}

fn is_musl(loader: &str, needed: &[String]) -> bool {
    loader.contains("ld-musl") || needed.iter().any(|library| library.contains("musl"))
}

fn interpreter(
    image: &Image<'_>,
    name: &str,
    build_id: Option<&[u8]>,
    roots: &[&Path],
) -> Option<InterpreterFacts> {
    let symbols = image.symbols(".dynsym", |name| SYMBOLS.contains(&name));
    let address = |wanted: &str| {
        symbols.iter().find(|symbol| symbol.name == wanted).map(|symbol| symbol.address)
    };
    let runtime = address("_PyRuntime").or_else(|| image.section_address(".PyRuntime"));
    if runtime.is_none() && address("Py_GetVersion").is_none() {
        return None;
    }
    let published = address("Py_Version")
        .and_then(|address| image.bytes_at(address, 8))
        .and_then(|bytes| Version::from_hex(crate::memory::word(&bytes, 0)));
    let version = published.or_else(|| written_version(image, name))?;
    let debug = build_id.and_then(|id| debug_file(id, roots)).map(ReadCache::new);
    let debug = debug.as_ref().and_then(Image::parse);
    let probes = gc::probes(image, debug.as_ref(), version);
    Some(InterpreterFacts { version, runtime, probes })
}

/// The separate debug file, by build id, as gdb looks for it.
fn debug_file(build_id: &[u8], roots: &[&Path]) -> Option<File> {
    let id = hex(build_id);
    let (first, rest) = id.split_at_checked(2)?;
    let name = format!("usr/lib/debug/.build-id/{first}/{rest}.debug");
    roots.iter().find_map(|root| File::open(root.join(&name)).ok())
}

/// Before 3.11 the version is not published: it is the constant `PY_VERSION`, among the strings.
/// The file's own name decides between several.
fn written_version(image: &Image<'_>, name: &str) -> Option<Version> {
    let data = image.section(".rodata")?;
    let named = named_version(name);
    let mut found: Vec<Version> = data
        .split(|&byte| byte == 0)
        .filter_map(version_at_end)
        // Other libraries may be linked in, with versions of their own.
        .filter(|version| matches!(version.minor_pair(), (2, 7) | (3, 0..=10)))
        .filter(|version| named.is_none_or(|named| version.minor_pair() == named))
        .collect();
    found.sort();
    found.dedup();
    match (found.as_slice(), named) {
        (&[only], _) => Some(only),
        (_, Some((major, minor))) => Some(Version::new(major, minor, 0)),
        _ => None,
    }
}

/// Linkers merge a string into another that ends with it: `3.8.18` into `/opt/python/3.8.18`.
fn version_at_end(string: &[u8]) -> Option<Version> {
    let part = |byte: &u8| byte.is_ascii_digit() || b".+abcr".contains(byte);
    let start = string.iter().rposition(|byte| !part(byte)).map_or(0, |before| before + 1);
    let end = string.get(start..)?;
    if end.len() > 10 {
        return None;
    }
    Version::parse(std::str::from_utf8(end).ok()?)
}

/// `libpython3.8.so.1.0`, `python3.8` → (3, 8)
fn named_version(path: &str) -> Option<(u8, u8)> {
    let file = path.rsplit('/').next()?;
    let rest = file.strip_prefix("lib").unwrap_or(file).strip_prefix("python")?;
    let (major, rest) = rest.split_once('.')?;
    let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_a_version() {
        assert_eq!(named_version("/usr/lib/libpython3.8.so.1.0"), Some((3, 8)));
        assert_eq!(named_version("/usr/bin/python3.10"), Some((3, 10)));
        assert_eq!(named_version("/x/libpython3.6m.so.1.0"), Some((3, 6)));
        assert_eq!(named_version("/usr/bin/python3"), None);
        assert_eq!(named_version("/usr/bin/perl"), None);
    }

    #[test]
    fn musl_is_told_from_glibc() {
        assert!(is_musl("/lib/ld-musl-x86_64.so.1", &[]));
        assert!(is_musl("", &["libc.musl-x86_64.so.1".into()]));
        assert!(!is_musl("/lib64/ld-linux-x86-64.so.2", &["libc.so.6".into()]));
    }

    #[test]
    fn versions_are_found_at_the_end_of_strings() {
        assert_eq!(version_at_end(b"3.8.18"), Some(Version::new(3, 8, 18)));
        assert_eq!(version_at_end(b"/opt/python/3.8.18"), Some(Version::new(3, 8, 18)));
        assert_eq!(version_at_end(b"3.8.18 "), None);
        assert_eq!(version_at_end(b""), None);
    }

    #[test]
    fn a_file_that_is_no_binary_is_an_error_in_words() {
        let file = File::open("/proc/self/maps").unwrap();
        let error = BinaryFacts::read(file, "/bin/script", &[]).unwrap_err();
        assert!(error.to_string().contains("not an ELF file"), "{error}");
    }
}
