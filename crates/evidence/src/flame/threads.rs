//! Threads by id, and the ledger's totals.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;
use underspan_flame::{Thread, Totals};
use underspan_model::{Ledger, Request, State, column};
use underspan_store::Store;

use super::FlameQuery;
use super::rows::Conditions;
use crate::Error;

/// Threads that are known, by host, process and id.
#[derive(Default)]
pub(super) struct Threads {
    known: HashMap<(String, u32, u32), Arc<Thread>>,
    processes: HashMap<(String, u32), String>,
}

#[derive(Deserialize)]
struct Row {
    host: String,
    pid: u32,
    tid: u32,
    thread: String,
    process: String,
    #[serde(flatten)]
    ledger: Ledger,
}

impl Threads {
    /// The threads of a time range, with what the ledger says of it. Rows that the range cuts are
    /// counted by the part that lies in it.
    pub(super) async fn in_range(
        store: &Store,
        query: &FlameQuery,
    ) -> Result<(Threads, Totals), Error> {
        let sums = State::ALL.map(|state| {
            let name = column(state);
            format!("toUInt64(round(sum(t.{name} * share))) AS {name}")
        });
        let conditions = Conditions::range(query);
        let sql = format!(
            "WITH greatest(0, least({{until:Int64}}, toUnixTimestamp64Nano(t.start_time) + t.duration_ns) \
                - greatest({{since:Int64}}, toUnixTimestamp64Nano(t.start_time))) \
                / greatest(t.duration_ns, 1) AS share \
             SELECT t.host AS host, t.pid AS pid, t.tid AS tid, \
                argMax(t.thread, t.start_time) AS thread, \
                argMax(t.process, t.start_time) AS process, {} \
             FROM thread_states AS t WHERE {} GROUP BY host, pid, tid LIMIT {{rows:UInt64}}",
            sums.join(", "),
            conditions.sql(),
        );
        let rows: Vec<Row> = conditions.select(store, "thread_states", &sql).rows().await?;
        let (mut threads, mut totals) = (Threads::default(), Totals::new());
        for row in rows {
            threads.processes.entry((row.host.clone(), row.pid)).or_insert(row.process);
            let thread = threads.get(&row.host, row.pid, row.tid, &row.thread);
            for (state, ns) in row.ledger.iter().filter(|(state, _)| query.kind.has(*state)) {
                totals.insert((Arc::clone(&thread), state), ns);
            }
        }
        Ok((threads, totals))
    }

    /// The threads that read these requests.
    pub(super) fn of_requests(requests: &[Request]) -> Threads {
        let mut threads = Threads::default();
        for request in requests {
            threads.of_request(request);
        }
        threads
    }

    /// The thread that read the request.
    pub(super) fn of_request(&mut self, request: &Request) -> Arc<Thread> {
        let process = (request.host.clone(), request.pid);
        self.processes.entry(process).or_insert_with(|| request.process.clone());
        self.get(&request.host, request.pid, request.tid, &request.thread)
    }

    /// The goroutines of a process that were started with this function.
    pub(super) fn goroutines(&mut self, host: &str, pid: u32, function: &str) -> Arc<Thread> {
        let process = self.processes.get(&(host.to_owned(), pid)).cloned().unwrap_or_default();
        let (host, name) = (host.to_owned(), function.to_owned());
        Arc::new(Thread { host, pid, tid: 0, process, name })
    }

    /// The thread with these ids. One that is not known yet gets this name.
    pub(super) fn get(&mut self, host: &str, pid: u32, tid: u32, name: &str) -> Arc<Thread> {
        let process = self.processes.get(&(host.to_owned(), pid));
        // A process too short-lived for the ledger's table goes by its first thread's name.
        let process = process.map(String::as_str).or((tid == pid).then_some(name));
        let thread = self.known.entry((host.to_owned(), pid, tid)).or_insert_with(|| {
            Arc::new(Thread {
                host: host.to_owned(),
                pid,
                tid,
                process: process.unwrap_or_default().to_owned(),
                name: name.to_owned(),
            })
        });
        Arc::clone(thread)
    }
}
