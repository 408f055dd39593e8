//! Why a process's interpreter cannot be used.

use std::io;

use crate::Version;

/// Why a process's interpreter cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// Neither the executable nor a mapped `libpython` holds a CPython runtime.
    #[error("no CPython: neither the executable nor a mapped libpython holds an interpreter")]
    NotPython,
    /// There is an interpreter, but it is not running yet (or no longer).
    #[error("the interpreter is not ready: {0}; try again shortly")]
    NotReady(String),
    /// What memory holds does not fit the offsets for this version. Nothing is handed out.
    #[error(
        "self-check of {what} failed: expected {expected}, found {found}; \
         this interpreter was built differently from what is known of its version"
    )]
    SelfCheck {
        /// What was checked.
        what: &'static str,
        /// What would have been right.
        expected: String,
        /// What was there.
        found: String,
    },
    /// A version whose layout is not known, or a build that works differently.
    #[error("CPython {version} is not supported: {why}")]
    Unsupported {
        /// The version that was found; micro 0 when only the minor version is known.
        version: Version,
        /// What stands in the way.
        why: String,
    },
    /// The process has ended, or ended in the middle.
    #[error("the process has ended")]
    Gone,
    /// Its memory or files may not be read.
    #[error("not permitted to read the process; run as root or with CAP_SYS_PTRACE")]
    Permission,
    /// The binary is not a readable ELF file.
    #[error("cannot read the binary {path}: {why}")]
    Binary {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// Any other failure of the system.
    #[error("cannot read {what}: {source}")]
    Io {
        /// What was read.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl InspectError {
    /// Whether the same question may have another answer in a moment.
    pub fn is_transient(&self) -> bool {
        matches!(self, InspectError::NotReady(_))
    }

    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(nix::libc::ESRCH) => InspectError::Gone,
            Some(nix::libc::EPERM | nix::libc::EACCES) => InspectError::Permission,
            _ => InspectError::Io { what: what.into(), source },
        }
    }
}
