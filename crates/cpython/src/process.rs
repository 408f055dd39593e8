//! What `/proc` says of a process: its mappings, its threads, its namespace.

use std::collections::HashMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use crate::InspectError;

/// One file mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) offset: u64,
    pub(crate) inode: u64,
    /// As the process sees it, without the ` (deleted)` the kernel appends.
    pub(crate) path: String,
    pub(crate) deleted: bool,
}

/// A process, by its id in our namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
}

impl Process {
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.pid))
    }

    pub(crate) fn read(&self, name: &str) -> Result<Vec<u8>, InspectError> {
        fs::read(self.file(name)).map_err(|error| self.explain(name, error))
    }

    /// A missing file means that the process has ended, unless it is a kernel thread.
    pub(crate) fn explain(&self, name: &str, error: io::Error) -> InspectError {
        match error.kind() {
            ErrorKind::NotFound if self.has_ended() => InspectError::Gone,
            ErrorKind::NotFound if name == "exe" => InspectError::NotPython,
            _ => InspectError::io(self.file(name).display().to_string(), error),
        }
    }

    /// Whether it no longer runs: it is not there, is a zombie, or is about to be one.
    pub(crate) fn has_ended(&self) -> bool {
        const PF_EXITING: u64 = 4;
        let Ok(stat) = fs::read_to_string(self.file("stat")) else { return true };
        // The state follows the name, which may itself hold parentheses.
        let Some((_, rest)) = stat.rsplit_once(')') else { return true };
        let mut fields = rest.split_whitespace();
        let ended = matches!(fields.next(), None | Some("Z" | "X"));
        let flags = fields.nth(5).and_then(|flags| flags.parse().ok());
        ended || flags.is_none_or(|flags: u64| flags & PF_EXITING != 0)
    }

    /// When it started, in clock ticks since boot: with its id, this names it for good.
    pub(crate) fn started(&self) -> Option<u64> {
        // The thread's own file: the process's adds up what all its threads have used.
        let stat = fs::read_to_string(self.file(&format!("task/{}/stat", self.pid))).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        rest.split_whitespace().nth(19)?.parse().ok()
    }

    /// Its file mappings, in address order.
    pub(crate) fn mappings(&self) -> Result<Vec<Mapping>, InspectError> {
        let text = self.read("maps")?;
        Ok(String::from_utf8_lossy(&text).lines().filter_map(parse_mapping).collect())
    }

    /// Its threads: id in the process's own pid namespace → id in ours.
    pub(crate) fn threads(&self) -> Result<HashMap<u32, u32>, InspectError> {
        let entries = fs::read_dir(self.file("task"));
        let entries = entries.map_err(|error| self.explain("task", error))?;
        let tids: Vec<u32> =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
        if self.shares_our_pid_namespace() {
            return Ok(tids.into_iter().map(|tid| (tid, tid)).collect());
        }
        let inner = |tid: u32| {
            let status = fs::read_to_string(self.file(&format!("task/{tid}/status"))).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
            line.split_whitespace().next_back()?.parse().ok()
        };
        Ok(tids.into_iter().map(|tid| (inner(tid).unwrap_or(tid), tid)).collect())
    }

    /// Whether `tid`, as the process sees it, is one of its threads. Cheaper than to list them all.
    pub(crate) fn has_thread(&self, tid: u32) -> bool {
        if self.shares_our_pid_namespace() {
            return self.file(&format!("task/{tid}")).exists();
        }
        self.threads().is_ok_and(|threads| threads.contains_key(&tid))
    }

    /// The parent's id, 0 when it is unknown.
    pub(crate) fn parent(&self) -> i32 {
        let status = fs::read_to_string(self.file("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        line.and_then(|line| line.trim().parse().ok()).unwrap_or(0)
    }

    fn shares_our_pid_namespace(&self) -> bool {
        match (fs::read_link("/proc/self/ns/pid"), fs::read_link(self.file("ns/pid"))) {
            (Ok(ours), Ok(theirs)) => ours == theirs,
            _ => false,
        }
    }
}

/// `start-end perms offset dev inode path`
fn parse_mapping(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        let (word, tail) = rest.trim_start().split_once(' ')?;
        rest = tail;
        Some(word)
    };
    let (start, end) = field()?.split_once('-')?;
    let _perms = field()?;
    let offset = field()?;
    let _device = field()?;
    let inode = field()?;
    let path = rest.trim_start();
    if !path.starts_with('/') {
        return None;
    }
    let (path, deleted) = match path.strip_suffix(" (deleted)") {
        Some(path) => (path, true),
        None => (path, false),
    };
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        offset: u64::from_str_radix(offset, 16).ok()?,
        inode: inode.parse().ok()?,
        path: path.to_owned(),
        deleted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_files_only() {
        let line = "7f0000001000-7f0000003000 r-xp 00001000 fe:00 1234   /opt/a b/libpython3.8.so";
        let mapping = parse_mapping(line).unwrap();
        assert_eq!((mapping.start, mapping.end), (0x7f00_0000_1000, 0x7f00_0000_3000));
        assert_eq!((mapping.offset, mapping.inode), (0x1000, 1234));
        assert_eq!(mapping.path, "/opt/a b/libpython3.8.so");
        assert!(parse_mapping("7f0000001000-7f0000003000 rw-p 00000000 00:00 0 ").is_none());
        assert!(parse_mapping("7f0000001000-7f0000003000 rw-p 00000000 00:00 0 [heap]").is_none());
        assert!(parse_mapping("").is_none());
    }

    #[test]
    fn deleted_files_are_recognised() {
        let line = "400000-401000 r--p 00000000 fe:00 9 /usr/bin/python3.11 (deleted)";
        let mapping = parse_mapping(line).unwrap();
        assert_eq!((mapping.path.as_str(), mapping.deleted), ("/usr/bin/python3.11", true));
    }

    #[test]
    fn our_own_threads_are_ourselves() {
        let own = Process { pid: std::process::id() as i32 };
        assert_eq!(own.threads().unwrap().get(&std::process::id()), Some(&std::process::id()));
        assert!(!own.has_ended());
        assert!(Process { pid: i32::MAX }.has_ended());
    }
}
