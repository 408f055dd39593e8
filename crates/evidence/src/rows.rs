//! The rows around one request.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use underspan_explain::{Evidence, INTERFERENCE, PASSED_ON_NS, Process};
use underspan_model::{
    GcPause, GilWait, LoopStall, LostEvents, PathStep, Request, Span, State, ThreadStates, Wait,
};
use underspan_store::Store;

use crate::flame::stacks::Stacks;
use crate::query::{START, Select, ledger_columns};
use crate::{Error, network, samples};

/// Rows that began earlier than this before the request are not looked for, however long they last:
/// a table ordered by start has no index for "still going on".
pub(crate) const LONGEST_NS: u64 = 600_000_000_000;
/// Requests this long before tell which threads serve requests.
const POOL_NS: u64 = 10_000_000_000;
/// Requests that are looked at for the one that a proxy made of this one. Among more it cannot be told.
const UPSTREAMS: u64 = 1000;
/// Threads of other processes that are asked what they served.
const WAKERS: usize = 4;
/// Rows of a kind that are read at most.
pub(crate) const ROWS: u64 = 20_000;

const THREAD: &str = "host, pid, tid, duration_ns, ns_pid, ns_tid, thread";
/// Columns of `waits`, but for its start.
pub(crate) const WAIT: &str = "host, pid, tid, duration_ns, ns_pid, ns_tid, thread, state, \
    runnable_ns, waker_pid, waker_tid, waker_thread, holder_tid, holder_thread, holder_pid, \
    holder_process, futex_addr, syscall, fd, peer, local, slices";
const OVERLAPS: &str = "host = {host:String} AND pid = {pid:UInt32} \
    AND t.start_time >= fromUnixTimestamp64Nano({from:Int64}) \
    AND t.start_time <= fromUnixTimestamp64Nano({end:Int64}) \
    AND toUnixTimestamp64Nano(t.start_time) + duration_ns >= {begin:Int64}";

/// Everything that `explain` needs to know about a request.
///
/// # Errors
///
/// When the store cannot be asked.
pub async fn evidence_for(store: &Store, request: Request) -> Result<Evidence, Error> {
    let around = Around { store, request: &request };
    let (spans, waits, gc_pauses, gil_waits, siblings, thread_states, process, lost) = tokio::try_join!(
        around.spans(),
        around.waits(),
        around.gc_pauses(),
        around.gil_waits(),
        around.siblings(),
        around.thread_states(),
        around.process(),
        around.lost(),
    )?;
    let threads = samples::suspects(&request, &waits, &gil_waits, &gc_pauses);
    let (samples, stalls, ongoing, upstreams) = tokio::try_join!(
        samples::samples_during(store, &request, &threads),
        around.stalls(),
        samples::ongoing(store, &request),
        around.upstreams()
    )?;
    let network = network::Network::read(store, &request, &waits).await?;
    let wakers = around.wakers(&waits).await?;
    Ok(Evidence {
        path: around.path().await?,
        losses: network.losses,
        connects: network.connects,
        accepts: network.accepts,
        listeners: network.listeners,
        peers: network.peers,
        upstreams,
        reader_waits: network.reader_waits,
        wakers,
        counters: network.counters,
        packets: network.packets,
        samples,
        ongoing,
        stalls,
        request: Some(request),
        spans,
        waits,
        gc_pauses,
        gil_waits,
        siblings,
        thread_states,
        process,
        lost,
    })
}

