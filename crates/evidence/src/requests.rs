//! Finding requests.

use underspan_model::Request;
use underspan_store::Store;

use crate::Error;
use crate::query::{OLDEST_NS, START, Select, ledger_columns};

const COLUMNS: &str = "request_id, trace_id, parent_span_id, host, pid, tid, ns_pid, ns_tid, thread, \
    process, duration_ns, accept_queue_ns, handoff_ns, handler_ns, accept_to_read_ns, conn_request, \
    method, path, status, peer, local, bytes_in, bytes_out, accept_tid, sent_tid, sent_thread, \
    shared_thread, end";

/// Which requests, and how many.
#[derive(Clone, Debug)]
pub struct Filter {
    /// Those that began at or after this time (nanoseconds since the Unix epoch).
    pub since: u64,
    /// Those that began before this time.
    pub until: u64,
    /// At most so many, the slowest first.
    pub limit: u64,
    /// Of this process only, as the host sees it.
    pub pid: Option<u32>,
    /// Whose path contains this text.
    pub path: Option<String>,
    /// That took at least so many nanoseconds.
    pub min_duration_ns: u64,
}

impl Default for Filter {
    fn default() -> Self {
        Filter {
            since: 0,
            until: i64::MAX.unsigned_abs(),
            limit: 50,
            pid: None,
            path: None,
            min_duration_ns: 0,
        }
    }
}

pub(crate) fn columns() -> String {
    format!("{START}, {COLUMNS}, {}", ledger_columns())
}

/// Requests that pass the filter, slowest first.
///
/// # Errors
///
/// When the store cannot be asked.
pub async fn recent_requests(store: &Store, filter: &Filter) -> Result<Vec<Request>, Error> {
    let mut conditions = String::from(
        "t.start_time >= fromUnixTimestamp64Nano({since:Int64}) \
         AND t.start_time < fromUnixTimestamp64Nano({until:Int64}) \
         AND duration_ns >= {min:UInt64}",
    );
    if filter.pid.is_some() {
        conditions += " AND pid = {pid:UInt32}";
    }
    if filter.path.is_some() {
        conditions += " AND position(path, {path:String}) > 0";
    }
    // The slowest are found by reading only what it takes to compare them; their rows come after.
    let sql = format!(
        "SELECT {} FROM requests AS t WHERE {conditions} \
         ORDER BY duration_ns DESC, t.start_time DESC, request_id LIMIT {{limit:UInt64}}",
        columns()
    );
    Select::new(store, "requests", &sql)
        .time("since", filter.since)
        .time("until", filter.until)
        .param("min", filter.min_duration_ns)
        .param("pid", filter.pid.unwrap_or(0))
        .param("path", filter.path.as_deref().unwrap_or_default())
        .param("limit", filter.limit)
        .rows()
        .await
}

/// The request with this id; if it has no answer yet, as far as it has come.
///
/// # Errors
///
/// When the store cannot be asked.
pub async fn request_by_id(store: &Store, request_id: &str) -> Result<Option<Request>, Error> {
    let sql = format!(
        "SELECT {} FROM requests AS t WHERE request_id = {{id:String}} \
         ORDER BY t.start_time LIMIT 1",
        columns()
    );
    let rows = Select::new(store, "requests", &sql).param("id", request_id).rows();
    if let Some(request) = rows.await?.into_iter().next() {
        return Ok(Some(request));
    }
    let open = open_requests(store, "request_id = {id:String}", 1, |select| {
        select.param("id", request_id)
    });
    Ok(open.await?.into_iter().next())
}

/// Requests that have no answer yet and were told of since this time (nanoseconds since the Unix epoch), as
/// far as they have come, longest first.
///
/// # Errors
///
/// When the store cannot be asked.
pub async fn requests_in_flight(
    store: &Store,
    since: u64,
    limit: u64,
) -> Result<Vec<Request>, Error> {
    // It is told of again after a sixteenth of its age.
    let recent = "toUnixTimestamp64Nano(t.start_time) + duration_ns + duration_ns / 8 \
         >= {since:Int64} AND request_id NOT IN (SELECT request_id FROM requests \
            WHERE duration_ns >= 1000000000 \
                AND start_time >= fromUnixTimestamp64Nano({oldest:Int64}))";
    open_requests(store, recent, limit, |select| {
        select.time("since", since).time("oldest", since.saturating_sub(OLDEST_NS))
    })
    .await
}

/// The latest that is known of each.
async fn open_requests<'a>(
    store: &'a Store,
    condition: &str,
    limit: u64,
    fill: impl FnOnce(Select<'a>) -> Select<'a>,
) -> Result<Vec<Request>, Error> {
    let sql = format!(
        "SELECT {} FROM requests_open AS t WHERE {condition} \
         ORDER BY duration_ns DESC, request_id LIMIT 1 BY request_id LIMIT {{limit:UInt64}}",
        columns()
    );
    let select = Select::new(store, "requests_open", &sql).param("limit", limit);
    fill(select).rows().await
}

/// The requests of a trace, slowest first: usually one per service it went through. Where none
/// carried the trace's header, those whose thread a span of the trace was stamped with.
///
/// # Errors
///
/// When the store cannot be asked.
pub async fn requests_of_trace(store: &Store, trace_id: &str) -> Result<Vec<Request>, Error> {
    let sql = format!(
        "SELECT {} FROM requests AS t WHERE trace_id = {{id:String}} \
         ORDER BY duration_ns DESC, request_id LIMIT 1000",
        columns()
    );
    let rows: Vec<Request> =
        Select::new(store, "requests", &sql).param("id", trace_id).rows().await?;
    if !rows.is_empty() {
        return Ok(rows);
    }
    let open =
        open_requests(store, "trace_id = {id:String}", 1000, |select| select.param("id", trace_id));
    let open = open.await?;
    if !open.is_empty() {
        return Ok(open);
    }
    let mut found: Vec<Request> = Vec::new();
    for span in crate::spans_of_trace(store, trace_id).await? {
        if span.tid == 0 || span.kind != "server" {
            continue;
        }
        let sql = format!(
            "SELECT {} FROM requests AS t WHERE ns_tid = {{tid:UInt32}} AND ns_pid = {{pid:UInt32}} \
             AND t.start_time >= fromUnixTimestamp64Nano({{from:Int64}}) \
             AND t.start_time <= fromUnixTimestamp64Nano({{begin:Int64}}) \
             AND toUnixTimestamp64Nano(t.start_time) + duration_ns >= {{begin:Int64}} \
             ORDER BY t.start_time DESC LIMIT 1",
            columns()
        );
        let of_thread: Vec<Request> = Select::new(store, "requests", &sql)
            .param("tid", span.tid)
            .param("pid", span.pid)
            .time("from", span.start_time.saturating_sub(crate::rows::LONGEST_NS))
            .time("begin", span.start_time)
            .rows()
            .await?;
        found.extend(of_thread);
    }
    found.sort_by(|a, b| (b.duration_ns, &a.request_id).cmp(&(a.duration_ns, &b.request_id)));
    found.dedup_by(|a, b| a.request_id == b.request_id);
    Ok(found)
}
