//! What the agent tells Prometheus: counted as rows are written, never asked of the store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use underspan_metrics::{Family, Histogram, Kind, Value};
use underspan_model::State;
use underspan_trackers::{Measure, Timing};

mod host;
mod netstack;
mod processes;

use processes::{OTHER, Processes};

/// The agent's metrics. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    processes: Processes,
    thread_ns: BTreeMap<(Arc<str>, usize), u64>,
    requests: BTreeMap<(Arc<str>, &'static str), u64>,
    times: BTreeMap<(Time, Arc<str>), Histogram>,
    packets: netstack::Packets,
    host: host::Host,
    lost: BTreeMap<(String, String), u64>,
    own: Own,
}

/// What has a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Time {
    Request,
    Handoff,
    Of(Timing),
}

impl Time {
    /// One of each name.
    const ALL: [Time; 7] = [
        Time::Request,
        Time::Handoff,
        Time::Of(Timing::AcceptQueue),
        Time::Of(Timing::Connect),
        Time::Of(Timing::Loss("")),
        Time::Of(Timing::GilWait),
        Time::Of(Timing::GcPause),
    ];

    const fn name(self) -> &'static str {
        match self {
            Time::Request => "underspan_request_duration_seconds",
            Time::Handoff => "underspan_request_handoff_seconds",
            Time::Of(Timing::AcceptQueue) => "underspan_tcp_accept_queue_seconds",
            Time::Of(Timing::Loss(_)) => "underspan_tcp_stall_seconds",
            Time::Of(Timing::Connect) => "underspan_tcp_connect_seconds",
            Time::Of(Timing::GilWait) => "underspan_gil_wait_seconds",
            Time::Of(Timing::GcPause) => "underspan_gc_pause_seconds",
        }
    }

    const fn help(self) -> &'static str {
        match self {
            Time::Request => "Requests, from the first byte's arrival to the last one's sending.",
            Time::Handoff => {
                "Time a request that was there and accepted waited for a thread to read it."
            }
            Time::Of(Timing::AcceptQueue) => {
                "Time an established connection waited to be accepted."
            }
            Time::Of(Timing::Loss(_)) => {
                "Time connections stood still, by what was lost or closed."
            }
            Time::Of(Timing::Connect) => "Time it took to open a connection, whatever came of it.",
            Time::Of(Timing::GilWait) => "Waits for the GIL.",
            Time::Of(Timing::GcPause) => "Collections of garbage.",
        }
    }
}

/// What the agent used and did, since it started; or how it stands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Own {
    pub(crate) cpu_ns: u64,
    pub(crate) rss_bytes: u64,
    /// Time and runs of the BPF programs; `None` while that is not measured.
    pub(crate) bpf: Option<(u64, u64)>,
    pub(crate) events: u64,
    pub(crate) inserted: BTreeMap<String, u64>,
    pub(crate) spool_bytes: u64,
    pub(crate) rows_wait: Duration,
    pub(crate) store_up: bool,
    pub(crate) shedding: bool,
    pub(crate) watched_processes: usize,
    pub(crate) watched_threads: usize,
}

impl Metrics {
    /// Everything, as it is now.
    pub fn families(&self) -> Vec<Family> {
        self.lock().families()
    }

    /// Counts what a decoder wrote a row of.
    pub(crate) fn measure(&self, what: &Measure<'_>) {
        self.lock().measure(what, Instant::now());
    }

    /// Counts what was lost.
    pub(crate) fn lost(&self, tracker: &str, reason: &str, count: u64) {
        let mut counts = self.lock();
        *counts.lost.entry((tracker.to_owned(), reason.to_owned())).or_default() += count;
    }

    /// Says what the agent itself used and did.
    pub(crate) fn own(&self, own: Own) {
        self.lock().own = own;
    }

    /// Each change is one step: counts are right even if a thread died on the way.
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn measure(&mut self, what: &Measure<'_>, now: Instant) {
        match *what {
            Measure::ThreadTime { process, ledger } => {
                let works = ledger[State::Running] >= processes::WORK_NS;
                let process =
                    if works { self.label(process, now) } else { self.processes.known(process) };
                for (state, ns) in ledger.cells().iter().enumerate().filter(|(_, ns)| **ns > 0) {
                    let total = self.thread_ns.entry((Arc::clone(&process), state)).or_default();
                    *total = total.saturating_add(*ns);
                }
            }
            Measure::Request { process, status, duration, handoff } => {
                let process = self.label(process, now);
                *self.requests.entry((Arc::clone(&process), class(status))).or_default() += 1;
                self.time(Time::Handoff, Arc::clone(&process), handoff);
                self.time(Time::Request, process, duration);
            }
            Measure::Lasted { what, process, duration } => {
                let process = self.label(process, now);
                self.time(Time::Of(what), process, duration);
            }
            Measure::Packets(histogram) => self.packets.add(histogram),
            Measure::Host(round) => self.host.read(round),
        }
    }

    fn time(&mut self, time: Time, process: Arc<str>, ns: u64) {
        self.times.entry((time, process)).or_default().observe_ns(ns);
    }

