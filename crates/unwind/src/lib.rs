//! How to get from a frame to its caller's, for every instruction of a binary: what compilers write
//! into `.eh_frame`, reduced to what a BPF program can follow.
//!
//! ```text
//!  /proc/PID/maps ─▶ Mapping ─▶ file ─▶ Image ─▶ Functions, sorted ─▶ rows of (address, Rule), one by one
//! ```
//!
//! Only two registers are followed, the stack pointer and `rbp`, since only they are ever needed to
//! find a frame; the return address always lies just below the frame's CFA (the stack pointer before
//! the call).

mod error;
mod expression;
mod frames;
mod functions;
mod go;
mod headers;
mod image;
mod maps;
mod pages;
mod rule;
mod section;
mod table;

pub use error::Error;
pub use functions::Functions;
pub use image::{Identity, Image, Segment, address_of};
pub use maps::{Backing, Mapping, executable_mappings, open, read_memory};
pub use pages::ReadAt;
pub use rule::{Cfa, Rbp, Rule};
pub use table::{Coverage, Row, Table};
