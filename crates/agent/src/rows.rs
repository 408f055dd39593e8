//! Rows of the tables that belong to no tracker. Columns are in the order of `core.sql`.

use underspan_model::{FrameKind, LostEvents, Stack};
use underspan_store::Batch;

/// The table of what could not be recorded.
pub const LOST_EVENTS: &str = "lost_events";

/// The columns of [`LOST_EVENTS`].
pub const LOST_EVENTS_COLUMNS: &[&str] =
    &["host", "start_time", "duration_ns", "tracker", "reason", "count"];

/// The table of the agent's own cost.
pub const AGENT_STATS: &str = "agent_stats";

/// The columns of [`AGENT_STATS`].
pub const AGENT_STATS_COLUMNS: &[&str] = &[
    "host",
    "start_time",
    "duration_ns",
    "cpu_ns",
    "rss_bytes",
    "bpf_ns",
    "bpf_runs",
    "events",
    "rows",
    "spool_bytes",
    "watched_processes",
    "watched_threads",
];

/// The table of watched processes.
pub const PROCESSES: &str = "processes";

/// The columns of [`PROCESSES`].
pub const PROCESSES_COLUMNS: &[&str] = &[
    "host",
    "pid",
    "start_time",
    "seen",
    "ns_pid",
    "ppid",
    "process",
    "exe",
    "cmdline",
    "cgroup",
    "python",
    "gil",
    "gc_rung",
    "why",
];

/// The table of stacks with names.
pub const STACKS: &str = "stacks";

/// The table of how walks of stacks ended.
pub const STACK_ENDS: &str = "stack_ends";

/// The columns of [`STACK_ENDS`].
pub const STACK_ENDS_COLUMNS: &[&str] =
    &["host", "start_time", "duration_ns", "part", "end", "count"];

/// Appends a row to a batch of [`LOST_EVENTS`].
pub fn lost_events(batch: &mut Batch, row: &LostEvents) {
    batch
        .row()
        .str(&row.host)
        .time(row.start_time)
        .u64(row.duration_ns)
        .str(&row.tracker)
        .str(&row.reason)
        .u64(row.count);
}

/// Appends a row to a batch of [`STACKS`].
pub fn stack(batch: &mut Batch, host: &str, stack_id: u64, seen: u64, stack: &Stack) {
    let mut row = batch.row();
    row.str(host).u64(stack_id).time(seen);
    let frames = &stack.frames;
    row.len(frames.len());
    frames.iter().map(|frame| frame.kind).map(FrameKind::name).for_each(|kind| {
        row.str(kind);
    });
    row.len(frames.len());
    for frame in frames {
        row.str(&frame.function);
    }
    row.len(frames.len());
    for frame in frames {
        row.str(&frame.file);
    }
    row.len(frames.len());
    for frame in frames {
        row.u32(frame.line);
    }
    row.len(frames.len());
    for frame in frames {
        row.str(&frame.module);
    }
    row.str(&stack.truncated);
}

/// How many walks of one part of stacks ended in one way between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackEnds<'a> {
    /// The watched host.
    pub host: &'a str,
    /// When the counting began, Unix ns.
    pub start_time: u64,
    /// How long it covers, in ns.
    pub duration_ns: u64,
    /// `kernel`, `native` or `python`.
    pub part: &'a str,
    /// Name of a `StackEnd`.
    pub end: &'a str,
    /// How many.
    pub count: u64,
}

/// Appends a row to a batch of [`STACK_ENDS`].
pub fn stack_ends(batch: &mut Batch, row: &StackEnds<'_>) {
    batch
        .row()
        .str(row.host)
        .time(row.start_time)
        .u64(row.duration_ns)
        .str(row.part)
        .str(row.end)
        .u64(row.count);
}

/// What the agent itself used between two moments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentStats {
    /// The watched host.
    pub host: String,
    /// When the counting began, Unix ns.
    pub start_time: u64,
    /// How long it covers, in ns.
    pub duration_ns: u64,
    /// CPU time of the agent's process in ns, without BPF.
    pub cpu_ns: u64,
    /// Resident memory at the end, in bytes.
    pub rss_bytes: u64,
    /// Run time of the BPF programs in ns; 0 while BPF statistics are off.
    pub bpf_ns: u64,
    /// Runs of the BPF programs; 0 while BPF statistics are off.
    pub bpf_runs: u64,
    /// Events decoded.
    pub events: u64,
    /// Rows made of them.
    pub rows: u64,
    /// Bytes in the spool at the end.
    pub spool_bytes: u64,
    /// Watched processes at the end.
    pub watched_processes: u32,
    /// Watched threads at the end.
    pub watched_threads: u32,
}

/// Appends a row to a batch of [`AGENT_STATS`].
pub fn agent_stats(batch: &mut Batch, row: &AgentStats) {
    batch
        .row()
        .str(&row.host)
        .time(row.start_time)
        .u64(row.duration_ns)
        .u64(row.cpu_ns)
        .u64(row.rss_bytes)
        .u64(row.bpf_ns)
        .u64(row.bpf_runs)
        .u64(row.events)
        .u64(row.rows)
        .u64(row.spool_bytes)
        .u32(row.watched_processes)
        .u32(row.watched_threads);
}

