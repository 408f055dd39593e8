//! The agent: which processes to watch, what their threads are called, and how rows reach the store.
//!
//! Each module has one responsibility; none of them knows of BPF programs or of a tracker's events.

mod agent;
mod clock;
mod cost;
mod drop_privileges;
mod error;
mod goroutines;
mod host;
mod live;
mod loops;
mod losses;
mod metrics;
mod namer;
mod names;
mod ongoing;
mod priority;
mod process_row;
mod processes;
mod python_stacks;
pub mod rows;
mod select;
mod sink;
mod spool;
mod stacks;

/// To be named in [`DropOptions::also_keep`].
pub use caps::Capability;

pub use agent::{Agent, Options};
pub use clock::{Clock, Step, monotonic_ns, unix_ns};
pub use cost::{
    BpfPrograms, BpfStats, Budget, Excess, Meter, ProgramCost, Usage, Verdict as BudgetVerdict,
};
pub use drop_privileges::{
    DEFAULT_USER, NEEDED as NEEDED_CAPABILITIES, Options as DropOptions, Outcome as DropOutcome,
    drop_privileges, let_children_read,
};
pub use error::{Error, OpenError, Result};
pub use goroutines::goroutines;
pub use live::{Live, LiveOptions};
pub use losses::{Loss, Losses, Reason};
pub use metrics::Metrics;
pub use names::{Names, PythonReader, ReadNames, Reading, ThreadName};
pub use processes::{Python, Watched};
pub use python_stacks::PythonStacks;
pub use select::{CgroupPath, Ignored, Selection, Selector, Verdict, Why, comm_pattern};
pub use sink::{
    Collector, Flusher, Health, Insert, InsertError, Options as SinkOptions, Sink,
    Stats as SinkStats,
};
pub use spool::{DEFAULT_MAX_BYTES as SPOOL_MAX_BYTES, Options as SpoolOptions, Rejected, Spool};
