//! What is done once a second: ledgers are read, processes described, losses counted, and what the agent
//! itself has used is written.

use underspan_trackers::Context as _;
use underspan_trackers::netstack::Histogram;

use super::lost::Lost;
use super::{Agent, OpenError};
use crate::cost::{ProgramCost, Usage};
use crate::metrics::Own;
use crate::rows::{
    AGENT_STATS, AGENT_STATS_COLUMNS, AgentStats, PROCESSES, PROCESSES_COLUMNS, STACK_ENDS,
    STACK_ENDS_COLUMNS, StackEnds,
};
use crate::{Collector, Health, Sink, SinkStats, monotonic_ns, process_row, rows};

/// What the rows of a second are differences to.
pub(super) struct Seconds {
    /// When the last one was over, monotonic.
    at: u64,
    usage: Usage,
    bpf: ProgramCost,
    events: u64,
    rows: u64,
    pub(super) lost: Lost,
}

impl Seconds {
    /// The first begins `now`.
    pub(super) fn begin(now: u64, usage: Usage, bpf: ProgramCost) -> Self {
        Seconds { at: now, usage, bpf, events: 0, rows: 0, lost: Lost::begin(now) }
    }
}

impl Agent {
    pub(super) fn every_second(
        &mut self,
        seconds: &mut Seconds,
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
        self.write_processes(collector, now);
        self.goroutines.keep(|pid| self.processes.watched().contains_key(&pid));
        self.host.watch(self.processes.watched().keys().copied().collect());

        self.count_stack_ends(seconds, collector, now);
        let stats = sink.stats();
        self.count_lost(&mut seconds.lost, sink)?;
        // While the store is away these rows would be in the spool, where they could be lost as well.
        if stats.health == Health::Up {
            self.write_lost(&mut seconds.lost, collector, now);
        }
        self.write_cost(seconds, collector, stats, threads.len(), now)
    }

    fn read_netstack(&mut self, now: u64) -> Result<(), OpenError> {
        let Some(netstack) = &mut self.netstack else { return Ok(()) };
        let histograms = netstack.read()?;
        for notice in netstack.take_notices() {
            tracing::info!("netstack: {notice}");
        }
        self.write_histograms(&histograms, now);
        Ok(())
    }

    /// The receive stack's histograms as they are at `now`.
    pub(super) fn write_histograms(&mut self, histograms: &[Histogram], now: u64) {
        for decoder in &mut self.decoders {
            decoder.histograms(histograms, now, &mut self.namer, &mut self.rows);
        }
    }

    /// Of those that are new or of which more is known by now.
    fn write_processes(&mut self, collector: &mut Collector, now: u64) {
        for pid in self.processes.take_changed() {
            self.namer.stacks().watched(pid);
            self.goroutines.watch(pid);
            if let Some(watched) = self.processes.watched().get(&pid)
                && let Some(row) = process_row::read(pid, watched, &self.namer, now)
            {
                rows::process(collector.batch(PROCESSES, PROCESSES_COLUMNS), &row);
            }
        }
    }

    /// How walks of stacks ended since the last call. Where outer frames are missing, that is a loss.
    fn count_stack_ends(&mut self, seconds: &mut Seconds, collector: &mut Collector, now: u64) {
        let start_time = self.namer.unix_ns(seconds.at);
        let duration_ns = now.saturating_sub(seconds.at);
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
                let reason = end.name().to_owned();
                seconds.lost.count(self.metrics.as_ref(), "stack", reason, count);
            }
        }
    }

    /// What the agent and its programs have used, and done, since the last call.
    fn write_cost(
        &self,
        seconds: &mut Seconds,
        collector: &mut Collector,
        sink: SinkStats,
        threads: usize,
        now: u64,
    ) -> Result<(), OpenError> {
        let (usage, bpf) = (Usage::read()?, self.programs.total()?);
        let cost = bpf.since(&seconds.bpf);
        let inserted = sink.inserted_total();
        let row = AgentStats {
            host: self.namer.host().to_owned(),
            start_time: self.namer.unix_ns(seconds.at),
            duration_ns: now.saturating_sub(seconds.at),
            cpu_ns: usage.cpu.saturating_sub(seconds.usage.cpu).as_nanos() as u64,
            rss_bytes: usage.rss_bytes,
            bpf_ns: cost.run_ns,
            bpf_runs: cost.runs,
            events: self.events - seconds.events,
            rows: inserted.saturating_sub(seconds.rows),
            spool_bytes: sink.spool_bytes,
            watched_processes: self.processes.watched().len() as u32,
            watched_threads: threads as u32,
        };
        rows::agent_stats(collector.batch(AGENT_STATS, AGENT_STATS_COLUMNS), &row);
        if let Some(metrics) = &self.metrics {
            metrics.own(Own {
                cpu_ns: usage.cpu.as_nanos() as u64,
                rss_bytes: usage.rss_bytes,
                bpf: self.bpf_stats.as_ref().map(|_| (bpf.run_ns, bpf.runs)),
                events: self.events,
                store_up: sink.health == Health::Up,
                inserted: sink.inserted,
                spool_bytes: sink.spool_bytes,
                rows_wait: sink.waits,
                shedding: self.shedding,
                watched_processes: self.processes.watched().len(),
                watched_threads: threads,
            });
        }
        (seconds.at, seconds.usage, seconds.bpf) = (now, usage, bpf);
        (seconds.events, seconds.rows) = (self.events, inserted);
        Ok(())
    }
}
