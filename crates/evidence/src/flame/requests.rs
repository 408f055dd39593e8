//! The requests that a picture is of.

use underspan_model::Request;
use underspan_store::Store;

use super::{FlameQuery, ThreadFilter};
use crate::Error;
use crate::query::Select;
use crate::requests::columns;

/// Which requests.
#[derive(Clone, Debug)]
pub struct RequestFilter {
    /// Their time, process and thread.
    pub query: FlameQuery,
    /// HTTP method; any if empty.
    pub method: String,
    /// HTTP path; any if empty.
    pub path: String,
    /// Also those that no thread began to handle.
    pub unhandled: bool,
    /// At most so many, the latest.
    pub limit: u64,
}

/// Requests that pass the filter, the latest first.
///
/// # Errors
///
/// When the store cannot be asked.
pub async fn requests_for_flame(
    store: &Store,
    filter: &RequestFilter,
) -> Result<Vec<Request>, Error> {
    let mut conditions = String::from(
        "t.start_time >= fromUnixTimestamp64Nano({since:Int64}) \
         AND t.start_time < fromUnixTimestamp64Nano({until:Int64})",
    );
    let query = &filter.query;
    let (mut tid, mut thread) = (0, "");
    for (is_wanted, condition) in [
        (!filter.unhandled, " AND handler_ns > 0"),
        (query.pid.is_some(), " AND pid = {pid:UInt32}"),
        (query.process.is_some(), " AND process = {process:String}"),
        (!filter.method.is_empty(), " AND method = {method:String}"),
        (!filter.path.is_empty(), " AND path = {path:String}"),
    ] {
        if is_wanted {
            conditions += condition;
        }
    }
    match &query.thread {
        Some(ThreadFilter::Id(id)) => {
            conditions += " AND tid = {tid:UInt32}";
            tid = *id;
        }
        Some(ThreadFilter::Name(name)) => {
            conditions += " AND thread = {thread:String}";
            thread = name;
        }
        None => {}
    }
    let sql = format!(
        "SELECT {} FROM requests AS t WHERE {conditions} \
         ORDER BY t.start_time DESC, request_id LIMIT {{limit:UInt64}}",
        columns()
    );
    Select::new(store, "requests", &sql)
        .time("since", query.since)
        .time("until", query.until)
        .param("pid", query.pid.unwrap_or(0))
        .param("process", query.process.as_deref().unwrap_or_default())
        .param("tid", tid)
        .param("thread", thread)
        .param("method", &filter.method)
        .param("path", &filter.path)
        .param("limit", filter.limit)
        .rows()
        .await
}
