//! A session that collects stacks, and nothing else.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use underspan_model::StackEnd;
use underspan_trackers::offcpu::OngoingWait;
use underspan_trackers::stack::RawStack;
use underspan_trackers::{ALL, Decoder, OngoingStacks, Options, ProcessConfig, Rows, Session};

use crate::support::{FakeContext, Row, decode};

/// Sessions take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Sampler {
    pub(crate) session: Session,
    asleep: OngoingStacks,
    decoders: Vec<Box<dyn Decoder>>,
    context: FakeContext,
    rows: Vec<Row>,
    _turn: MutexGuard<'static, ()>,
}

impl Sampler {
    pub(crate) fn new() -> Self {
        let mut sampler = Sampler::without_tables();
        sampler.session.start_unwinding().expect("a thread");
        sampler
    }

    /// Nothing is read yet.
    pub(crate) fn without_tables() -> Self {
        let turn = turn();
        // Every sleep of a program is longer than the period.
        let off_cpu_period = Duration::from_millis(1);
        let options = Options { discover: false, off_cpu_period, ..Options::default() };
        let mut session = Session::open(&options)
            .unwrap_or_else(|error| panic!("these tests load BPF programs and need root: {error}"));
        Sampler {
            asleep: session.take_ongoing().expect("this kernel takes stacks of threads that sleep"),
            session,
            decoders: ALL.iter().map(|tracker| tracker.decoder()).collect(),
            context: FakeContext { offset: 0, ..FakeContext::new() },
            rows: Vec::new(),
            _turn: turn,
        }
    }

    /// Watches a process, and waits until its mappings are known.
    pub(crate) fn watch(&self, pid: u32) {
        self.begin_to_watch(pid);
        self.wait_for(pid);
    }

    /// Watches a process, whose mappings are read when their turn comes.
    pub(crate) fn begin_to_watch(&self, pid: u32) {
        self.session.watch(pid, ProcessConfig::default()).expect("the process can be watched");
    }

    /// Waits until all of a process's mappings are known.
    pub(crate) fn wait_for(&self, pid: u32) {
        let start = Instant::now();
        while !self.session.unwind_stats().processes.contains(&pid) {
            assert!(start.elapsed() < Duration::from_secs(60), "its mappings are not read");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Forgets what was before.
    pub(crate) fn begin(&mut self) {
        self.drain();
        self.forget();
    }

    /// Forgets what was taken.
    pub(crate) fn forget(&mut self) {
        self.rows.clear();
    }

    /// Takes what there is while a program sleeps on: what is not complete yet may be soon.
    pub(crate) fn take(&mut self) {
        self.drain_at(0);
    }

    pub(crate) fn drain(&mut self) {
        self.drain_at(u64::MAX / 2);
    }

    /// Whatever is waited for longer than up to `now` is given up.
    fn drain_at(&mut self, now: u64) {
        let mut records = Vec::new();
        self.session
            .drain(Duration::ZERO, |record| records.push(record.to_vec()))
            .expect("the ring can be read");
        let mut rows = Rows::default();
        for record in &records {
            for decoder in &mut self.decoders {
                decoder.event(record, &mut self.context, &mut rows).expect("records can be read");
            }
        }
        for decoder in &mut self.decoders {
            decoder.tick(now, &mut self.context, &mut rows);
        }
        self.rows.extend(decode(&mut rows));
    }

    /// The stack of a thread whose wait goes on, once it sleeps.
    pub(crate) fn asleep(&mut self, tid: u32) -> RawStack {
        let start = Instant::now();
        let thread = loop {
            let thread = self.session.thread(tid);
            if let Some(thread) = thread.filter(|thread| thread.waits().is_some()) {
                break thread;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "it does not sleep");
            std::thread::sleep(Duration::from_millis(2));
        };
        self.begin();
        self.asleep.tell(&[tid]).expect("the iterator runs");
        self.drain_at(thread.since);
        let (python, python_end) = (Vec::new(), StackEnd::Absent);
        let wait = OngoingWait { seen: thread.since + 1, thread, python, python_end };
        let mut rows = Rows::default();
        for decoder in &mut self.decoders {
            decoder.ongoing(&wait, &mut self.context, &mut rows);
        }
        let rows = decode(&mut rows);
        let [row] = rows.as_slice() else { panic!("{rows:?}") };
        self.context.stacks[row.u64("stack_id") as usize - 1].clone()
    }

    /// The native stacks of a thread's waits, and how often each was seen. A wait whose end the kernel
    /// did not tell has none (see ledger/README.md); there are no more of them than were counted.
    pub(crate) fn waits(&self, tid: u32) -> HashMap<RawStack, usize> {
        let (stacks, without) = self.stacks(tid);
        let lost = self.session.lost().expect("the counters can be read");
        let untold = lost.iter().filter(|lost| lost.reason == "untold").map(|lost| lost.count);
        let untold = untold.sum::<u64>();
        assert!(without <= untold, "{without} waits have no stack, {untold} are untold");
        stacks
    }

    /// The same, and how many waits have none. What was there before a program began to sleep may have none, too.
    pub(crate) fn stacks(&self, tid: u32) -> (HashMap<RawStack, usize>, u64) {
        let mut stacks = HashMap::new();
        let wanted = |row: &&Row| row.table == "off_cpu" && row.u64("tid") == u64::from(tid);
        let mut without = Vec::new();
        for row in self.rows.iter().filter(wanted) {
            match (row.u64("stack_id") as usize).checked_sub(1) {
                Some(index) => {
                    *stacks.entry(self.context.stacks[index].clone()).or_default() += 1;
                }
                None => without.push((row.u64("start_time"), row.u64("duration_ns"))),
            }
        }
        // What follows upon the wake-up is a row of its own, of the same wait.
        let ends: Vec<_> = without.iter().map(|(start, duration)| start + duration).collect();
        let waits = without.iter().filter(|(start, _)| !ends.contains(start)).count();
        (stacks, waits as u64)
    }
}
