//! Code objects of many processes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::{CodeError, CodeReader, Location};
use crate::Inspector;
use crate::process::Process;

/// Processes that are kept. Those that ended are forgotten first.
const KEPT: usize = 1024;
/// A process whose code objects are not where they were is inspected anew, but not more often.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Names the frames of any process, and remembers what it has read.
#[derive(Debug, Default)]
pub struct CodeNames {
    inspector: Inspector,
    readers: HashMap<i32, Entry>,
}

#[derive(Debug)]
struct Entry {
    /// When the process started, in ticks: ids are used again.
    started: u64,
    opened: Instant,
    reader: CodeReader,
}

impl CodeNames {
    /// With an empty memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// What the frame of process `pid` (in our pid namespace) runs whose code object stood at `code`,
    /// folded to `check`, at the instruction `lasti`, in bytes. The first call for a process takes a
    /// millisecond, the first for a code object some ten microseconds.
    pub fn locate(
        &mut self,
        pid: i32,
        code: u64,
        check: u32,
        lasti: u32,
    ) -> Result<Location, CodeError> {
        let started = Process { pid }.started();
        let entry = match self.readers.remove(&pid) {
            Some(entry) if started.is_none_or(|started| started == entry.started) => entry,
            _ => self.open(pid, started.unwrap_or(0))?,
        };
        // What was read of a process that has ended since is still true.
        let entry = self.readers.entry(pid).or_insert(entry);
        match entry.reader.locate(code, check, lasti) {
            Err(CodeError::Replaced) if entry.opened.elapsed() > LOOK_AGAIN => {}
            told => return told,
        }
        // It may have executed another program.
        let entry = self.open(pid, started.unwrap_or(0))?;
        self.readers.entry(pid).insert_entry(entry).into_mut().reader.locate(code, check, lasti)
    }

    /// Forgets a process: it has ended, or runs another program now.
    pub fn forget(&mut self, pid: i32) {
        self.readers.remove(&pid);
    }

    fn open(&mut self, pid: i32, started: u64) -> Result<Entry, CodeError> {
        let interpreter = self.inspector.inspect(pid)?;
        if self.readers.len() >= KEPT {
            self.readers.retain(|&pid, _| !Process { pid }.has_ended());
        }
        if self.readers.len() >= KEPT {
            self.readers.clear();
        }
        Ok(Entry { started, opened: Instant::now(), reader: CodeReader::new(&interpreter)? })
    }
}