/// The spans of a trace.
///
/// # Errors
///
/// When the store cannot be asked.
pub async fn spans_of_trace(store: &Store, trace_id: &str) -> Result<Vec<Span>, Error> {
    #[derive(Deserialize)]
    struct Bounds {
        from: i64,
        to: i64,
        found: u64,
    }
    // The table beside it says when the trace was; its whole seconds are rounded down.
    let bounds: Vec<Bounds> = Select::new(
        store,
        "otel_traces_trace_id_ts",
        "SELECT toInt64(toUnixTimestamp(min(Start))) AS from, \
                toInt64(toUnixTimestamp(max(End))) AS to, count() AS found \
         FROM otel_traces_trace_id_ts WHERE TraceId = {id:String}",
    )
    .param("id", trace_id)
    .rows()
    .await?;
    let Some(bounds) = bounds.into_iter().next().filter(|bounds| bounds.found > 0) else {
        return Ok(Vec::new());
    };
    let sql = "SELECT TraceId AS trace_id, SpanId AS span_id, ParentSpanId AS parent_span_id, \
            SpanName AS name, lower(replaceOne(SpanKind, 'SPAN_KIND_', '')) AS kind, \
            ServiceName AS service, \
            toUInt64(greatest(0, toUnixTimestamp64Nano(Timestamp))) AS start_time, \
            Duration AS duration_ns, \
            toUInt32OrZero(SpanAttributes['underspan.pid']) AS pid, \
            toUInt32OrZero(SpanAttributes['underspan.tid']) AS tid, \
            multiIf(StatusCode IN ('Ok', 'STATUS_CODE_OK'), 'ok', \
                    StatusCode IN ('Error', 'STATUS_CODE_ERROR'), 'error', '') AS status \
         FROM otel_traces \
         WHERE TraceId = {id:String} \
            AND Timestamp >= fromUnixTimestamp64Nano({from:Int64}) \
            AND Timestamp <= fromUnixTimestamp64Nano({to:Int64}) \
         ORDER BY Timestamp LIMIT {rows:UInt64}";
    Select::new(store, "otel_traces", sql)
        .param("id", trace_id)
        .param("from", bounds.from.saturating_mul(1_000_000_000))
        .param("to", bounds.to.saturating_add(1).saturating_mul(1_000_000_000))
        .param("rows", ROWS)
        .rows()
        .await
}

struct Around<'a> {
    store: &'a Store,
    request: &'a Request,
}

