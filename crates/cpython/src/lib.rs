//! Looks into another process's CPython from outside: version, GIL, collector, thread names.

mod binary;
mod candidates;
mod check;
#[cfg(test)]
mod distorted;
mod elf;
mod error;
mod gc;
mod inspector;
mod interpreter;
mod layout;
mod memory;
mod names;
mod process;
mod pthread;
mod version;

pub use error::InspectError;
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
