//! The agent itself: opens the trackers, then drains, decodes, names and passes on until told to
//! stop.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use underspan_model::LostEvents;
use underspan_trackers::netstack::{self, Netstack};
use underspan_trackers::offcpu::OngoingWait;
use underspan_trackers::{
    ALL, Context as _, Decoder, HookStatus, Lifecycle, LifecycleKind, LostCount, Rows, Session,
    lifecycle,
};

use crate::cost::{BpfPrograms, BpfStats, Budget, Meter, ProgramCost, Usage, Verdict};
use crate::goroutines::Goroutines;
use crate::host::Host;
use crate::metrics::Own;
use crate::namer::Namer;
use crate::ongoing::Ongoing;
use crate::priority::Turns;
use crate::processes::{Processes, Watched};
use crate::rows::{
    AGENT_STATS, AGENT_STATS_COLUMNS, AgentStats, LOST_EVENTS, LOST_EVENTS_COLUMNS, PROCESSES,
    PROCESSES_COLUMNS, STACK_ENDS, STACK_ENDS_COLUMNS, STACKS, StackEnds,
};
use crate::select::{Selection, Selector};
use crate::stacks::Named;
use crate::{Collector, Health, Metrics, Sink, monotonic_ns, process_row, rows};

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
/// How often all processes are looked at, for those whose start or listen was missed.
const SCAN_EVERY: Duration = Duration::from_secs(10);

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
    _bpf_stats: Option<BpfStats>,
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

