//! Reads other processes' memory: what the readers of CPython and of Go's runtime share.
//!
//! The process is never stopped and nothing is written.

mod memory;

pub use memory::{Memory, ReadError, after, word};
