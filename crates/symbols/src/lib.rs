//! Names for the addresses in stacks, and one order for their kernel, native and Python frames.
//!
//! ```text
//!  RawStack ─┬─ kernel ─▶ /proc/kallsyms ──────────────────────────────┐
//!            ├─ native ─▶ /proc/PID/maps ─▶ file ─▶ ELF, DWARF, Go ──┐ ├─▶ model::Stack
//!            └─ Python ─▶ code objects (crate cpython) ─▶ interleave ◀┘
//! ```
//!
//! All of it is slow beside taking a stack (measured once: 50 ms for a first look into a large
//! binary): run it on a thread of its own.

mod binaries;
mod binary;
mod debug_file;
mod evaluator;
mod function_name;
mod gopclntab;
mod heap;
mod image;
mod interleave;
mod kallsyms;
mod mappings;
mod perf_map;
mod plumbing;
mod process;
mod python;
mod reader;
mod symbolizer;
mod tail_calls;
mod vdso;

pub use heap::Counting;
pub use kallsyms::Kallsyms;
pub use process::Incarnation;
pub use symbolizer::Symbolizer;

/// The module of code that a JIT compiler made.
pub(crate) const JIT: &str = "[jit]";
/// The module of the kernel's library in every process.
pub(crate) const VDSO: &str = "[vdso]";

#[cfg(test)]
#[global_allocator]
static HEAP: Counting = Counting;
