//! Why there is no table.

use std::path::PathBuf;

/// Why there is no table for a binary, or no list of a process's mappings.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process has ended.
    #[error("the process has ended")]
    Gone,
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Not a file that this crate knows.
    #[error("it is no 64-bit little-endian ELF file: {0}")]
    NotElf(#[from] object::Error),
    /// It was built without unwind tables.
    #[error(
        "it has no .eh_frame: build it with -fasynchronous-unwind-tables, or with frame pointers"
    )]
    NoTable,
    /// It ends before its tables do.
    #[error("it is cut off: its unwind tables lie beyond its end")]
    CutOff,
    /// Its tables cannot be what they say.
    #[error("its .eh_frame is damaged: {0}")]
    Damaged(#[from] gimli::Error),
    /// More than is worth keeping.
    #[error("its .eh_frame of {bytes} bytes is larger than the {limit} that are read")]
    TooLarge {
        /// Size of the section.
        bytes: u64,
        /// What is read at most.
        limit: u64,
    },
    /// More than is worth keeping.
    #[error("it has more than {limit} rows")]
    TooManyRows {
        /// So many are kept at most.
        limit: usize,
    },
    /// Code that spans more than 4 GiB.
    #[error("its code spans more than 4 GiB")]
    TooWide,
}
