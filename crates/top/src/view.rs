//! What is shown: everything that was seen in one interval. Also what `--json` prints.

use serde::Serialize;
use underspan_model::State;

use crate::spent::{Share, Spent};

/// One interval, as it ended.
#[derive(Clone, Debug, Default, Serialize)]
pub struct View {
    /// The host.
    pub host: String,
    /// When the interval ended: nanoseconds since the Unix epoch.
    pub time: u64,
    /// How long it was.
    pub interval_ns: u64,
    /// What is watched.
    pub processes: Vec<Process>,
    /// Requests that were read and have no answer yet, oldest first.
    pub requests: Vec<Request>,
    /// Who kept others waiting, worst first.
    pub culprits: Vec<Culprit>,
    /// What watching costs.
    pub cost: Cost,
}

/// A watched process.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub process: String,
    /// Version of its Python, or empty.
    pub python: String,
    /// What its threads did during the interval, added up.
    #[serde(flatten)]
    pub spent: Spent,
    /// Its threads.
    pub threads: Vec<Thread>,
}

/// A thread.
#[derive(Clone, Debug, Serialize)]
pub struct Thread {
    /// Its id.
    pub tid: u32,
    /// Its name.
    pub thread: String,
    /// What it does at the interval's end.
    pub state: State,
    /// It is in `lock_wait` because nobody wants anything of it.
    pub idle: bool,
    /// For how long already.
    pub state_for_ns: u64,
    /// What it did during the interval.
    #[serde(flatten)]
    pub spent: Spent,
}

/// A request in flight.
#[derive(Clone, Debug, Serialize)]
pub struct Request {
    /// As in the table `requests`.
    pub request_id: String,
    /// The process that read it.
    pub pid: u32,
    /// The thread that read it.
    pub tid: u32,
    /// That thread's name.
    pub thread: String,
    /// Since its first byte was there.
    pub age_ns: u64,
    /// HTTP method, or empty.
    pub method: String,
    /// HTTP path, or empty.
    pub path: String,
    /// The client.
    pub peer: String,
    /// What the thread does now; null if it is gone.
    pub state: Option<State>,
    /// For how long already.
    pub state_for_ns: u64,
}

/// How somebody keeps others waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// It holds the GIL.
    Gil,
    /// It collects garbage.
    Collection,
    /// It released the lock that a request waited for.
    Lock,
    /// It has the CPU.
    Cpu,
}

impl Fault {
    /// In words.
    pub const fn label(self) -> &'static str {
        match self {
            Fault::Gil => "holds the GIL",
            Fault::Collection => "collects garbage",
            Fault::Lock => "had the lock",
            Fault::Cpu => "had the CPU",
        }
    }

    /// The state of those who wait.
    pub const fn state(self) -> State {
        match self {
            Fault::Gil => State::GilWait,
            Fault::Collection => State::GcWait,
            Fault::Lock => State::LockWait,
            Fault::Cpu => State::Runnable,
        }
    }
}

/// A thread that kept others waiting during the interval.
#[derive(Clone, Debug, Serialize)]
pub struct Culprit {
    /// How.
    pub fault: Fault,
    /// Its process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Its name.
    pub thread: String,
    /// Its process's name.
    pub process: String,
    /// How long others waited for it, added up.
    pub blocked_ns: u64,
    /// How many others.
    pub victims: usize,
}

/// What watching costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// CPU time of this process during the interval.
    pub cpu_ns: u64,
    /// Run time of its programs in the kernel; null: not measured.
    pub bpf_ns: Option<u64>,
    /// Resident memory of this process.
    pub rss_bytes: u64,
    /// Events lost since the beginning.
    pub lost: u64,
}

impl Thread {
    /// What it does at the interval's end.
    pub fn now(&self) -> Share {
        if self.idle { Share::Idle } else { Share::State(self.state) }
    }
}

impl View {
    /// How many threads there are.
    pub fn threads(&self) -> usize {
        self.processes.iter().map(|process| process.threads.len()).sum()
    }
}
