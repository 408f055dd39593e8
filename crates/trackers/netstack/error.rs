//! Why packets cannot be timed.

use std::path::PathBuf;

/// Why packets cannot be timed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The programs could not be loaded or read.
    #[error(transparent)]
    Session(#[from] crate::Error),
    /// A namespace cannot be entered.
    #[error(
        "cannot enter the network namespace {}: {source} (give a name that `ip netns` lists, or a \
         file such as /proc/PID/ns/net)",
        path.display()
    )]
    Namespace {
        /// Its file.
        path: PathBuf,
        /// What the kernel says.
        source: std::io::Error,
    },
    /// No such interface.
    #[error("there is no interface {name}; there are: {known}")]
    Interface {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// No such cgroup.
    #[error("cgroup {name}: {why}")]
    Cgroup {
        /// What was asked for.
        name: String,
        /// Why it was not found.
        why: String,
    },
    /// Too much was asked for.
    #[error("{what}: at most {most} can be given")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        most: usize,
    },
    /// The kernel would not stamp packets, or tell the time.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the kernel says.
        source: nix::Error,
    },
}

pub(super) type Result<T> = std::result::Result<T, Error>;
