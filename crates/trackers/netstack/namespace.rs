//! Network namespaces: found, entered for a moment, and let go of when everybody else has.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};

use super::error::{Error, Result};

/// Where `ip netns add` keeps them.
const NAMED: &str = "/run/netns";

/// A network namespace, by a file that leads to it. It is not kept open: that would keep the
/// namespace alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// What tells it from others: the file's inode.
    pub inode: u32,
    /// A file that leads to it.
    pub path: PathBuf,
}

fn inode(path: &Path) -> io::Result<u32> {
    u32::try_from(fs::metadata(path)?.ino()).map_err(io::Error::other)
}

/// Whether it is a file of the kernel's for a namespace, and not one where such a file was mounted once.
fn is_namespace(path: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|file| file.dev()).ok();
    device(path).is_some_and(|dev| device(Path::new("/proc/self/ns/net")) == Some(dev))
}

impl Namespace {
    /// The caller's own.
    pub fn own() -> Result<Self> {
        Namespace::at(Path::new("/proc/self/ns/net"))
    }

    /// By a file such as `/proc/PID/ns/net`, or a name as `ip netns` knows it.
    ///
    /// # Errors
    /// If there is no such file, or it is not a network namespace.
    pub fn at(path: &Path) -> Result<Self> {
        let named = Path::new(NAMED).join(path);
        let path = if path.components().count() == 1 && !path.exists() { &named } else { path };
        let problem = |source| Error::Namespace { path: path.to_owned(), source };
        let namespace = Namespace { inode: inode(path).map_err(problem)?, path: path.to_owned() };
        // Any file has an inode; only a namespace can be entered.
        namespace.enter(|| ()).map_err(problem)?;
        Ok(namespace)
    }

    /// All that have a name or that a process is in, by inode.
    pub fn all() -> BTreeMap<u32, Namespace> {
        let mut found = BTreeMap::new();
        // A name leads to it for longer than a process does.
        for path in fs::read_dir(NAMED).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if let Some(inode) = inode(&path).ok().filter(|_| is_namespace(&path)) {
                found.insert(inode, Namespace { inode, path });
            }
        }
        let Ok(processes) = fs::read_dir("/proc") else { return found };
        for process in processes.flatten() {
            if !process.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
                continue;
            }
            let path = process.path().join("ns/net");
            if let Ok(inode) = inode(&path) {
                found.entry(inode).or_insert(Namespace { inode, path });
            }
        }
        found
    }

    /// Whether the file still leads to it.
    pub fn is_there(&self) -> bool {
        inode(&self.path).is_ok_and(|inode| inode == self.inode)
    }

    /// Runs something inside. It is a thread that goes there, so that the caller stays where it is.
    ///
    /// # Errors
    /// If the namespace is gone, or this process may not enter it.
    pub fn enter<T: Send>(&self, run: impl FnOnce() -> T + Send) -> io::Result<T> {
        if inode(Path::new("/proc/thread-self/ns/net"))? == self.inode {
            return Ok(run());
        }
        let there = || {
            setns(File::open(&self.path)?, CloneFlags::CLONE_NEWNET)?;
            Ok(run())
        };
        std::thread::scope(|scope| scope.spawn(there).join())
            .unwrap_or_else(|_| Err(io::Error::other("the thread that went there panicked")))
    }

    /// The interface's number.
    pub fn interface_index(&self, name: &str) -> Option<u32> {
        self.enter(|| nix::net::if_::if_nametoindex(name).ok()).ok().flatten()
    }

    /// Its interfaces' names by their numbers.
    pub fn interfaces(&self) -> BTreeMap<u32, String> {
        let list = || {
            let interfaces = nix::net::if_::if_nameindex().ok()?;
            let named = interfaces.iter().map(|interface| {
                (interface.index(), interface.name().to_string_lossy().into_owned())
            });
            Some(named.collect())
        };
        self.enter(list).ok().flatten().unwrap_or_default()
    }
}