/// What the second-by-second rows are differences to.
struct Baseline {
    at: u64,
    usage: Usage,
    bpf: ProgramCost,
    events: u64,
    rows: u64,
    lost: HashMap<(&'static str, &'static str), u64>,
    /// Losses not yet written, by tracker and reason, and since when they were counted.
    unwritten: BTreeMap<(String, String), u64>,
    unwritten_since: u64,
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
        let mut failed = None;
        let mut add = |name: &str, fd: BorrowedFd<'_>| {
            failed = programs.add(name, fd).err().or(failed.take());
        };
        session.each_program(&mut add);
        if let Some(netstack) = &netstack {
            netstack.each_program(&mut add);
        }
        if let Some(error) = failed {
            tracing::warn!("the programs' cost cannot be read: {error}");
        }
        let bpf_stats = if options.measure_bpf { Some(BpfStats::enable()?) } else { None };

        let stacks = session.take_ongoing();
        Ok(Agent {
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
            _bpf_stats: bpf_stats,
            budget: options.budget,
            metrics: options.metrics,
            discover,
            is_beside,
            events: 0,
            malformed: 0,
            shed: 0,
            shedding: false,
        })
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
        let mut baseline = Baseline {
            at: now,
            usage: Usage::read()?,
            bpf: self.programs.total()?,
            events: 0,
            rows: 0,
            lost: HashMap::new(),
            unwritten: BTreeMap::new(),
            unwritten_since: now,
        };
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
                self.every_second(&mut baseline, &mut collector, sink)?;
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
        self.every_second(&mut baseline, &mut collector, sink)?;
        self.pass_on(&mut collector);
        collector.flush_and_wait(LAST_ROWS);
        // Last of all, since the rows before could be lost themselves.
        self.count_losses(&mut baseline, sink)?;
        self.write_losses(&mut baseline, &mut collector, monotonic_ns()?);
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
            happened(&event, &mut self.session, &mut self.processes, &mut self.namer);
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
                    decoder.ongoing(&wait, &mut self.namer, &mut self.rows);
                }
            }
        }
    }

    fn every_second(
        &mut self,
        baseline: &mut Baseline,
        collector: &mut Collector,
        sink: &Sink,
    ) -> Result<(), OpenError> {
        if let Err(error) = self.session.follow_cpus() {
            tracing::warn!("{error}");
        }
        if let Err(error) = self.session.tell_listeners() {
            tracing::warn!("{error}");
        }
        // Before the ledgers: a thread that was in a state then and when it was read was in it at
        // `now`. The other way round it may have left it, and would be charged for what it did not.
        let now = monotonic_ns()?;
        let threads = self.session.threads()?;
        self.namer.learn(&threads);
        for decoder in &mut self.decoders {
            decoder.ledgers(&threads, now, &mut self.namer, &mut self.rows);
        }
        let long = self.ongoing.look(&threads, now);
        self.ongoing.ask(&long, now);
        self.read_netstack(now)?;
        for pid in self.processes.take_changed() {
            self.namer.stacks().watched(pid);
            self.goroutines.watch(pid);
            if let Some(watched) = self.processes.watched().get(&pid)
                && let Some(row) = process_row::read(pid, watched, &self.namer, now)
            {
                rows::process(collector.batch(PROCESSES, PROCESSES_COLUMNS), &row);
            }
        }

        self.goroutines.keep(|pid| self.processes.watched().contains_key(&pid));
        self.host.watch(self.processes.watched().keys().copied().collect());

        self.count_stack_ends(baseline, collector, now);
        let stats = sink.stats();
        self.count_losses(baseline, sink)?;
        // While the store is away these rows would be in the spool, where they could be lost as well.
        if stats.health == Health::Up {
            self.write_losses(baseline, collector, now);
        }

        let start = self.namer.unix_ns(baseline.at);
        let duration = now.saturating_sub(baseline.at);
        let (usage, bpf) = (Usage::read()?, self.programs.total()?);
        let cost = bpf.since(&baseline.bpf);
        let inserted = stats.inserted_total();
        let row = AgentStats {
            host: self.namer.host().to_owned(),
            start_time: start,
            duration_ns: duration,
            cpu_ns: usage.cpu.saturating_sub(baseline.usage.cpu).as_nanos() as u64,
            rss_bytes: usage.rss_bytes,
            bpf_ns: cost.run_ns,
            bpf_runs: cost.runs,
            events: self.events - baseline.events,
            rows: inserted.saturating_sub(baseline.rows),
            spool_bytes: stats.spool_bytes,
            watched_processes: self.processes.watched().len() as u32,
            watched_threads: threads.len() as u32,
        };
        rows::agent_stats(collector.batch(AGENT_STATS, AGENT_STATS_COLUMNS), &row);
        if let Some(metrics) = &self.metrics {
            metrics.own(Own {
                cpu_ns: usage.cpu.as_nanos() as u64,
                rss_bytes: usage.rss_bytes,
                bpf: self._bpf_stats.as_ref().map(|_| (bpf.run_ns, bpf.runs)),
                events: self.events,
                store_up: stats.health == Health::Up,
                inserted: stats.inserted,
                spool_bytes: stats.spool_bytes,
                shedding: self.shedding,
                watched_processes: self.processes.watched().len(),
                watched_threads: threads.len(),
            });
        }
        (baseline.at, baseline.usage, baseline.bpf) = (now, usage, bpf);
        (baseline.events, baseline.rows) = (self.events, inserted);
        Ok(())
    }

    fn read_netstack(&mut self, now: u64) -> Result<(), OpenError> {
        let Some(netstack) = &mut self.netstack else { return Ok(()) };
        let histograms = netstack.read()?;
        for notice in netstack.take_notices() {
            tracing::info!("netstack: {notice}");
        }
        for decoder in &mut self.decoders {
            decoder.histograms(&histograms, now, &mut self.namer, &mut self.rows);
        }
        Ok(())
    }

    /// How walks of stacks ended since the last call. Where outer frames are missing, that is a loss.
    fn count_stack_ends(&mut self, baseline: &mut Baseline, collector: &mut Collector, now: u64) {
        let start_time = self.namer.unix_ns(baseline.at);
        let duration_ns = now.saturating_sub(baseline.at);
        for ((part, end), count) in self.namer.stacks().take_ends() {
            let row = StackEnds {
                host: self.namer.host(),
                start_time,
                duration_ns,
                part,
                end: end.name(),
                count,
            };
            rows::stack_ends(collector.batch(STACK_ENDS, STACK_ENDS_COLUMNS), &row);
            if end.is_truncated() {
                if let Some(metrics) = &self.metrics {
                    metrics.lost("stack", end.name(), count);
                }
                let loss = ("stack".to_owned(), end.name().to_owned());
                *baseline.unwritten.entry(loss).or_default() += count;
            }
        }
    }

    fn write_losses(&self, baseline: &mut Baseline, collector: &mut Collector, now: u64) {
        let since = std::mem::replace(&mut baseline.unwritten_since, now);
        for ((tracker, reason), count) in std::mem::take(&mut baseline.unwritten) {
            let row = LostEvents {
                host: self.namer.host().to_owned(),
                start_time: self.namer.unix_ns(since),
                duration_ns: now.saturating_sub(since),
                tracker,
                reason,
                count,
            };
            rows::lost_events(collector.batch(LOST_EVENTS, LOST_EVENTS_COLUMNS), &row);
        }
    }

    /// Counts what was lost since the last call, by whom and why.
    fn count_losses(&mut self, baseline: &mut Baseline, sink: &Sink) -> Result<(), OpenError> {
        let mut totals: Vec<_> = self
            .session
            .lost()?
            .into_iter()
            .map(|LostCount { tracker, reason, count }| (tracker, reason, count))
            .collect();
        if let Some(netstack) = &self.netstack {
            let lost = netstack.lost()?.into_iter();
            totals.extend(lost.map(|lost| (lost.tracker, lost.reason, lost.count)));
        }
        let programs = self.programs.read()?;
        let missed = programs.values().map(|program| program.recursion_misses).sum();
        totals.push(("ledger", "recursion", missed));
        totals.push(("agent", "malformed", self.malformed));
        totals.push(("agent", "shed", self.shed));
        totals.push(("goroutine", "queue_full", self.goroutines.lost()));
        totals.push(("throttle", "queue_full", self.host.lost()));
        totals.push(("stack", "no_room", self.session.unwind_stats().refused));

        let mut count = |tracker: &str, reason: String, count: u64| {
            if count > 0 {
                if let Some(metrics) = &self.metrics {
                    metrics.lost(tracker, &reason, count);
                }
                *baseline.unwritten.entry((tracker.to_owned(), reason)).or_default() += count;
            }
        };
        for (tracker, reason, total) in totals {
            let before = baseline.lost.insert((tracker, reason), total).unwrap_or(0);
            count(tracker, reason.to_owned(), total.saturating_sub(before));
        }
        for ((tracker, reason), lost) in self.namer.take_lost() {
            count(tracker, reason.to_owned(), lost);
        }
        for loss in sink.take_losses().iter() {
            count("agent", format!("{} {}", loss.reason, loss.table), loss.rows);
        }
        Ok(())
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

/// A process or thread came, changed or went. Its name knows already: see [`Namer::happened`].
pub(crate) fn happened(
    event: &Lifecycle,
    session: &mut Session,
    processes: &mut Processes,
    namer: &mut Namer,
) {
    match event.kind {
        LifecycleKind::ProcessFork => {
            processes.forked(event.parent, event.pid);
            namer.stacks().forked(event.parent, event.pid);
        }
        LifecycleKind::ProcessExec => {
            namer.stacks().began_program(event.pid);
            processes.consider(session, event.pid);
        }
        LifecycleKind::Listen => processes.consider(session, event.pid),
        LifecycleKind::ProcessExit => {
            processes.ended(session, event.pid);
            namer.stacks().ended(event.pid);
        }
        LifecycleKind::ThreadStart | LifecycleKind::ThreadExit => {}
    }
}

/// Why the agent cannot run, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The trackers' side.
    #[error(transparent)]
    Trackers(#[from] underspan_trackers::Error),
    /// The receive stack's programs.
    #[error(transparent)]
    Netstack(#[from] netstack::Error),
    /// The agent's own.
    #[error(transparent)]
    Agent(#[from] crate::Error),
}
