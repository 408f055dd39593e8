//! The nouns of Underspan: states, ledgers, and the rows that describe what was seen.
//!
//! Nothing here knows of BPF, HTTP or SQL.

mod idle;
mod ledger;
mod network;
mod path;
mod rows;
mod sample;
mod stack;
mod state;
mod telling;

pub use idle::{Idle, idle, idle_goroutine};
pub use ledger::{Ledger, column};
pub use network::{HostCounter, PacketAges, TcpAccept, TcpConnect, TcpListener, TcpLoss};
pub use path::{Blocked, Step, StepKind, Waits};
pub use rows::{GcPause, GilWait, LostEvents, Request, Span, ThreadStates, Wait};
pub use sample::{LoopStall, ONGOING_AGAIN_NS, PathStep, Sample};
pub use stack::{Frame, FrameKind, Stack, StackEnd};
pub use state::{Class, STATES, State};
pub use telling::{Code, most_telling};
