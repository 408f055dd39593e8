//! Rows of `off_cpu` and `on_cpu` as samples.

use serde::Deserialize;
use underspan_flame::{Counters, Kind, Sample, Thread};
use underspan_model::State;
use underspan_store::Store;

use super::clip::Window;
use super::stacks::Stacks;
use super::threads::Threads;
use super::{FlameQuery, ROWS, Serving, ThreadFilter};
use crate::Error;
use crate::query::Select;
use crate::rows::LONGEST_NS;

/// So many windows are asked for at once.
pub(super) const WINDOWS: usize = 100;
/// A wait that a request's window cuts off at its beginning began at most so long before it: the
/// thread that reads the first byte is on a CPU.
const BEFORE_WINDOW_NS: u64 = 1_000_000_000;

/// A row of `off_cpu_ongoing` tells that the wait still went on at its end; how long after nobody knows.
const ONGOING: &str = "t.start_time >= fromUnixTimestamp64Nano({oldest:Int64}) \
    AND t.start_time < fromUnixTimestamp64Nano({until:Int64}) \
    AND toUnixTimestamp64Nano(t.start_time) + t.duration_ns >= {seen:Int64}";

/// A table with samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    OffCpu,
    OnCpu,
    LoopStall,
    Goroutine,
}

impl Table {
    pub(super) fn name(self) -> &'static str {
        match self {
            Table::OffCpu => "off_cpu",
            Table::OnCpu => "on_cpu",
            Table::LoopStall => "loop_stall",
            Table::Goroutine => "goroutine",
        }
    }

    /// Those that a kind of picture is made of.
    pub(super) fn of(kind: Kind) -> &'static [Table] {
        match kind {
            Kind::Cpu => &[Table::OnCpu],
            Kind::OffCpu | Kind::Gil | Kind::Lock => &[Table::OffCpu],
            Kind::Wall | Kind::Gc => &[Table::OnCpu, Table::OffCpu],
            Kind::Loop => &[Table::LoopStall],
            Kind::Goroutine => &[Table::Goroutine],
        }
    }

    /// What a row stands for, in nanoseconds.
    fn weight(self) -> &'static str {
        match self {
            Table::OffCpu => "t.weight_ns",
            _ => "t.duration_ns",
        }
    }

    /// The square of that by which chance moves it: where it stands for more than its own time.
    fn variance(self) -> &'static str {
        match self {
            Table::OffCpu => {
                "toFloat64(t.weight_ns) * greatest(0, toFloat64(t.weight_ns) - t.duration_ns)"
            }
            _ => "0",
        }
    }

    /// The part of a row that lies between `since` and `until`. A look at a running thread is a
    /// moment: it is in there or not.
    pub(super) fn share(self) -> &'static str {
        match self {
            Table::OnCpu => "1",
            _ => {
                "((least({until:Int64}, toUnixTimestamp64Nano(t.start_time) + t.duration_ns) \
                 - greatest({since:Int64}, toUnixTimestamp64Nano(t.start_time))) \
                 / greatest(t.duration_ns, 1))"
            }
        }
    }
}

/// Whether rows are summed by thread, state and stack, or come one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grain {
    Summed,
    Single,
}

/// Which rows, as SQL with parameters.
pub(super) struct Conditions {
    sql: String,
    since: u64,
    until: u64,
    pid: u32,
    process: String,
    thread: String,
    tid: u32,
    host: String,
}

impl Conditions {
    /// Rows that overlap the range.
    pub(super) fn range(query: &FlameQuery) -> Conditions {
        Self::with(
            query,
            "t.start_time >= fromUnixTimestamp64Nano({from:Int64}) \
             AND t.start_time < fromUnixTimestamp64Nano({until:Int64}) \
             AND toUnixTimestamp64Nano(t.start_time) + t.duration_ns > {since:Int64}",
        )
    }

    /// Waits that may go on within the range; `{oldest}` and `{seen}` are left to be filled in.
    pub(super) fn ongoing(query: &FlameQuery) -> Conditions {
        Self::with(query, ONGOING)
    }

