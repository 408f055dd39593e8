//! The answer to "watch this process?", with the reason.

use std::fmt;

/// Whether to watch a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Watch it.
    Watch {
        /// What speaks for it.
        why: Why,
    },
    /// Leave it alone.
    Ignore {
        /// What speaks against it.
        why: Ignored,
    },
}

/// What speaks for watching a process; at least one is true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Why {
    /// The user named it.
    pub named: bool,
    /// It runs Python.
    pub python: bool,
    /// It listens on TCP.
    pub tcp: bool,
    /// It runs Python and listens on a Unix stream socket.
    pub unix: bool,
}

/// The text of the column `why` of the table `processes`.
impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = [
            (self.named, "selected"),
            (self.python, "runs python"),
            (self.tcp, "accepts tcp"),
            (self.unix, "accepts unix"),
        ];
        let reasons: Vec<_> = reasons.iter().filter(|(is, _)| *is).map(|(_, text)| *text).collect();
        f.write_str(&reasons.join(", "))
    }
}

/// Why a process is not watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Ignored {
    /// It is Underspan itself or a helper of it.
    #[error("it belongs to underspan")]
    Underspan,
    /// It is a kernel thread.
    #[error("it is a kernel thread")]
    KernelThread,
    /// There is no such process (any more).
    #[error("there is no such process")]
    Gone,
    /// Its `/proc` entry cannot be read.
    #[error("it may not be read; run as root")]
    Unreadable,
    /// Processes were named, and it is none of them.
    #[error("--pid, --comm, --cgroup or the command's process tree leave it out")]
    NotSelected,
    /// It is neither of what is watched by default.
    #[error("it neither runs Python nor accepts TCP connections; name it with --pid to watch it")]
    NeitherPythonNorServer,
}