/// A watched process as it was at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessRow {
    /// The watched host.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// When it started, Unix ns.
    pub start_time: u64,
    /// When this was read, Unix ns.
    pub seen: u64,
    /// `pid` as the process sees it.
    pub ns_pid: u32,
    /// Its parent.
    pub ppid: u32,
    /// Its name.
    pub process: String,
    /// Its executable.
    pub exe: String,
    /// Its command line, arguments separated by spaces.
    pub cmdline: String,
    /// Its cgroup.
    pub cgroup: String,
    /// The version of its CPython, or empty.
    pub python: String,
    /// How its GIL was found, or why not.
    pub gil: String,
    /// How its collections are seen.
    pub gc_rung: String,
    /// Why it is watched.
    pub why: String,
}

/// Appends a row to a batch of [`PROCESSES`].
pub fn process(batch: &mut Batch, row: &ProcessRow) {
    batch
        .row()
        .str(&row.host)
        .u32(row.pid)
        .time(row.start_time)
        .time(row.seen)
        .u32(row.ns_pid)
        .u32(row.ppid)
        .str(&row.process)
        .str(&row.exe)
        .str(&row.cmdline)
        .str(&row.cgroup)
        .str(&row.python)
        .str(&row.gil)
        .str(&row.gc_rung)
        .str(&row.why);
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORE: &str = include_str!("../../store/src/sql/core.sql");

    /// The columns of a table as its SQL declares them: name and ClickHouse type.
    fn declared(sql: &str, table: &str) -> Vec<(String, String)> {
        let start = sql.find(&format!("EXISTS {table}{{on_cluster}}")).expect("table in the SQL");
        let body = &sql[start..];
        let body = &body[body.find("(\n").unwrap() + 2..body.find("\n) ENGINE").unwrap()];
        body.lines()
            .map(|line| {
                let line = line.trim().trim_end_matches(',');
                let (name, rest) = line.split_once(' ').unwrap();
                let kind = rest.split(" CODEC").next().unwrap();
                (name.to_owned(), kind.to_owned())
            })
            .collect()
    }

    /// How many bytes a row of empty strings takes in RowBinary.
    fn empty_row_bytes(columns: &[(String, String)]) -> usize {
        let width = |kind: &str| match kind {
            "String" | "LowCardinality(String)" => 1,
            _ if kind.starts_with("Array(") => 1,
            "UInt32" => 4,
            "UInt64" | "DateTime64(9, 'UTC')" => 8,
            other => panic!("a type the test does not know: {other}"),
        };
        columns.iter().map(|(_, kind)| width(kind)).sum()
    }

    fn assert_matches(sql: &str, table: &str, columns: &[&str], batch: &Batch) {
        let declared = declared(sql, table);
        let names: Vec<_> = declared.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, columns);
        assert_eq!(batch.rows, 1);
        assert_eq!(batch.bytes.len(), empty_row_bytes(&declared), "{table}");
    }

    #[test]
    fn rows_have_the_columns_and_types_of_their_tables() {
        let mut batch = Batch::new(LOST_EVENTS, LOST_EVENTS_COLUMNS);
        let row = LostEvents {
            host: String::new(),
            start_time: 1,
            duration_ns: 2,
            tracker: String::new(),
            reason: String::new(),
            count: 3,
        };
        lost_events(&mut batch, &row);
        assert_matches(CORE, LOST_EVENTS, LOST_EVENTS_COLUMNS, &batch);

        let mut batch = Batch::new(AGENT_STATS, AGENT_STATS_COLUMNS);
        agent_stats(&mut batch, &AgentStats::default());
        assert_matches(CORE, AGENT_STATS, AGENT_STATS_COLUMNS, &batch);

        let mut batch = Batch::new(PROCESSES, PROCESSES_COLUMNS);
        process(&mut batch, &ProcessRow::default());
        assert_matches(CORE, PROCESSES, PROCESSES_COLUMNS, &batch);

        let sql = underspan_trackers::stack::component().sql;
        let mut batch = Batch::new(STACKS, &underspan_trackers::stack::COLUMNS);
        stack(&mut batch, "", 1, 2, &Stack::default());
        assert_matches(sql, STACKS, &underspan_trackers::stack::COLUMNS, &batch);

        let mut batch = Batch::new(STACK_ENDS, STACK_ENDS_COLUMNS);
        stack_ends(&mut batch, &StackEnds::default());
        assert_matches(sql, STACK_ENDS, STACK_ENDS_COLUMNS, &batch);
    }

    #[test]
    fn frames_are_written_column_by_column() {
        let frame = |function: &str, line| underspan_model::Frame {
            kind: FrameKind::Python,
            function: function.to_owned(),
            file: "a.py".to_owned(),
            line,
            module: String::new(),
        };
        let frames = vec![frame("f", 1), frame("g", 2)];
        let mut batch = Batch::new(STACKS, &underspan_trackers::stack::COLUMNS);
        stack(&mut batch, "h", 7, 0, &Stack { frames, truncated: "too_deep".to_owned() });
        let expected = [
            b"\x01h".as_slice(),
            &7u64.to_le_bytes(),
            &0u64.to_le_bytes(),
            b"\x02\x06python\x06python",
            b"\x02\x01f\x01g",
            b"\x02\x04a.py\x04a.py",
            b"\x02\x01\0\0\0\x02\0\0\0",
            b"\x02\0\0",
            b"\x08too_deep",
        ];
        assert_eq!(batch.bytes, expected.concat());
    }
}
