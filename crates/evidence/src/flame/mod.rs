//! What flame graphs are made of: samples, the ledger's totals, requests and waits.
//!
//! Two scopes. A time range: samples are summed by thread, state and stack where they are stored, so
//! that an hour of a busy host is a few thousand rows. Requests: single samples of the threads that
//! served them, clipped to the time between first read and last byte sent.

mod clip;
mod goroutines;
mod idle;
mod loops;
mod ongoing;
mod requests;
mod rows;
mod running;
pub(crate) mod stacks;
mod threads;
mod timeline;

use underspan_flame::{Kind, Sample, Totals};
use underspan_model::{LostEvents, Request};
use underspan_store::Store;

pub use idle::Serving;
pub use requests::{RequestFilter, requests_for_flame};
pub use timeline::timeline;

use crate::Error;
use crate::query::{START, Select};
use rows::{Conditions, Grain, Table};
use threads::Threads;

/// Rows that are read at most, the heaviest first.
pub(crate) const ROWS: u64 = 200_000;

/// Which samples.
#[derive(Clone, Debug)]
pub struct FlameQuery {
    /// Which time.
    pub kind: Kind,
    /// From here on, in nanoseconds since the Unix epoch.
    pub since: u64,
    /// Up to here.
    pub until: u64,
    /// Of this process only, as the host sees it.
    pub pid: Option<u32>,
    /// Of processes with this name only.
    pub process: Option<String>,
    /// Of these threads only.
    pub thread: Option<ThreadFilter>,
}

/// Which threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThreadFilter {
    /// The one with this id, as the host sees it.
    Id(u32),
    /// Those with this name.
    Name(String),
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// The samples, as they were taken: not scaled.
    pub samples: Vec<Sample>,
    /// Waits that are not over, each with the most of the ledger's time that it can account for.
    pub ongoing: Vec<Sample>,
    /// The ledger's totals of the same time, threads and states. Threads whose totals cannot be told
    /// (event loops that serve several requests at once) are not in it.
    pub totals: Totals,
    /// Whether there were more rows than are read.
    pub is_cut: bool,
    /// Which processes serve requests; in a picture of requests none, as all of its time is theirs.
    pub serving: Serving,
    /// Events that were lost meanwhile.
    pub lost: Vec<LostEvents>,
}

/// When the rows of a table are of.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Extent {
    /// The table.
    pub table: String,
    /// How many rows it has.
    pub rows: u64,
    /// When the first begins; 0 without rows.
    pub first: u64,
    /// When the last begins; 0 without rows.
    pub last: u64,
}

/// The samples of a time range, and the ledger's totals.
///
/// # Errors
///
/// When the store cannot be asked.
pub async fn samples_in_range(store: &Store, query: &FlameQuery) -> Result<Collected, Error> {
    let serving = Serving::until(store, query.until).await?;
    // Threads of a goroutine's name there are none.
    let all = FlameQuery { thread: None, ..query.clone() };
    let of = if query.kind == Kind::Goroutine { &all } else { query };
    let (mut threads, totals) = Threads::in_range(store, of).await?;
    let conditions = Conditions::range(query);
    let lost = lost_events(store, query.since, query.until).await?;
    let has_totals = !matches!(query.kind, Kind::Loop | Kind::Goroutine);
    // Before the samples: a wait that ends in between is in both, and counts once. The other way round it
    // would be in neither.
    let ongoing = match has_totals {
        true => ongoing::in_range(store, query, &mut threads, &serving).await?,
        false => Vec::new(),
    };
    let found = match query.kind {
        Kind::Loop => loops::stalls(store, &conditions, &mut threads).await?,
        Kind::Goroutine => goroutines::goroutines(store, query, &mut threads).await?,
        _ => {
            let grain = Grain::Summed;
            rows::samples(store, query.kind, &conditions, grain, &mut threads, &serving).await?
        }
    };
    let totals = if has_totals { totals } else { Totals::new() };
    Ok(Collected { samples: found.samples, ongoing, totals, is_cut: found.is_cut, serving, lost })
}

/// The samples of the threads that served these requests while they did, and what the requests'
/// ledgers sum to.
///
/// # Errors
///
/// When the store cannot be asked.
pub async fn samples_of_requests(
    store: &Store,
    kind: Kind,
    requests: &[Request],
) -> Result<Collected, Error> {
    let mut threads = Threads::of_requests(requests);
    let windows = clip::windows(requests, &mut threads);
    let mut collected =
        Collected { totals: clip::totals(kind, requests, &mut threads), ..Collected::default() };
    let serving = Serving::default();
    for batch in clip::batches(&windows, rows::WINDOWS) {
        collected.ongoing.extend(ongoing::in_windows(store, kind, batch, &mut threads).await?);
        let conditions = Conditions::windows(batch);
        let found =
            rows::samples(store, kind, &conditions, Grain::Single, &mut threads, &serving).await?;
        collected.is_cut |= found.is_cut;
        collected.samples.extend(clip::clipped(found.samples, batch));
    }
    let begin = windows.iter().map(|window| window.begin).min();
    let end = windows.iter().map(|window| window.end).max();
    if let (Some(begin), Some(end)) = (begin, end) {
        collected.lost = lost_events(store, begin, end).await?;
    }
    Ok(collected)
}

/// When there are rows at all, of the tables that pictures of this kind are made of.
///
/// # Errors
///
/// When the store cannot be asked.
pub async fn extents(store: &Store, kind: Kind) -> Result<Vec<Extent>, Error> {
    let mut extents = Vec::new();
    let tables = Table::of(kind).iter().map(|table| table.name()).chain(["thread_states"]);
    for table in tables {
        // The table's name is one of ours.
        let sql = format!(
            "SELECT '{table}' AS table, count() AS rows, \
                toUInt64(greatest(0, toUnixTimestamp64Nano(min(start_time)))) AS first, \
                toUInt64(greatest(0, toUnixTimestamp64Nano(max(start_time)))) AS last FROM {table}"
        );
        extents.extend(Select::new(store, table, &sql).rows::<Extent>().await?);
    }
    Ok(extents)
}

/// Events that were lost between two times.
///
/// # Errors
///
/// When the store cannot be asked.
pub async fn lost_events(store: &Store, since: u64, until: u64) -> Result<Vec<LostEvents>, Error> {
    let sql = format!(
        "SELECT {START}, host, duration_ns, tracker, reason, count FROM lost_events AS t \
         WHERE t.start_time >= fromUnixTimestamp64Nano({{from:Int64}}) \
            AND t.start_time < fromUnixTimestamp64Nano({{until:Int64}}) \
            AND toUnixTimestamp64Nano(t.start_time) + duration_ns > {{since:Int64}} \
         LIMIT {{rows:UInt64}}"
    );
    Select::new(store, "lost_events", &sql)
        .time("from", since.saturating_sub(crate::rows::LONGEST_NS))
        .time("since", since)
        .time("until", until)
        .param("rows", ROWS)
        .rows()
        .await
}
