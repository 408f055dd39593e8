//! Idle is not blocked.

use std::collections::BTreeSet;

use serde::Deserialize;
use underspan_flame::{Place, Sample, Thread};
use underspan_model::idle;
use underspan_store::Store;

use super::ROWS;
use crate::Error;
use crate::query::Select;

/// Which processes serve requests. What threads of others wait for is their work.
#[derive(Clone, Debug, Default)]
pub struct Serving {
    processes: BTreeSet<(String, u32)>,
    /// A prefork server's first process serves none itself, but goes by the name of those that do.
    names: BTreeSet<(String, String)>,
}

#[derive(Deserialize)]
struct Row {
    host: String,
    pid: u32,
    process: String,
}

impl Serving {
    pub(super) async fn until(store: &Store, until: u64) -> Result<Serving, Error> {
        let sql = "SELECT DISTINCT host, pid, process FROM requests \
             WHERE start_time < fromUnixTimestamp64Nano({until:Int64}) LIMIT {rows:UInt64}";
        let select = Select::new(store, "requests", sql).time("until", until).param("rows", ROWS);
        let mut serving = Serving::default();
        for Row { host, pid, process } in select.rows().await? {
            if !process.is_empty() {
                serving.names.insert((host.clone(), process));
            }
            serving.processes.insert((host, pid));
        }
        Ok(serving)
    }

    fn has(&self, thread: &Thread) -> bool {
        self.processes.contains(&(thread.host.clone(), thread.pid))
            || self.names.contains(&(thread.host.clone(), thread.process.clone()))
    }

    /// Marks a sample that merely waited for something to do.
    pub(super) fn mark(&self, sample: &mut Sample, in_request: bool) {
        let frames = sample.stack().map_or(&[][..], |stack| &stack.frames);
        let in_request = in_request || !self.has(&sample.thread);
        sample.idle = idle(frames, sample.state, in_request).is_some();
    }

    /// Marks the time that no sample stands for, which scaling adds: nobody knows where it was.
    pub fn mark_rest(&self, samples: &mut [Sample]) {
        for sample in samples.iter_mut().filter(|sample| sample.place == Place::NotSampled) {
            self.mark(sample, false);
        }
    }
}