    /// Waits that may go on within one of the windows, which are of one host.
    pub(super) fn ongoing_in(windows: &[Window]) -> Conditions {
        let each = windows.iter().map(|window| {
            let Thread { pid, tid, .. } = &*window.thread;
            format!("({pid}, {tid})")
        });
        let each: Vec<_> = each.collect();
        Conditions {
            sql: format!(
                "t.host = {{host:String}} AND (t.pid, t.tid) IN ({}) AND {ONGOING}",
                each.join(", ")
            ),
            since: windows.iter().map(|window| window.begin).min().unwrap_or(0),
            until: windows.iter().map(|window| window.end).max().unwrap_or(0),
            ..Self::windows(windows)
        }
    }

    fn with(query: &FlameQuery, overlap: &str) -> Conditions {
        let mut sql = overlap.to_owned();
        if query.pid.is_some() {
            sql += " AND t.pid = {pid:UInt32}";
        }
        if query.process.is_some() {
            sql += " AND (t.host, t.pid) IN (SELECT DISTINCT host, pid FROM thread_states \
                WHERE start_time >= fromUnixTimestamp64Nano({from:Int64}) \
                AND start_time < fromUnixTimestamp64Nano({until:Int64}) \
                AND process = {process:String})";
        }
        let (mut tid, mut thread) = (0, String::new());
        match &query.thread {
            Some(ThreadFilter::Id(id)) => {
                sql += " AND t.tid = {tid:UInt32}";
                tid = *id;
            }
            Some(ThreadFilter::Name(name)) => {
                sql += " AND t.thread = {thread:String}";
                thread.clone_from(name);
            }
            None => {}
        }
        Conditions {
            sql,
            since: query.since,
            until: query.until,
            pid: query.pid.unwrap_or(0),
            process: query.process.clone().unwrap_or_default(),
            thread,
            tid,
            host: String::new(),
        }
    }

    /// Rows that may overlap one of the windows, which are of one host.
    pub(super) fn windows(windows: &[Window]) -> Conditions {
        let each = windows.iter().map(|window| {
            // Numbers only: nothing here is text from outside.
            format!(
                "(t.pid = {} AND t.tid = {} AND t.start_time >= fromUnixTimestamp64Nano({}) \
                 AND t.start_time < fromUnixTimestamp64Nano({}))",
                window.thread.pid,
                window.thread.tid,
                signed(window.begin.saturating_sub(BEFORE_WINDOW_NS)),
                signed(window.end),
            )
        });
        let each: Vec<_> = each.collect();
        Conditions {
            sql: format!("t.host = {{host:String}} AND ({})", each.join(" OR ")),
            since: 0,
            until: i64::MAX.unsigned_abs(),
            pid: 0,
            process: String::new(),
            thread: String::new(),
            tid: 0,
            host: windows.first().map(|window| window.thread.host.clone()).unwrap_or_default(),
        }
    }

    pub(super) fn sql(&self) -> &str {
        &self.sql
    }

    /// A query whose text may use the conditions.
    pub(super) fn select<'a>(
        &self,
        store: &'a Store,
        table: &'static str,
        sql: &str,
    ) -> Select<'a> {
        Select::new(store, table, sql)
            .time("from", self.since.saturating_sub(LONGEST_NS))
            .time("since", self.since)
            .time("until", self.until)
            .param("pid", self.pid)
            .param("process", &self.process)
            .param("thread", &self.thread)
            .param("tid", self.tid)
            .param("host", &self.host)
            .param("rows", ROWS)
    }
}

fn signed(unix_ns: u64) -> i64 {
    i64::try_from(unix_ns).unwrap_or(i64::MAX)
}

/// Samples, and whether there were more.
#[derive(Default)]
pub(super) struct Found {
    pub(super) samples: Vec<Sample>,
    pub(super) is_cut: bool,
}

#[derive(Deserialize)]
struct Row {
    host: String,
    pid: u32,
    tid: u32,
    thread: String,
    state: State,
    stack_id: u64,
    in_request: u8,
    start_time: u64,
    duration: u64,
    weight: u64,
    unsure: u64,
    samples: u64,
    cycles: Option<u64>,
    instructions: Option<u64>,
    cache_misses: Option<u64>,
    branch_misses: Option<u64>,
}

