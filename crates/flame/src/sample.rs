//! What pictures are made of.

use std::sync::Arc;

use underspan_model::{Stack, State};

/// A thread, as pictures name it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Thread {
    /// The watched host.
    pub host: String,
    /// Process, as the host sees it.
    pub pid: u32,
    /// Thread, as the host sees it; 0 for the goroutines that were started with one function.
    pub tid: u32,
    /// The process's name.
    pub process: String,
    /// The thread's name, or that function's.
    pub name: String,
}

/// Where a sample's time was spent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this code.
    Stack(Arc<Stack>),
    /// A sample was taken, but its stack could not be, or its names are gone.
    NoStack,
    /// The ledger knows of the time, and no sample fell into it: a wait that still goes on, or one
    /// too short.
    NotSampled,
}

/// Hardware counters of the time a sample stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// CPU cycles.
    pub cycles: u64,
    /// Instructions retired.
    pub instructions: u64,
    /// Last-level cache misses.
    pub cache_misses: u64,
    /// Branches predicted wrongly.
    pub branch_misses: u64,
}

impl Counters {
    /// Sums both.
    pub fn add(&mut self, other: Counters) {
        self.cycles = self.cycles.saturating_add(other.cycles);
        self.instructions = self.instructions.saturating_add(other.instructions);
        self.cache_misses = self.cache_misses.saturating_add(other.cache_misses);
        self.branch_misses = self.branch_misses.saturating_add(other.branch_misses);
    }

    /// Instructions per cycle; `None` without cycles.
    pub fn ipc(&self) -> Option<f64> {
        (self.cycles > 0).then(|| self.instructions as f64 / self.cycles as f64)
    }

    /// Cache misses per thousand instructions; `None` without instructions.
    pub fn cache_misses_per_kilo(&self) -> Option<f64> {
        self.per_kilo(self.cache_misses)
    }

    /// Wrongly predicted branches per thousand instructions; `None` without instructions.
    pub fn branch_misses_per_kilo(&self) -> Option<f64> {
        self.per_kilo(self.branch_misses)
    }

    fn per_kilo(&self, misses: u64) -> Option<f64> {
        (self.instructions > 0).then(|| misses as f64 * 1e3 / self.instructions as f64)
    }
}

/// Time of one thread in one state at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Whose time.
    pub thread: Arc<Thread>,
    /// When it began, in nanoseconds since the Unix epoch. For a sum of samples: the first of them.
    pub start_time: u64,
    /// How long the wait took, or the time between two looks at a running thread.
    pub duration_ns: u64,
    /// How many nanoseconds it stands for.
    pub weight_ns: u64,
    /// By how many nanoseconds chance moves `weight_ns`, as a standard deviation: of rows that stand
    /// for more than their own time, the root of the sum of squares. 0: it is exact, or nobody knows.
    pub unsure_ns: u64,
    /// How many samples it is the sum of.
    pub count: u64,
    /// What the thread did.
    pub state: State,
    /// What it waited for in the words of its own runtime, such as Go's `chan receive`.
    pub wait: Option<Arc<str>>,
    /// In which code.
    pub place: Place,
    /// Whether it merely waited for something to do.
    pub idle: bool,
    /// The request that it served meanwhile.
    pub request: Option<Arc<str>>,
    /// What the CPU counted, where it counts.
    pub counters: Option<Counters>,
}

impl Sample {
    /// The stack, if there is one.
    pub fn stack(&self) -> Option<&Arc<Stack>> {
        match &self.place {
            Place::Stack(stack) => Some(stack),
            Place::NoStack | Place::NotSampled => None,
        }
    }
}
