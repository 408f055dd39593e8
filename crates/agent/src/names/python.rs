//! Python's names for the threads of a process, read from outside.

use std::collections::HashMap;

use procfs::process::Process;
use underspan_cpython::{InspectError, Inspector, Interpreter};

use crate::select::runs_python;

/// What a reading of a process gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The names `threading` knows, by thread as the host sees it.
    Names(Vec<(u32, String)>),
    /// Not now: it is starting, or its memory changed while it was read.
    Later,
    /// It runs no Python that can be read.
    NotPython,
}

/// Something that reads Python's thread names: [`PythonReader`].
pub trait ReadNames {
    /// Reads all thread names of a process.
    fn read(&mut self, pid: u32) -> Reading;
    /// The process has ended or is another one now.
    fn forget(&mut self, pid: u32);
}

/// Reads names through the process's memory. Remembers the interpreters it found.
#[derive(Debug, Default)]
pub struct PythonReader {
    inspector: Inspector,
    interpreters: HashMap<u32, Interpreter>,
}

impl PythonReader {
    fn interpreter(&mut self, pid: u32) -> Result<&Interpreter, InspectError> {
        if !self.interpreters.contains_key(&pid) {
            let signed = i32::try_from(pid).map_err(|_| InspectError::Gone)?;
            // A cheap look first: an inspection reads whole binaries.
            let process = Process::new(signed).map_err(|_| InspectError::Gone)?;
            let exe = process.exe().map_err(|_| InspectError::Gone)?;
            if !runs_python(&process, &exe) {
                return Err(InspectError::NotPython);
            }
            let found = self.inspector.inspect(signed)?;
            self.interpreters.insert(pid, found);
        }
        self.interpreters.get(&pid).ok_or(InspectError::Gone)
    }
}

impl ReadNames for PythonReader {
    fn read(&mut self, pid: u32) -> Reading {
        match self.interpreter(pid).and_then(Interpreter::thread_names) {
            Ok(names) => Reading::Names(
                names.into_iter().filter_map(|thread| Some((thread.tid?, thread.name))).collect(),
            ),
            Err(InspectError::NotPython | InspectError::Unsupported { .. }) => Reading::NotPython,
            Err(error) => {
                tracing::debug!(pid, "thread names not read: {error}");
                // It may have become another program.
                self.interpreters.remove(&pid);
                Reading::Later
            }
        }
    }

    fn forget(&mut self, pid: u32) {
        self.interpreters.remove(&pid);
    }
}
