//! A session with decoders: a small agent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libbpf_rs::{MapCore as _, MapHandle};
use underspan_model::{Ledger, State};
use underspan_trackers::offcpu::OngoingWait;
use underspan_trackers::stack::RawStack;
use underspan_trackers::{
    ALL, Decoder, Lifecycle, LostCount, Options, ProcessConfig, Rows, Session, ThreadSnapshot,
    lifecycle,
};

use crate::support::{FakeContext, Row, decode};
use crate::workload::eventually;

/// Tests take turns: each wants the CPUs, and the watchpoints, for itself.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn open() -> Session {
    open_with(Options::default())
}

fn open_with(options: Options) -> Session {
    Session::open(&Options { discover: false, ..options })
        .unwrap_or_else(|error| panic!("these tests load BPF programs and need root: {error}"))
}

/// CLOCK_MONOTONIC, as BPF has it.
pub(crate) fn monotonic() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("a clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// This process's maps of a name.
pub(crate) fn maps(name: &str) -> Vec<MapHandle> {
    let ids = std::fs::read_dir("/proc/self/fdinfo").unwrap().filter_map(|entry| {
        let info = std::fs::read_to_string(entry.ok()?.path()).ok()?;
        info.lines().find_map(|line| line.strip_prefix("map_id:")?.trim().parse().ok())
    });
    let ids: BTreeSet<u32> = ids.collect();
    let handles = ids.into_iter().map(|id| MapHandle::from_map_id(id).unwrap());
    handles.filter(|map| map.name() == name).collect()
}

pub(crate) struct Watcher {
    pub(crate) session: Session,
    pub(crate) lives: Vec<Lifecycle>,
    pub(crate) rows: Vec<Row>,
    decoders: Vec<Box<dyn Decoder>>,
    context: FakeContext,
    _turn: MutexGuard<'static, ()>,
}

impl Watcher {
    pub(crate) fn new() -> Self {
        Watcher::with(Options::default())
    }

    pub(crate) fn with(options: Options) -> Self {
        let turn = turn();
        Watcher {
            session: open_with(options),
            lives: Vec::new(),
            rows: Vec::new(),
            decoders: ALL.iter().map(|tracker| tracker.decoder()).collect(),
            context: FakeContext { offset: 0, ..FakeContext::new() },
            _turn: turn,
        }
    }

    /// Watches a process in which no Python was found.
    pub(crate) fn watch(&self, pid: u32) {
        self.session.watch(pid, ProcessConfig::default()).expect("the process can be watched");
    }

    /// Takes what is in the ring.
    pub(crate) fn drain(&mut self) {
        let mut records = Vec::new();
        self.session
            .drain(Duration::ZERO, |record| records.push(record.to_vec()))
            .expect("the ring can be read");
        let mut rows = Rows::default();
        // They count from the last tick for how long something has waited for its other half.
        let now = monotonic();
        for decoder in &mut self.decoders {
            decoder.tick(now, &mut self.context, &mut rows);
        }
        for record in &records {
            self.lives.extend(lifecycle(record).expect("records can be read"));
            for decoder in &mut self.decoders {
                decoder.event(record, &mut self.context, &mut rows).expect("records can be read");
            }
        }
        self.rows.extend(decode(&mut rows));
    }

    /// Reads the ledgers, as the agent does every second.
    pub(crate) fn read_ledgers(&mut self) {
        let now = monotonic();
        let threads = self.session.threads().expect("the ledgers can be read");
        let mut rows = Rows::default();
        for decoder in &mut self.decoders {
            decoder.ledgers(&threads, now, &mut self.context, &mut rows);
            decoder.tick(now, &mut self.context, &mut rows);
        }
        self.rows.extend(decode(&mut rows));
    }

    /// The stack of a wait that goes on was read.
    pub(crate) fn ongoing(&mut self, wait: &OngoingWait) {
        let mut rows = Rows::default();
        for decoder in &mut self.decoders {
            decoder.ongoing(wait, &mut self.context, &mut rows);
        }
        self.rows.extend(decode(&mut rows));
    }

    /// Waits for the first row of a table that `wanted` likes.
    #[track_caller]
    pub(crate) fn row(&mut self, table: &str, wanted: impl Fn(&Row) -> bool) -> Row {
        eventually(table, || {
            self.drain();
            self.read_ledgers();
            self.rows.iter().find(|row| row.table == table && wanted(row)).cloned()
        })
    }

    /// The rows of a thread in a table, oldest first.
    pub(crate) fn rows_of(&self, table: &str, tid: u32) -> Vec<Row> {
        let wanted = |row: &&Row| row.table == table && row.u64("tid") == u64::from(tid);
        let mut rows: Vec<_> = self.rows.iter().filter(wanted).cloned().collect();
        rows.sort_by_key(|row| row.u64("start_time"));
        rows
    }

    /// The rows of a process in a table.
    pub(crate) fn rows_in(&self, table: &str, pid: u32) -> Vec<Row> {
        let wanted = |row: &&Row| row.table == table && row.u64("pid") == u64::from(pid);
        self.rows.iter().filter(wanted).cloned().collect()
    }

    /// The ledgers of a process's threads.
    pub(crate) fn threads(&self, pid: u32) -> BTreeMap<u32, ThreadSnapshot> {
        let threads = self.session.threads().expect("the ledgers can be read");
        threads.into_iter().filter(|t| t.pid == pid).map(|t| (t.tid, t)).collect()
    }

    /// The ledger of a thread, what it does now charged up to now.
    #[track_caller]
    pub(crate) fn ledger(&self, pid: u32, tid: u32) -> Ledger {
        let now = monotonic();
        let thread = eventually("a ledger", || self.threads(pid).remove(&tid));
        let mut ledger = thread.ledger;
        ledger[State::from_index(thread.state).expect("a state")] +=
            now.saturating_sub(thread.since);
        ledger
    }

    /// The stack with this id.
    pub(crate) fn stack(&self, id: u64) -> &RawStack {
        &self.context.stacks[id as usize - 1]
    }

    /// The stack of a sample, if one could be taken: not of a wait whose end the kernel did not tell.
    pub(crate) fn stack_of(&self, sample: &Row) -> Option<&RawStack> {
        Some(sample.u64("stack_id")).filter(|id| *id != 0).map(|id| self.stack(id))
    }

    /// Nothing may be lost in these tests.
    pub(crate) fn assert_nothing_lost(&self) {
        let lost = self.session.lost().expect("the counters can be read");
        // What the kernel kept to itself was made up for: see ledger/README.md.
        let missing = |lost: &LostCount| lost.count > 0 && lost.reason != "untold";
        let lost: Vec<_> = lost.into_iter().filter(missing).collect();
        assert!(lost.is_empty(), "{lost:?}");
    }

    /// How often a thread came on a CPU and the kernel did not tell.
    pub(crate) fn untold(&self) -> u64 {
        let lost = self.session.lost().expect("the counters can be read");
        lost.iter().filter(|lost| lost.reason == "untold").map(|lost| lost.count).sum()
    }
}
