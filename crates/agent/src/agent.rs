//! The agent itself: opens the trackers, then drains, decodes, names and passes on until told to
//! stop. What it does once a second is in `second.rs`, what it lost in `lost.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use underspan_trackers::netstack::{self, Netstack};
use underspan_trackers::offcpu::OngoingWait;
use underspan_trackers::{
    ALL, Context as _, Decoder, HookStatus, LifecycleKind, Rows, Session, lifecycle,
};

use crate::cost::{BpfPrograms, BpfStats, Budget, Meter, Usage, Verdict};
use crate::error::OpenError;
use crate::goroutines::Goroutines;
use crate::host::Host;
use crate::namer::Namer;
use crate::ongoing::Ongoing;
use crate::priority::Turns;
use crate::processes::{Processes, SCAN_EVERY, Watched};
use crate::rows::STACKS;
use crate::select::{Selection, Selector};
use crate::stacks::Named;
use crate::{Collector, Metrics, Sink, monotonic_ns, rows};

mod lost;
mod second;

use second::Seconds;

/// How often the ring is drained. An event costs no wake-up of its own.
const DRAIN_EVERY: Duration = Duration::from_millis(100);
/// How often it is drained at the end, at the most.
const LAST_DRAINS: usize = 16;
/// How long the sink may then take to make room for a ring full of rows.
const LAST_ROWS: Duration = Duration::from_secs(5);
/// How long names of the last stacks may take.
const LAST_NAMES: Duration = Duration::from_secs(5);
/// How often ledgers are read, losses counted and the agent's own cost written.
const SECOND: Duration = Duration::from_secs(1);

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// This host's name in every row.
    pub host: String,
    /// What to watch.
    pub selection: Selection,
    /// Waits at least this long get a row of their own.
    pub wait_threshold: Duration,
    /// Waiting time per sample of where threads wait; zero: no samples.
    pub off_cpu_period: Duration,
    /// Of waits that have gone on for this long the stack is read; zero: of none.
    pub ongoing_threshold: Duration,
    /// Samples of running threads a second and CPU; 0: none.
    pub on_cpu_hz: u32,
    /// Looks at a Go service's goroutines a second; 0: none.
    pub goroutine_hz: u32,
    /// Have the kernel measure the programs' run time. Costs some 20 ns a run.
    pub measure_bpf: bool,
    /// What the agent may use before it sheds load.
    pub budget: Budget,
    /// Time received packets on their way through the kernel.
    pub netstack: Option<netstack::Options>,
    /// Where to count what rows are written of, if anybody wants to know.
    pub metrics: Option<Metrics>,
}

/// Programs attached; nothing is watched until [`Agent::watch`], nothing passed on until
/// [`Agent::run`].
pub struct Agent {
    session: Session,
    netstack: Option<Netstack>,
    processes: Processes,
    namer: Namer,
    goroutines: Goroutines,
    ongoing: Ongoing,
    host: Host,
    decoders: Vec<Box<dyn Decoder>>,
    rows: Rows,
    programs: BpfPrograms,
    bpf_stats: Option<BpfStats>,
    budget: Budget,
    metrics: Option<Metrics>,
    discover: bool,
    /// What is watched was started from here: it runs in the same session and control group.
    is_beside: bool,
    events: u64,
    malformed: u64,
    shed: u64,
    shedding: bool,
}

impl Agent {
    /// Loads and attaches the programs. Needs root.
    ///
    /// # Errors
    /// If this kernel or user cannot have them; the message says what to do.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        let selection = options.selection;
        // Named pids and a tree are found without being told of every program that starts.
        let discover = selection.pids.is_empty() && selection.root.is_none();
        let is_beside = selection.root.is_some();
        let mut session = Session::open(&underspan_trackers::Options {
            wait_threshold: options.wait_threshold,
            off_cpu_period: options.off_cpu_period,
            on_cpu_hz: options.on_cpu_hz,
            discover,
            ..underspan_trackers::Options::default()
        })?;
        let netstack = options.netstack.map(Netstack::open).transpose()?;
        let mut programs = BpfPrograms::default();
        programs.add_each(|add| session.each_program(add));
        if let Some(netstack) = &netstack {
            programs.add_each(|add| netstack.each_program(add));
        }
        let bpf_stats = if options.measure_bpf { Some(BpfStats::enable()?) } else { None };

