//! Looks into another process's Go runtime from outside: its goroutines, what they wait for, and
//! their stacks; and reads Go's function table, which stripped programs carry too.
//!
//! The process is never stopped and nothing is written. What is read passes a self-check before it
//! is handed out; what does not fit is refused, with the reason in words.
//!
//! ```no_run
//! # fn main() -> Result<(), underspan_golang::Error> {
//! let mut inspector = underspan_golang::Inspector::new();
//! let mut sampler = underspan_golang::Sampler::new(inspector.inspect(4711)?);
//! let round = sampler.round(1_000_000_000)?; // monotonic nanoseconds
//! for sample in &round.samples {
//!     println!("{} {} {}", sample.goid, sample.status.name(), sample.wait_reason);
//! }
//! # Ok(())
//! # }
//! ```

mod check;
mod cohort;
mod dwarf;
mod error;
mod functions;
mod goroutine;
mod image;
mod layout;
mod list;
mod module;
mod process;
mod reasons;
mod runtime;
mod sampler;
mod unwind;
mod version;

pub use error::Error;
pub use functions::{Functions, Location};
pub use goroutine::Status;
pub use runtime::{Inspector, Runtime, Source};
pub use sampler::{Round, Sample, Sampler};
pub use unwind::StackEnd;
pub use version::Version;
