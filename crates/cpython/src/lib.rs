//! Looks into another process's CPython from outside: version, GIL, collector, thread names.
//!
//! The process is never stopped and nothing is written. What is read passes a self-check before it
//! is handed out; what does not fit is refused, with the reason in words.
//!
//! ```no_run
//! # fn main() -> Result<(), underspan_cpython::InspectError> {
//! let mut inspector = underspan_cpython::Inspector::new();
//! let python = inspector.inspect(4711)?;
//! println!("CPython {}, GIL at {:#x}", python.version, python.gil);
//! for thread in python.thread_names()? {
//!     println!("{:?} {}", thread.tid, thread.name);
//! }
//! # Ok(())
//! # }
//! ```

mod binary;
mod candidates;
mod check;
pub mod code;
#[cfg(test)]
mod distorted;
#[cfg(test)]
extern crate self as underspan_cpython;
mod elf;
mod error;
mod frames;
mod gc;
mod inspector;
mod interpreter;
mod layout;
mod memory;
mod names;
mod object;
mod process;
mod pthread;
mod version;

pub use error::InspectError;
pub use frames::{
    CodeLayout, EntryMark, FrameFacts, FrameLayout, Instruction, RawFrame, RawFrames, ThreadList,
};
pub use gc::{GcFunction, GcRung, UsdtLocation, UsdtProbe};
pub use inspector::Inspector;
pub use interpreter::{Binary, BinaryKind, GcFacts, GenerationStats, GilLayout, Interpreter, Libc};
pub use names::{ThreadName, thread_names};
pub use pthread::pthread_tid;
pub use version::{Level, Version};

/// The interpreter of process `pid`. To look at more than one process, keep an [`Inspector`].
pub fn inspect(pid: i32) -> Result<Interpreter, InspectError> {
    Inspector::new().inspect(pid)
}
