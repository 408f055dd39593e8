//! Why a process's Go runtime cannot be read.

use std::io;

use underspan_remote::ReadError;

use crate::Version;

/// Why a process's goroutines, or a file's functions, cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The executable was not made by Go.
    #[error("not a Go program: the executable has no .go.buildinfo section")]
    NotGo,
    /// The program is starting: its runtime has no goroutines yet.
    #[error("the Go runtime is not ready: {0}; try again shortly")]
    NotReady(String),
    /// A version whose structures are not known, and no DWARF to tell them.
    #[error(
        "{version} is not known here (known: Go 1.19 to 1.26) and the executable has no DWARF; \
         build without -ldflags -w, or update Underspan"
    )]
    UnknownVersion {
        /// What the build information says.
        version: Version,
    },
    /// What memory holds does not fit the offsets. Nothing is handed out.
    #[error(
        "self-check of {what} failed: expected {expected}, found {found}; this program was built \
         differently from what is known of its Go version, so its goroutines are not read"
    )]
    SelfCheck {
        /// What was checked.
        what: &'static str,
        /// What would have been right.
        expected: &'static str,
        /// What was there.
        found: String,
    },
    /// There is no symbol table, and the list of goroutines was not found without.
    #[error(
        "the list of goroutines was not found: the executable has no symbols, and {0}; \
         build without -ldflags -s to have them"
    )]
    NoList(&'static str),
    /// The process has ended, or ended in the middle.
    #[error("the process has ended")]
    Gone,
    /// Its memory or files may not be read.
    #[error("not permitted to read the process; run as root or with CAP_SYS_PTRACE")]
    Permission,
    /// The executable is damaged, or has been made in a way that is not known.
    #[error("cannot read the executable: {0}")]
    Binary(String),
    /// Any other failure of the system.
    #[error("cannot read {what}: {source}")]
    Io {
        /// What was read.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    /// Whether the same question may have another answer in a moment.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::NotReady(_))
    }

    pub(crate) fn io(what: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(nix::libc::ESRCH | nix::libc::ENOENT) => Error::Gone,
            Some(nix::libc::EPERM | nix::libc::EACCES) => Error::Permission,
            _ => Error::Io { what, source },
        }
    }

    pub(crate) fn damaged(why: impl ToString) -> Self {
        Error::Binary(why.to_string())
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Gone => Error::Gone,
            ReadError::Fault(address) => Error::SelfCheck {
                what: "pointers",
                expected: "mapped memory",
                found: format!("nothing at {address:#x}"),
            },
            ReadError::Other(errno) => Error::io("process memory", io::Error::from(errno)),
        }
    }
}
