//! Why the embedded store does not run.

use std::path::PathBuf;
use std::time::Duration;

/// Why the embedded store does not run, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddedError {
    /// No Python was found that has the store host.
    #[error(
        "no Python with the embedded store was found; run: pip install 'underspan[store]'\n\
         (or set UNDERSPAN_PYTHON to a Python that has it, or use a ClickHouse server with \
         --store URL)\ntried:\n{}",
        .tried.join("\n")
    )]
    NoPython {
        /// Each Python that was tried, and why it will not do.
        tried: Vec<String>,
    },
    /// Another process holds the data folder.
    #[error("{0}")]
    FolderInUse(String),
    /// The folder's host is there and says nothing.
    #[error(
        "the embedded store of {folder} (process {pid}, {url}) did not answer within {after:?}: it may \
         be stopped or very busy; end that process, or choose another folder"
    )]
    NoAnswer {
        /// The folder.
        folder: PathBuf,
        /// The host.
        pid: i32,
        /// Where it should answer.
        url: String,
        /// How long it had.
        after: Duration,
    },
    /// Another process holds the port.
    #[error("the embedded store cannot start: {0}")]
    PortInUse(String),
    /// The host ended before it was ready.
    #[error("the embedded store did not start ({status}): {message}")]
    Failed {
        /// How it ended.
        status: String,
        /// The last lines it wrote.
        message: String,
    },
    /// The host is up but not ready.
    #[error("the embedded store was not ready after {0:?}: the disk may be very slow; try again")]
    NotReady(Duration),
    /// Its folder's files cannot be read.
    #[error(
        "cannot read {path}: {source}; run as the user that owns the store, or choose another \
         folder"
    )]
    Folder {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file does not say what it should.
    #[error("{path} is damaged ({reason}): remove it, and start the store again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The process could not be started or watched.
    #[error("cannot run the embedded store's Python: {0}")]
    Process(#[from] std::io::Error),
    /// No endpoint: nothing serves the folder.
    #[error("no embedded store runs on {0}: start one with `underspan up`")]
    NotRunning(PathBuf),
}
