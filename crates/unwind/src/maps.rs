//! A process's executable mappings, and the files behind them.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use procfs::ProcError;
use procfs::process::{MMPermissions, MMapPath, Process};

use crate::Error;

/// What is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A file, by its path as the process sees it; it may be deleted.
    File(PathBuf),
    /// The kernel's own code for user space.
    Vdso,
    /// No file: a compiler's at run time, or a trampoline.
    Anonymous,
}

/// An executable mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address beyond it.
    pub end: u64,
    /// Where it begins in the file, bytes.
    pub offset: u64,
    /// With `inode`, the file's identity: major and minor device number.
    pub dev: (i32, i32),
    /// With `dev`, the file's identity; 0 if there is no file.
    pub inode: u64,
    /// What it is of.
    pub backing: Backing,
}

fn proc_error(error: ProcError, path: PathBuf) -> Error {
    match error {
        ProcError::NotFound(_) => Error::Gone,
        ProcError::Io(source, _) if source.raw_os_error() == Some(3) => Error::Gone,
        ProcError::Io(source, at) => Error::Io { path: at.unwrap_or(path), source },
        ProcError::PermissionDenied(_) => {
            Error::Io { path, source: std::io::ErrorKind::PermissionDenied.into() }
        }
        other => Error::Io { path, source: std::io::Error::other(other.to_string()) },
    }
}

/// The executable mappings of a process, in the order of their addresses.
///
/// # Errors
/// If the process has ended or may not be looked at.
pub fn executable_mappings(pid: u32) -> Result<Vec<Mapping>, Error> {
    let path = PathBuf::from(format!("/proc/{pid}/maps"));
    let id = i32::try_from(pid).map_err(|_| Error::Gone)?;
    let maps = Process::new(id).and_then(|process| process.maps());
    let maps = maps.map_err(|error| proc_error(error, path))?;
    let executable = |perms: MMPermissions| perms.contains(MMPermissions::EXECUTE);
    Ok(maps
        .into_iter()
        .filter(|map| executable(map.perms))
        .filter_map(|map| {
            let backing = match map.pathname {
                MMapPath::Path(path) => Backing::File(path),
                MMapPath::Vdso => Backing::Vdso,
                // The kernel emulates it: no user code runs there.
                MMapPath::Vsyscall => return None,
                _ if map.inode != 0 => Backing::File(PathBuf::new()),
                _ => Backing::Anonymous,
            };
            let (start, end) = map.address;
            Some(Mapping {
                start,
                end,
                offset: map.offset,
                dev: map.dev,
                inode: map.inode,
                backing,
            })
        })
        .collect())
}

/// Opens the file behind a mapping, though it be deleted or in another mount namespace.
///
/// # Errors
/// If neither `/proc/PID/map_files` (which needs `CAP_CHECKPOINT_RESTORE`) nor `/proc/PID/root`
/// leads to it.
pub fn open(pid: u32, mapping: &Mapping) -> Result<File, Error> {
    let link = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    let refused = match open_regular(Path::new(&link)) {
        Ok(file) => return Ok(file),
        Err(error) => error,
    };
    if let Backing::File(path) = &mapping.backing {
        let relative = path.strip_prefix("/").unwrap_or(path);
        let path = PathBuf::from(format!("/proc/{pid}/root")).join(relative);
        // Another file may be there by now. Device numbers are not compared: overlay file systems
        // have others in the list of mappings.
        if let Ok(file) = open_regular(&path)
            && file.metadata().is_ok_and(|meta| meta.ino() == mapping.inode)
        {
            return Ok(file);
        }
    }
    Err(Error::Io { path: link.into(), source: refused })
}

/// Devices can be mapped too, and to open one may have effects.
fn open_regular(path: &Path) -> std::io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("it is no regular file"));
    }
    File::open(path)
}

/// Copies a mapping out of a process's memory: for what is in no file.
///
/// # Errors
/// If it is gone, or larger than `limit` bytes.
pub fn read_memory(pid: u32, mapping: &Mapping, limit: u64) -> Result<Vec<u8>, Error> {
    let path = PathBuf::from(format!("/proc/{pid}/mem"));
    let bytes = mapping.end.saturating_sub(mapping.start);
    if bytes > limit {
        return Err(Error::TooLarge { bytes, limit });
    }
    let mut copy = vec![0; bytes as usize];
    File::open(&path)
        .and_then(|memory| memory.read_exact_at(&mut copy, mapping.start))
        .map_err(|source| Error::Io { path, source })?;
    Ok(copy)
}
