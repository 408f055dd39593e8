//! What `/proc` says of a process: its executable, where that was loaded, its threads.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;

use crate::Error;

const PAGE: u64 = 4096;

/// A process, by its id in our namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(pub(crate) u32);

impl Process {
    fn path(self, name: &str) -> String {
        format!("/proc/{}/{name}", self.0)
    }

    /// The executable, also one that was deleted.
    pub(crate) fn executable(self) -> Result<File, Error> {
        File::open(self.path("exe")).map_err(|error| Error::io("the executable", error))
    }

    /// By how much the executable was moved when it was loaded: 0 unless it is position-independent.
    pub(crate) fn bias(self, segments: &[(u64, u64)]) -> Result<u64, Error> {
        let fail = |error: io::Error| Error::io("its mappings", error);
        let exe = fs::read_link(self.path("exe")).map_err(fail)?;
        let exe = exe.to_string_lossy();
        let maps = fs::read(self.path("maps")).map_err(fail)?;
        let page = |value: u64| value / PAGE * PAGE;
        for line in String::from_utf8_lossy(&maps).lines() {
            let Some((start, offset)) = mapping_of(line, &exe) else { continue };
            if let Some((address, _)) = segments.iter().find(|(_, at)| page(*at) == offset) {
                return Ok(start.wrapping_sub(page(*address)));
            }
        }
        Err(Error::NotReady("its executable is not mapped yet".into()))
    }

    /// Threads by the ids that the process itself uses.
    pub(crate) fn threads(self) -> HashMap<u32, u32> {
        let Ok(entries) = fs::read_dir(self.path("task")) else { return HashMap::new() };
        let tids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let shared = self.shares_our_pid_namespace();
        tids.map(|tid: u32| (if shared { tid } else { self.inner(tid) }, tid)).collect()
    }

    fn inner(self, tid: u32) -> u32 {
        let status = fs::read_to_string(self.path(&format!("task/{tid}/status")));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        line.and_then(|line| line.split_whitespace().next_back()?.parse().ok()).unwrap_or(tid)
    }

    fn shares_our_pid_namespace(self) -> bool {
        match (fs::read_link("/proc/self/ns/pid"), fs::read_link(self.path("ns/pid"))) {
            (Ok(ours), Ok(theirs)) => ours == theirs,
            _ => false,
        }
    }
}

/// Start and file offset of a mapping, if it is one of this file.
fn mapping_of(line: &str, file: &str) -> Option<(u64, u64)> {
    let path = line.get(line.find('/')?..)?;
    if path != file {
        return None;
    }
    let mut fields = line.split_whitespace();
    let (start, _) = fields.next()?.split_once('-')?;
    let offset = fields.nth(1)?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(offset, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::mapping_of;

    #[test]
    fn mappings_of_one_file() {
        let line = "00400000-0049e000 r-xp 00001000 fe:00 42                  /opt/a b/consumer";
        assert_eq!(mapping_of(line, "/opt/a b/consumer"), Some((0x40_0000, 0x1000)));
        assert_eq!(mapping_of(line, "/opt/a"), None);
        assert_eq!(mapping_of("7f00-7f01 rw-p 00000000 00:00 0 [heap]", "/x"), None);
    }
}