impl Around<'_> {
    /// A query whose text may use [`OVERLAPS`].
    fn select(&self, table: &'static str, sql: &str) -> Select<'_> {
        let begin = self.request.start_time;
        Select::new(self.store, table, sql)
            .param("host", &self.request.host)
            .param("pid", self.request.pid)
            .time("from", begin.saturating_sub(LONGEST_NS))
            .time("begin", begin)
            .time("end", begin.saturating_add(self.request.duration_ns))
            .param("rows", ROWS)
    }

    /// Of its own thread and of those that accepted and that answered; then of others on the same locks, or, where it
    /// waited for a thread, of all of them.
    async fn waits(&self) -> Result<Vec<Wait>, Error> {
        let columns = format!("{START}, {WAIT}");
        let threads = "tid IN ({tid:UInt32}, {acceptor:UInt32}, {sender:UInt32})";
        let sql = format!(
            "SELECT {columns} FROM waits AS t WHERE {OVERLAPS} AND {threads} LIMIT {{rows:UInt64}}"
        );
        let mut waits: Vec<Wait> = self.of_threads("waits", &sql).rows().await?;
        if self.request.handoff_ns >= INTERFERENCE.ns {
            // Those of other threads on the same locks are among them.
            let sql = format!(
                "SELECT {columns} FROM waits AS t WHERE {OVERLAPS} AND NOT {threads} \
                 AND state IN ('net_read', 'net_write', 'net_connect', 'lock_wait') \
                 ORDER BY duration_ns DESC LIMIT {{rows:UInt64}}"
            );
            waits.extend(self.of_threads("waits", &sql).rows::<Wait>().await?);
            return Ok(waits);
        }
        if self.request.ledger[State::LockWait] < INTERFERENCE.ns {
            return Ok(waits);
        }
        let futexes = waits.iter().filter(|w| w.state == State::LockWait && w.futex_addr != 0);
        let futexes: BTreeSet<_> = futexes.map(|w| w.futex_addr).collect();
        let futexes: Vec<_> = futexes.into_iter().collect();
        if !futexes.is_empty() {
            let sql = format!(
                "SELECT {columns} FROM waits AS t WHERE {OVERLAPS} AND NOT {threads} \
                 AND state = 'lock_wait' AND futex_addr IN {{futexes:Array(UInt64)}} \
                 LIMIT {{rows:UInt64}}"
            );
            let others = self.of_threads("waits", &sql).param("futexes", futexes);
            waits.extend(others.rows::<Wait>().await?);
        }
        Ok(waits)
    }

    /// What other processes of its host served within it, where it may have been passed on to. A proxy's request has
    /// a route; so has what it makes of it.
    async fn upstreams(&self) -> Result<Vec<Request>, Error> {
        let request = self.request;
        if request.path.is_empty() {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT {} FROM requests AS t WHERE host = {{host:String}} AND pid != {{pid:UInt32}} \
                AND t.start_time >= fromUnixTimestamp64Nano({{begin:Int64}}) \
                AND t.start_time <= fromUnixTimestamp64Nano({{end:Int64}}) \
                AND (method = {{method:String}} AND path = {{path:String}} \
                    AND toUnixTimestamp64Nano(t.start_time) + duration_ns >= {{passed_on:Int64}} \
                    OR trace_id = {{trace:String}} AND trace_id != '') LIMIT {{upstreams:UInt64}}",
            crate::requests::columns()
        );
        let end = request.start_time.saturating_add(request.duration_ns);
        let select = self
            .select("requests", &sql)
            .param("method", &request.method)
            .param("path", &request.path)
            .time("passed_on", end.saturating_sub(PASSED_ON_NS))
            .param("trace", &request.trace_id)
            .param("upstreams", UPSTREAMS);
        let found: Vec<Request> = select.rows().await?;
        Ok(if found.len() as u64 == UPSTREAMS { Vec::new() } else { found })
    }

    /// What threads of other processes served when they ended its own longest waits for events.
    async fn wakers(&self, waits: &[Wait]) -> Result<Vec<Request>, Error> {
        let own = |w: &&Wait| w.tid == self.request.tid && w.state == State::PollWait;
        let mut own: Vec<_> = waits.iter().filter(own).collect();
        own.retain(|w| ![0, w.pid].contains(&w.waker_pid) && w.duration_ns >= INTERFERENCE.ns);
        own.sort_by_key(|w| std::cmp::Reverse(w.duration_ns));
        let wakers: BTreeSet<_> =
            own.iter().take(WAKERS).map(|w| (w.waker_pid, w.waker_tid)).collect();
        let mut served = Vec::new();
        for (pid, tid) in wakers {
            let sql = format!(
                "SELECT {} FROM requests AS t WHERE host = {{host:String}} AND pid = {{waker:UInt32}} \
                    AND tid = {{waker_tid:UInt32}} \
                    AND t.start_time >= fromUnixTimestamp64Nano({{from:Int64}}) \
                    AND t.start_time <= fromUnixTimestamp64Nano({{end:Int64}}) \
                    AND toUnixTimestamp64Nano(t.start_time) + duration_ns >= {{begin:Int64}} \
                 LIMIT {{rows:UInt64}}",
                crate::requests::columns()
            );
            let select = self.select("requests", &sql).param("waker", pid).param("waker_tid", tid);
            served.extend(select.rows::<Request>().await?);
        }
        Ok(served)
    }

    async fn path(&self) -> Result<Vec<PathStep>, Error> {
        let sql = format!(
            "SELECT {START}, pid, tid, thread, duration_ns, step, depth, kind, state \
             FROM critical_path AS t WHERE host = {{host:String}} AND request_id = {{id:String}} \
                AND t.start_time >= fromUnixTimestamp64Nano({{from:Int64}}) \
                AND t.start_time <= fromUnixTimestamp64Nano({{end:Int64}}) \
             ORDER BY step LIMIT {{rows:UInt64}}"
        );
        let mut path: Vec<PathStep> =
            self.select("critical_path", &sql).param("id", &self.request.request_id).rows().await?;
        let others = path.iter().map(|step| step.pid).filter(|pid| *pid != self.request.pid);
        let names = self.process_names(others.collect()).await?;
        for step in &mut path {
            step.process = names.get(&step.pid).cloned().unwrap_or_default();
        }
        Ok(path)
    }

    /// What processes of its host were called when it ended.
    async fn process_names(&self, pids: BTreeSet<u32>) -> Result<BTreeMap<u32, String>, Error> {
        #[derive(Deserialize)]
        struct Named {
            pid: u32,
            process: String,
        }
        if pids.is_empty() {
            return Ok(BTreeMap::new());
        }
        let sql = "SELECT pid, argMax(process, (start_time, seen)) AS process FROM processes \
             WHERE host = {host:String} AND pid IN {pids:Array(UInt32)} \
                AND start_time <= fromUnixTimestamp64Nano({end:Int64}) GROUP BY pid";
        let pids: Vec<_> = pids.into_iter().collect();
        let named: Vec<Named> = self.select("processes", sql).param("pids", pids).rows().await?;
        Ok(named.into_iter().map(|it| (it.pid, it.process)).collect())
    }

    /// Of the event loop that served it.
    async fn stalls(&self) -> Result<Vec<LoopStall>, Error> {
        #[derive(Deserialize)]
        struct Row {
            stack_id: u64,
            #[serde(flatten)]
            stall: LoopStall,
        }
        // A loop may serve one request at a time, and be late for the next all the same.
        let queued = self.request.accept_queue_ns.saturating_add(self.request.handoff_ns);
        if self.request.shared_thread == 0 && queued < INTERFERENCE.ns {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT {START}, {THREAD}, kind, culprit_tid, culprit_thread, stack_id, {} \
             FROM loop_stall AS t WHERE {OVERLAPS} AND tid = {{tid:UInt32}} LIMIT {{rows:UInt64}}",
            ledger_columns()
        );
        let rows: Vec<Row> =
            self.select("loop_stall", &sql).param("tid", self.request.tid).rows().await?;
        let host = self.request.host.as_str();
        let stacks = Stacks::load(self.store, rows.iter().map(|row| (host, row.stack_id))).await?;
        let named = rows.into_iter().map(|row| LoopStall {
            stack: stacks.get(host, row.stack_id).cloned().unwrap_or_default(),
            ..row.stall
        });
        Ok(named.collect())
    }

    fn of_threads(&self, table: &'static str, sql: &str) -> Select<'_> {
        // A thread 0 does not exist: where the acceptor is not known, it adds nothing.
        self.select(table, sql)
            .param("tid", self.request.tid)
            .param("acceptor", self.request.accept_tid)
            .param("sender", self.request.sent_tid)
    }

    async fn gc_pauses(&self) -> Result<Vec<GcPause>, Error> {
        let sql = format!(
            "SELECT {START}, {THREAD}, generation, collected, cpu_ns, rung FROM gc_pause AS t \
             WHERE {OVERLAPS} LIMIT {{rows:UInt64}}"
        );
        self.select("gc_pause", &sql).rows().await
    }

    async fn gil_waits(&self) -> Result<Vec<GilWait>, Error> {
        let sql = format!(
            "SELECT {START}, {THREAD}, holder_tid, holder_thread, holder_ns, gc_ns, slices \
             FROM gil_wait AS t \
             WHERE {OVERLAPS} AND tid IN ({{tid:UInt32}}, {{acceptor:UInt32}}) LIMIT {{rows:UInt64}}"
        );
        self.of_threads("gil_wait", &sql).rows().await
    }

    /// Only what the rules read of a sibling: there can be many.
    async fn siblings(&self) -> Result<Vec<Request>, Error> {
        let sql = format!(
            "SELECT {START}, request_id, host, pid, tid, thread, duration_ns, accept_queue_ns, \
                handoff_ns, handler_ns, conn_request, local, peer, method, path, sent_tid, sent_thread, \
                shared_thread, end, {} \
             FROM requests AS t \
             WHERE host = {{host:String}} AND pid = {{pid:UInt32}} \
                AND t.start_time >= fromUnixTimestamp64Nano({{from:Int64}}) \
                AND t.start_time <= fromUnixTimestamp64Nano({{end:Int64}}) \
                AND (toUnixTimestamp64Nano(t.start_time) + duration_ns >= {{begin:Int64}} \
                    OR t.start_time >= fromUnixTimestamp64Nano({{pool:Int64}})) \
                AND request_id != {{id:String}} \
             ORDER BY t.start_time DESC LIMIT {{rows:UInt64}}",
            ledger_columns()
        );
        self.select("requests", &sql)
            .param("id", &self.request.request_id)
            .time("pool", self.request.start_time.saturating_sub(POOL_NS))
            .rows()
            .await
    }

    async fn thread_states(&self) -> Result<Vec<ThreadStates>, Error> {
        let sql = format!(
            "SELECT {START}, {THREAD}, process, {} FROM thread_states AS t \
             WHERE {OVERLAPS} LIMIT {{rows:UInt64}}",
            ledger_columns()
        );
        self.select("thread_states", &sql).rows().await
    }

    async fn process(&self) -> Result<Option<Process>, Error> {
        let sql = "SELECT process, cmdline, cgroup, python, gc_rung, \
                toUInt64(greatest(0, toUnixTimestamp64Nano(start_time))) AS started FROM processes \
             WHERE host = {host:String} AND pid = {pid:UInt32} \
                AND start_time <= fromUnixTimestamp64Nano({end:Int64}) \
             ORDER BY start_time DESC, seen DESC LIMIT 1";
        Ok(self.select("processes", sql).rows().await?.into_iter().next())
    }

    async fn lost(&self) -> Result<Vec<LostEvents>, Error> {
        let sql = format!(
            "SELECT {START}, host, duration_ns, tracker, reason, count FROM lost_events AS t \
             WHERE host = {{host:String}} \
                AND t.start_time >= fromUnixTimestamp64Nano({{from:Int64}}) \
                AND t.start_time <= fromUnixTimestamp64Nano({{end:Int64}}) \
                AND toUnixTimestamp64Nano(t.start_time) + duration_ns >= {{begin:Int64}} \
             LIMIT {{rows:UInt64}}"
        );
        self.select("lost_events", &sql).rows().await
    }

    /// Of its trace; without one, those stamped with its thread meanwhile.
    async fn spans(&self) -> Result<Vec<Span>, Error> {
        if !self.request.trace_id.is_empty() {
            let spans = spans_of_trace(self.store, &self.request.trace_id).await?;
            if !spans.is_empty() {
                return Ok(spans);
            }
        }
        #[derive(Deserialize)]
        struct Trace {
            trace_id: String,
        }
        if self.request.ns_tid == 0 {
            return Ok(Vec::new());
        }
        // The host's name is the span's resource's, and need not be ours.
        let sql = "SELECT DISTINCT trace_id FROM spans_by_thread \
             WHERE pid = {ns_pid:UInt32} AND tid = {ns_tid:UInt32} \
                AND start_time >= fromUnixTimestamp64Nano({begin:Int64}) \
                AND start_time <= fromUnixTimestamp64Nano({end:Int64}) LIMIT 4";
        let traces: Vec<Trace> = self
            .select("spans_by_thread", sql)
            .param("ns_pid", self.request.ns_pid)
            .param("ns_tid", self.request.ns_tid)
            .rows()
            .await?;
        let mut spans = Vec::new();
        for trace in traces {
            spans.extend(spans_of_trace(self.store, &trace.trace_id).await?);
        }
        Ok(spans)
    }
}
