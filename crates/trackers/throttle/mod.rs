//! Is the host, or the cloud it runs in, holding us back?
//!
//! A tracker without BPF: the kernel counts all of this already. A [`Reader`] reads the counters once
//! a second, and whoever runs the trackers hands the rounds to
//! [`Decoder::throttle`](crate::Decoder::throttle).

mod cgroup;
mod counters;
mod decode;
mod ebs;
mod ethtool;
mod metric;
mod parse;
mod reader;

use std::sync::Arc;

pub use metric::{Kind, METRICS, Metric, Source, Unit};
pub use parse::Damaged;
pub use reader::Reader;

use crate::rows::columns;
use crate::{Decoder, Hook, Tracker};

/// The tracker.
pub struct ThrottleTracker;

/// What a counter is of: an interface, a CPU, a cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject {
    /// Its name; empty where there is only one.
    pub name: Arc<str>,
    /// The network namespace it is in, by its inode; 0: the agent's own, or that does not matter.
    pub netns: u64,
}

/// A counter's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Which counter.
    pub metric: &'static Metric,
    /// Of what.
    pub subject: Subject,
    /// Tells a thing from another that was given its name later. 0: not known.
    pub identity: u64,
    /// Its value.
    pub value: u64,
}

/// A source, or something it should have, that cannot be read. Not the same as zero.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Absent {
    /// Who was asked.
    pub source: Source,
    /// About what.
    pub subject: Subject,
    /// Whether it does not exist here, or was refused.
    pub status: Status,
    /// Why, in words.
    pub note: String,
}

/// What a row says of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// It was read.
    Read,
    /// It began again from zero: what was added is not known.
    Reset,
    /// What it is of is gone.
    Gone,
    /// It does not exist here.
    Unsupported,
    /// It may not be read, or makes no sense.
    Refused,
}

impl Status {
    /// Its name in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Status::Read => "read",
            Status::Reset => "reset",
            Status::Gone => "gone",
            Status::Unsupported => "unsupported",
            Status::Refused => "refused",
        }
    }
}

/// All counters, read at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Monotonic time of the round before, 0 for the first; and of this one.
    pub since: u64,
    /// See `since`.
    pub at: u64,
    /// What was read.
    pub readings: Vec<Reading>,
    /// What could not be.
    pub absent: Vec<Absent>,
    /// Counters that were not read because there are too many.
    pub left_out: u64,
}

impl Tracker for ThrottleTracker {
    fn name(&self) -> &'static str {
        "throttle"
    }

    fn question(&self) -> &'static str {
        "Is the host, or the cloud it runs in, holding us back?"
    }

    fn hooks(&self) -> &'static [Hook] {
        &[]
    }

    fn sql(&self) -> &'static str {
        include_str!("table.sql")
    }

    fn tables(&self) -> Vec<(&'static str, Vec<String>)> {
        let own =
            ["source", "metric", "subject", "netns", "unit", "status", "delta", "total", "note"];
        vec![("throttle", columns(&own))]
    }

    fn readme(&self) -> &'static str {
        include_str!("README.md")
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(decode::ThrottleDecoder::new(self.tables().remove(0).1))
    }
}

#[cfg(test)]
mod tests;