/// The samples that fulfil the conditions and are of this kind.
pub(super) async fn samples(
    store: &Store,
    kind: Kind,
    conditions: &Conditions,
    grain: Grain,
    threads: &mut Threads,
    serving: &Serving,
) -> Result<Found, Error> {
    let mut rows: Vec<Row> = Vec::new();
    let mut is_cut = false;
    for table in Table::of(kind) {
        let of_table = select(store, kind, *table, conditions, grain).rows::<Row>().await?;
        is_cut |= of_table.len() as u64 >= ROWS;
        rows.extend(of_table);
    }
    let stacks =
        Stacks::load(store, rows.iter().map(|row| (row.host.as_str(), row.stack_id))).await?;
    let samples = rows.into_iter().map(|row| {
        let counters = row.counters();
        let mut sample = Sample {
            thread: threads.get(&row.host, row.pid, row.tid, &row.thread),
            start_time: row.start_time,
            duration_ns: row.duration,
            weight_ns: row.weight,
            unsure_ns: row.unsure,
            count: row.samples,
            state: row.state,
            wait: None,
            place: stacks.place(&row.host, row.stack_id),
            idle: false,
            request: None,
            counters,
        };
        serving.mark(&mut sample, row.in_request != 0);
        sample
    });
    Ok(Found { samples: samples.collect(), is_cut })
}

impl Row {
    fn counters(&self) -> Option<Counters> {
        Some(Counters {
            cycles: self.cycles?,
            instructions: self.instructions?,
            cache_misses: self.cache_misses.unwrap_or(0),
            branch_misses: self.branch_misses.unwrap_or(0),
        })
    }
}

fn select<'a>(
    store: &'a Store,
    kind: Kind,
    table: Table,
    conditions: &Conditions,
    grain: Grain,
) -> Select<'a> {
    let states: Vec<_> = kind.states().map(|state| format!("'{}'", state.name())).collect();
    let in_request = if table == Table::OffCpu { "t.in_request" } else { "1" };
    let weight = format!("{} * {}", table.weight(), table.share());
    let variance = format!("{} * {}", table.variance(), table.share());
    let start = "toUInt64(greatest(0, toUnixTimestamp64Nano(t.start_time)))";
    let counter = |name: &str| match (table, grain) {
        (Table::OnCpu, Grain::Summed) => format!("sum(t.{name}) AS {name}"),
        (Table::OnCpu, Grain::Single) => format!("t.{name} AS {name}"),
        _ => format!("NULL AS {name}"),
    };
    let counters =
        ["cycles", "instructions", "cache_misses", "branch_misses"].map(counter).join(", ");
    let key = format!(
        "t.host AS host, t.pid AS pid, t.tid AS tid, toString(t.state) AS state, t.stack_id AS stack_id, {in_request} AS in_request"
    );
    let (columns, group) = match grain {
        Grain::Summed => (
            format!(
                "{key}, any(t.thread) AS thread, min({start}) AS start_time, \
                 max(t.duration_ns) AS duration, toUInt64(round(greatest(0, sum({weight})))) AS weight, \
                 toUInt64(round(sqrt(greatest(0, sum({variance}))))) AS unsure, count() AS samples, {counters}"
            ),
            "GROUP BY host, pid, tid, state, stack_id, in_request",
        ),
        Grain::Single => (
            format!(
                "{key}, t.thread AS thread, {start} AS start_time, t.duration_ns AS duration, \
                 toUInt64(round(greatest(0, {weight}))) AS weight, \
                 toUInt64(round(sqrt(greatest(0, {variance})))) AS unsure, 1 AS samples, {counters}"
            ),
            "",
        ),
    };
    let sql = format!(
        "SELECT {columns} FROM {} AS t WHERE {} AND t.state IN ({}) {group} \
         ORDER BY weight DESC, start_time LIMIT {{rows:UInt64}}",
        table.name(),
        conditions.sql(),
        states.join(", "),
    );
    conditions.select(store, table.name(), &sql)
}