    /// What a process that did something goes by. One that gives up its place gives up its series.
    fn label(&mut self, process: &str, now: Instant) -> Arc<str> {
        let (label, replaced) = self.processes.label(process, now);
        if let Some(replaced) = replaced {
            self.thread_ns.retain(|(process, _), _| *process != replaced);
            self.requests.retain(|(process, _), _| *process != replaced);
            self.times.retain(|(_, process), _| *process != replaced);
        }
        label
    }

    fn families(&self) -> Vec<Family> {
        let mut families = vec![self.threads(), self.requests()];
        families.extend(Time::ALL.map(|time| {
            let mut family = Family::new(Kind::Histogram, time.name(), time.help());
            for ((of, process), histogram) in &self.times {
                let value = || Value::Histogram(histogram.buckets());
                match of {
                    Time::Of(Timing::Loss(kind)) if of.name() == time.name() => {
                        family.push([("process", process), ("kind", kind)], value());
                    }
                    of if *of == time => family.push([("process", process)], value()),
                    _ => {}
                }
            }
            family
        }));
        families.push(self.packets.family());
        families.extend(self.host.families());
        families.extend(self.own());
        families
    }

    fn threads(&self) -> Family {
        let mut family = Family::new(
            Kind::Counter,
            "underspan_thread_seconds_total",
            "Time that threads spent in each state.",
        );
        for ((process, state), ns) in &self.thread_ns {
            let Some(state) = State::ALL.get(*state) else { continue };
            let labels = [("process", &**process), ("state", state.name())];
            family.push(labels, Value::Number(seconds(*ns)));
        }
        family
    }

    fn requests(&self) -> Family {
        let mut family = Family::new(
            Kind::Counter,
            "underspan_requests_total",
            "Requests that are over, by the first digit of their HTTP status.",
        );
        for ((process, code), count) in &self.requests {
            family.push([("process", process), ("code", code)], Value::Number(*count as f64));
        }
        family
    }

    fn own(&self) -> Vec<Family> {
        let own = &self.own;
        let one = |kind, name, help, value: f64| Family::single(kind, name, help, value);
        let mut lost = Family::new(
            Kind::Counter,
            "underspan_lost_events_total",
            "What could not be recorded, by tracker and reason, as in the table lost_events.",
        );
        for ((tracker, reason), count) in &self.lost {
            lost.push([("tracker", tracker), ("reason", reason)], Value::Number(*count as f64));
        }
        let mut rows = Family::new(
            Kind::Counter,
            "underspan_agent_rows_inserted_total",
            "Rows that the store took, by table.",
        );
        for (table, count) in &own.inserted {
            rows.push([("table", table)], Value::Number(*count as f64));
        }
        let version =
            Family::new(Kind::Gauge, "underspan_build_info", "1; the version is a label.")
                .with([("version", env!("CARGO_PKG_VERSION"))], 1.0);
        let flag = |is: bool| f64::from(u8::from(is));
        let mut families = vec![
            lost,
            rows,
            one(
                Kind::Counter,
                "underspan_agent_cpu_seconds_total",
                "CPU time of the agent's process, without the BPF programs.",
                seconds(own.cpu_ns),
            ),
            one(
                Kind::Gauge,
                "underspan_agent_resident_memory_bytes",
                "Resident memory of the agent's process.",
                own.rss_bytes as f64,
            ),
            one(
                Kind::Counter,
                "underspan_agent_events_total",
                "Events that the BPF programs sent.",
                own.events as f64,
            ),
            one(
                Kind::Gauge,
                "underspan_agent_spool_bytes",
                "Rows that wait on disk for the store.",
                own.spool_bytes as f64,
            ),
            one(
                Kind::Gauge,
                "underspan_agent_rows_wait_seconds",
                "For how long the oldest rows that are due have waited in memory for the store.",
                own.rows_wait.as_secs_f64(),
            ),
            one(
                Kind::Gauge,
                "underspan_agent_store_up",
                "1 while the store takes rows.",
                flag(own.store_up),
            ),
            one(
                Kind::Gauge,
                "underspan_agent_shedding",
                "1 while short waits are left out to stay within budget.",
                flag(own.shedding),
            ),
            one(
                Kind::Gauge,
                "underspan_agent_watched_processes",
                "Processes that are watched.",
                own.watched_processes as f64,
            ),
            one(
                Kind::Gauge,
                "underspan_agent_watched_threads",
                "Threads that are watched.",
                own.watched_threads as f64,
            ),
            version,
        ];
        if let Some((ns, runs)) = own.bpf {
            families.push(one(
                Kind::Counter,
                "underspan_agent_bpf_seconds_total",
                "Run time of the BPF programs (with --measure-bpf).",
                seconds(ns),
            ));
            families.push(one(
                Kind::Counter,
                "underspan_agent_bpf_runs_total",
                "Runs of the BPF programs (with --measure-bpf).",
                runs as f64,
            ));
        }
        families
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// HTTP statuses by their first digit; there is no end to what a peer may send.
const fn class(status: u16) -> &'static str {
    match status / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        5 => "5xx",
        _ if status == 0 => "none",
        _ => OTHER,
    }
}

#[cfg(test)]
mod tests;
