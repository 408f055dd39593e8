//! Spans that were accepted and lost, on their way to `lost_events`: what is missing is told beside
//! what is there.

use std::time::{SystemTime, UNIX_EPOCH};

use underspan_store::Batch;

const COLUMNS: [&str; 6] = ["host", "start_time", "duration_ns", "tracker", "reason", "count"];
const TRACKER: &str = "server";
const REASON: &str = "spans_store_refused";

/// Losses that are not yet in the store.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    since: u64,
    spans: u64,
}

impl Losses {
    /// So many more are lost.
    pub(crate) fn add(&mut self, spans: u64) {
        if self.spans == 0 {
            self.since = now();
        }
        self.spans += spans;
    }

    /// The row that tells of them, if there are any.
    pub(crate) fn batch(&self) -> Option<Batch> {
        if self.spans == 0 {
            return None;
        }
        let host = nix::unistd::gethostname().unwrap_or_default();
        let mut batch = Batch::new("lost_events", &COLUMNS);
        batch
            .row()
            .str(&host.to_string_lossy())
            .time(self.since)
            .u64(now().saturating_sub(self.since))
            .str(TRACKER)
            .str(REASON)
            .u64(self.spans);
        Some(batch)
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64)
}
