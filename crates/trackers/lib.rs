//! Trackers: each answers one question about where time goes.
//!
//! ```text
//!  open ──▶ load ──▶ attach ──▶ watch(pid) ──▶ drain ──▶ decode ──▶ rows
//!  (hooks chosen by what this kernel has)       │ ring     │ one decoder per tracker
//!                                               └ map of ledgers, once a second
//! ```
//!
//! A tracker is one folder (BPF programs, records, decoder, table, README, tests) and one line in
//! [`ALL`]. Everything that lists trackers (tables, doctor, metrics, docs) goes through `ALL`.

mod context;
mod hook;
mod observe;
mod preempt;
mod record;
mod refusal;
mod rows;
mod session;

#[path = "loop/mod.rs"]
pub mod event_loop;
pub mod gc;
pub mod gil;
pub mod goroutine;
pub mod ledger;
pub mod netstack;
pub mod offcpu;
pub mod oncpu;
pub mod request;
pub mod stack;
pub mod tcp_accept;
pub mod tcp_connect;
pub mod tcp_loss;
pub mod throttle;

pub use context::{Context, Measure, Thread, Timing};
pub use hook::{Attach, Hook, HookStatus, NetfilterHook, Program};
pub use observe::{Observation, RequestRead, Sample, WaitEnded, observe};
pub use record::{
    DecodeError, Lifecycle, LifecycleKind, ProcessConfig, ThreadSnapshot, can_shed, lifecycle,
};
pub use rows::Rows;
pub use session::{
    Error, GcTarget, IDLE_PERIODS, LostCount, OFF_CPU_PERIOD, ON_CPU_HZ, OngoingStacks, Options,
    ProbedBinary, Session, UnwindStats,
};

use underspan_store::Component;

/// Every tracker, in the order in which they are attached and shown.
pub static ALL: [&dyn Tracker; 13] = [
    &ledger::LedgerTracker,
    &request::RequestTracker,
    &gc::GcTracker,
    &gil::GilTracker,
    &offcpu::OffCpuTracker,
    &oncpu::OnCpuTracker,
    &event_loop::LoopTracker,
    &goroutine::GoroutineTracker,
    &tcp_accept::TcpAcceptTracker,
    &tcp_connect::TcpConnectTracker,
    &tcp_loss::TcpLossTracker,
    &netstack::NetstackTracker,
    &throttle::ThrottleTracker,
];

/// One question about where time goes, and what it takes to answer it.
pub trait Tracker: Sync {
    /// Its folder, and its name in `lost_events` and `doctor`.
    fn name(&self) -> &'static str;

    /// The question it answers.
    fn question(&self) -> &'static str;

    /// What it hooks into. It runs if every hook that is `required` could be attached.
    fn hooks(&self) -> &'static [Hook];

    /// Whether its programs are an object of their own, which the session does not load.
    fn is_separate(&self) -> bool {
        false
    }

    /// Its tables, as numbered migrations.
    fn sql(&self) -> &'static str;

    /// Its tables' names and columns, in the order in which its decoder writes them.
    fn tables(&self) -> Vec<(&'static str, Vec<String>)>;

    /// Its page of the documentation.
    fn readme(&self) -> &'static str;

    /// A new decoder.
    fn decoder(&self) -> Box<dyn Decoder>;
}

/// Turns a tracker's records into rows.
pub trait Decoder {
    /// One record from the ring. Records of other trackers are left alone.
    ///
    /// # Errors
    /// If it is not what its kind should be.
    fn event(
        &mut self,
        _bytes: &[u8],
        _context: &mut dyn Context,
        _rows: &mut Rows,
    ) -> Result<(), DecodeError> {
        Ok(())
    }

    /// The ledgers of all watched threads, read just after `now` (monotonic): what a thread was
    /// doing when its ledger was read, it was doing at `now`, or has begun since.
    fn ledgers(
        &mut self,
        _threads: &[ThreadSnapshot],
        _now: u64,
        _context: &mut dyn Context,
        _rows: &mut Rows,
    ) {
    }

    /// A look at the goroutines of a watched Go service, which no event tells of.
    fn goroutines(
        &mut self,
        _round: &goroutine::Round,
        _context: &mut dyn Context,
        _rows: &mut Rows,
    ) {
    }

    /// The Python part of the stack of a wait that goes on was read from outside. The rest was told before,
    /// by an event. True: it is worth looking at it again soon, since outer frames are missing which are behind code
    /// whose unwind table was not read yet.
    fn ongoing(
        &mut self,
        _wait: &offcpu::OngoingWait,
        _context: &mut dyn Context,
        _rows: &mut Rows,
    ) -> bool {
        false
    }

    /// The host's counters were read, which no event tells of.
    fn throttle(&mut self, _round: &throttle::Round, _context: &mut dyn Context, _rows: &mut Rows) {
    }

    /// The receive stack's histograms, read at `now` (monotonic): of all packets so far.
    fn histograms(
        &mut self,
        _histograms: &[netstack::Histogram],
        _now: u64,
        _context: &mut dyn Context,
        _rows: &mut Rows,
    ) {
    }

    /// Time passes: `now` is monotonic. Rows that were waiting for more may be written.
    fn tick(&mut self, now: u64, context: &mut dyn Context, rows: &mut Rows);

    /// The last call before the decoder goes: whatever is waiting is written.
    fn finish(&mut self, now: u64, context: &mut dyn Context, rows: &mut Rows);
}

/// The trackers' tables, and the stacks they refer to, for the store's migrations.
pub fn components() -> Vec<Component> {
    ALL.iter()
        .map(|tracker| Component { name: tracker.name(), sql: tracker.sql() })
        .chain([stack::component()])
        .collect()
}

#[cfg(test)]
mod tests;