        let stacks = session.take_ongoing();
        let mut agent = Agent {
            session,
            netstack,
            processes: Processes::new(Selector::new(selection)),
            namer: Namer::new(options.host, options.metrics.clone())?,
            goroutines: Goroutines::new(options.goroutine_hz),
            ongoing: Ongoing::new(options.ongoing_threshold, stacks),
            host: Host::default(),
            decoders: ALL.iter().map(|tracker| tracker.decoder()).collect(),
            rows: Rows::default(),
            programs,
            bpf_stats,
            budget: options.budget,
            metrics: options.metrics,
            discover,
            is_beside,
            events: 0,
            malformed: 0,
            shed: 0,
            shedding: false,
        };
        if agent.netstack.is_some() {
            // Packets are counted from here on, and none were before.
            agent.write_histograms(&[], monotonic_ns()?);
        }
        Ok(agent)
    }

    /// Begins to watch what was selected, but never the processes in `never`: Underspan's own
    /// helpers, such as the embedded store.
    pub fn watch(&mut self, never: &[u32]) {
        if let Err(error) = self.session.start_unwinding() {
            tracing::warn!("native frames are not walked: {error}");
        }
        self.processes.never(never);
        self.processes.scan(&mut self.session);
    }

    /// Which way each hook was attached.
    pub fn hooks(&self) -> &[HookStatus] {
        self.session.hooks()
    }

    /// What is watched now.
    pub fn watched(&self) -> impl Iterator<Item = (u32, &Watched)> {
        self.processes.watched().iter().map(|(pid, watched)| (*pid, watched))
    }

    /// Runs until `stop`, then passes on what is left. Rows go to `collector`; `sink` is asked for
    /// its counters. Blocks the calling thread.
    ///
    /// # Errors
    /// If the programs or the clocks cannot be read any more.
    pub fn run(
        mut self,
        mut collector: Collector,
        sink: &Sink,
        stop: &Arc<AtomicBool>,
    ) -> Result<(), OpenError> {
        let now = monotonic_ns()?;
        let mut meter = Meter::new(self.budget, Usage::read()?);
        let mut seconds = Seconds::begin(now, Usage::read()?, self.programs.total()?);
        self.host.watch(self.processes.watched().keys().copied().collect());
        let mut turns = Turns::begin();
        if self.is_beside {
            turns.go_first();
        }
        let (mut second, mut scan) = (Instant::now() + SECOND, Instant::now() + SCAN_EVERY);
        let mut next = Some(Instant::now());
        while !stop.load(Ordering::Relaxed) {
            let timeout = next
                .map_or(DRAIN_EVERY, |at| at.saturating_duration_since(Instant::now()))
                .min(DRAIN_EVERY);
            self.drain(timeout)?;
            let look_again = self.processes.look_again(&mut self.session);
            for pid in self.processes.take_pythons() {
                self.namer.runs_python(pid);
            }
            next = look_again.into_iter().chain(self.namer.read_due()).min();
            let now = Instant::now();
            if now >= second {
                second = now + SECOND;
                turns.look();
                self.every_second(&mut seconds, &mut collector, sink)?;
                self.keep_budget(&mut meter)?;
            }
            if now >= scan && self.discover {
                scan = now + SCAN_EVERY;
                self.processes.scan(&mut self.session);
            }
            self.pass_on(&mut collector);
            collector.flush_due();
        }
        // Whatever is left; but a flood has no end.
        for _ in 0..LAST_DRAINS {
            let before = self.events;
            self.drain(Duration::ZERO)?;
            if self.events == before {
                break;
            }
            // A ring full of events is more than the queue holds.
            self.pass_on(&mut collector);
            collector.flush_and_wait(LAST_ROWS);
        }
        let now = monotonic_ns()?;
        for decoder in &mut self.decoders {
            decoder.finish(now, &mut self.namer, &mut self.rows);
        }
        let named = self.namer.stacks().finish(LAST_NAMES);
        self.write_stacks(named, &mut collector);
        self.every_second(&mut seconds, &mut collector, sink)?;
        self.pass_on(&mut collector);
        collector.flush_and_wait(LAST_ROWS);
        // Last of all, since the rows before could be lost themselves.
        self.count_lost(&mut seconds.lost, sink)?;
        self.write_lost(&mut seconds.lost, &mut collector, monotonic_ns()?);
        collector.flush_and_wait(LAST_ROWS);
        Ok(())
    }

    fn drain(&mut self, timeout: Duration) -> Result<(), OpenError> {
        // Each time: rows of what happened after a step must not be told in the old time.
        if let Some(step) = self.namer.refresh_clock()? {
            let within = step.within.as_millis();
            tracing::warn!(
                "the wall clock was set by {} ms in the last {within} ms: rows before keep their times",
                step.by_ns / 1_000_000
            );
        }
        // Before the ring is drained: there is the rest of these stacks.
        let ongoing = self.ongoing.read();
        let Agent { session, decoders, namer, rows, malformed, shedding, shed, .. } = self;
        let mut events = Vec::new();
        self.events += session.drain(timeout, |record| {
            match lifecycle(record) {
                Ok(Some(event)) => {
                    namer.happened(&event);
                    events.push(event);
                }
                Ok(None) if *shedding && underspan_trackers::can_shed(record) => {
                    *shed += 1;
                    return;
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!("{error}");
                    *malformed += 1;
                    return;
                }
            }
            for decoder in decoders.iter_mut() {
                if let Err(error) = decoder.event(record, namer, rows) {
                    tracing::debug!("{error}");
                    *malformed += 1;
                }
            }
        })? as u64;
        for round in self.goroutines.rounds() {
            for decoder in &mut self.decoders {
                decoder.goroutines(&round, &mut self.namer, &mut self.rows);
            }
        }
        if let Some(netstack) = &mut self.netstack {
            netstack.refresh()?;
        }
        for round in self.host.rounds() {
            for decoder in &mut self.decoders {
                decoder.throttle(&round, &mut self.namer, &mut self.rows);
            }
        }
        let now = monotonic_ns()?;
        for decoder in &mut self.decoders {
            decoder.tick(now, &mut self.namer, &mut self.rows);
        }
        self.write_ongoing(ongoing, now);
        for event in events {
            if matches!(event.kind, LifecycleKind::ProcessExec | LifecycleKind::ProcessExit) {
                self.ongoing.forget(event.pid);
            }
            self.processes.happened(&event, &mut self.session, &mut self.namer);
        }
        Ok(())
    }

    /// Rows of waits that still went on at `now`, and were read.
    fn write_ongoing(&mut self, waits: Vec<OngoingWait>, now: u64) {
        for read in waits {
            // What was read of a thread that has moved meanwhile may be anything.
            let thread = self.session.thread(read.thread.tid);
            if thread.is_some_and(|thread| thread.sleeps_on_since(&read.thread)) {
                let wait = OngoingWait { seen: now, ..read };
                for decoder in &mut self.decoders {
                    if decoder.ongoing(&wait, &mut self.namer, &mut self.rows) {
                        self.ongoing.is_cut(wait.thread.tid);
                    }
                }
            }
        }
    }

    fn keep_budget(&mut self, meter: &mut Meter) -> Result<(), OpenError> {
        match meter.judge(Usage::read()?) {
            Verdict::Within | Verdict::StillExceeded(_) => {}
            Verdict::Exceeded(excess) => {
                self.shedding = true;
                tracing::warn!("{excess}: rows of waits below 50 ms are left out, and counted");
            }
            Verdict::Recovered => {
                self.shedding = false;
                tracing::info!("within budget again: rows of short waits are kept");
            }
        }
        Ok(())
    }

    fn write_stacks(&self, named: Vec<Named>, collector: &mut Collector) {
        for Named { id, at, stack } in named {
            let batch = collector.batch(STACKS, &underspan_trackers::stack::COLUMNS);
            rows::stack(batch, self.namer.host(), id, at, &stack);
        }
    }

    fn pass_on(&mut self, collector: &mut Collector) {
        let named = self.namer.stacks().named();
        self.write_stacks(named, collector);
        self.rows.pass_on(|batch| collector.append(batch));
    }
}
