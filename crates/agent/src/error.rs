//! What can go wrong in the agent, with what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// An error of the agent's parts. None of them loses rows: those are counted where they are lost.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or directory of the agent could not be used.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried, as a verb: `open`, `write` …
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },

    /// Two agents may not share a spool: each would remove what the other still needs.
    #[error(
        "the spool directory {} is in use by another process ({owner}); \
         stop that process or choose another directory",
        path.display()
    )]
    SpoolInUse {
        /// The spool directory.
        path: PathBuf,
        /// `pid N`, or `pid not known`.
        owner: String,
    },

    /// A `--comm` pattern that is no glob.
    #[error("{pattern:?} is no process name or glob: {reason}; quote special characters as [*]")]
    Pattern {
        /// The pattern as given.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },

    /// A `--cgroup` path that cannot be one.
    #[error(
        "{path:?} is no cgroup path; give it as /proc/PID/cgroup shows it (/system.slice/web.service) \
         or as a directory below the cgroup file system"
    )]
    Cgroup {
        /// The path as given.
        path: String,
    },

    /// A system call failed.
    #[error("{call} failed: {source}{hint}")]
    System {
        /// The call.
        call: &'static str,
        /// The cause.
        source: io::Error,
        /// What to do, starting with `; `, or empty.
        hint: &'static str,
    },

    /// The user to run as does not exist.
    #[error("there is no user {user:?} to run as; create it, or keep root with --keep-root")]
    NoSuchUser {
        /// The user's name.
        user: String,
    },

    /// Credentials belong to a thread, so they can only be dropped while there is one.
    #[error("privileges must be dropped before other threads start, and {threads} are running")]
    TooManyThreads {
        /// How many threads the process has.
        threads: usize,
    },
}

impl Error {
    /// For `map_err` on file operations.
    pub(crate) fn file(
        action: &'static str,
        path: &Path,
    ) -> impl FnOnce(io::Error) -> Error + use<> {
        let path = path.to_owned();
        move |source| Error::File { action, path, source }
    }

    /// For `map_err` on system calls.
    pub(crate) fn system<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> Error {
        move |source| Error::System { call, source: source.into(), hint: "" }
    }
}

/// A result of the agent's parts.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the agent cannot run, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The trackers' side.
    #[error(transparent)]
    Trackers(#[from] underspan_trackers::Error),
    /// The receive stack's programs.
    #[error(transparent)]
    Netstack(#[from] underspan_trackers::netstack::Error),
    /// The agent's own.
    #[error(transparent)]
    Agent(#[from] Error),
}
