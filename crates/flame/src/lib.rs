//! Pictures of where time went: flame graphs, and what other viewers read.
//!
//! ```text
//!  samples ─▶ scale() to the ledger ─┬▶ Tree ─┬▶ svg, folded
//!                                    │        └▶ Diff of two ─▶ svg, folded, pprof
//!                                    └▶ pprof, speedscope
//!  samples, waits and requests in time ─▶ Firefox profiler, Perfetto
//! ```
//!
//! Pure: no I/O, no SQL, no clock.

pub mod diff;
pub mod firefox;
pub mod folded;
mod kind;
mod label;
pub mod perfetto;
pub mod pprof;
mod sample;
mod scale;
pub mod speedscope;
mod summary;
pub mod svg;
mod timeline;
mod tree;

pub use diff::{Diff, Per, Side};
pub use kind::{Kind, is_on_cpu};
pub use label::{Function, Label};
pub use sample::{Counters, Place, Sample, Thread};
pub use scale::{Cell, PERIOD_NS, Scaling, Totals, scale};
pub use summary::{Share, Summary, telling_function};
pub use timeline::{RequestSpan, Timeline, WaitSpan};
pub use tree::{Grouping, Node, ROOT, Tree};
