//! Watches one process and what it forks, and prints every row, one JSON object a line, until
//! standard input ends. The whole agent runs; only the store is left out. `tests/kernels` uses it
//! where no store is at hand.
//!
//! `rows PID SPOOL_FOLDER`

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};
use underspan_agent::{
    Agent, Budget, Insert, InsertError, Options, Selection, Sink, SinkOptions, Spool, SpoolOptions,
};
use underspan_store::{Batch, CORE};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let [pid, folder] = std::env::args()
        .skip(1)
        .collect::<Vec<_>>()
        .try_into()
        .map_err(|args| anyhow::anyhow!("usage: rows PID SPOOL_FOLDER, not {args:?}"))?;
    let options = Options {
        host: "host".to_owned(),
        selection: Selection { pids: vec![pid.parse().context("PID")?], ..Selection::default() },
        wait_threshold: Duration::from_millis(1),
        off_cpu_period: underspan_trackers::OFF_CPU_PERIOD,
        ongoing_threshold: Duration::from_secs(1),
        on_cpu_hz: underspan_trackers::ON_CPU_HZ,
        goroutine_hz: underspan_trackers::goroutine::HZ,
        measure_bpf: false,
        budget: Budget { cpu_share: f64::INFINITY, rss_bytes: u64::MAX },
        netstack: None,
        metrics: None,
    };
    let spool = Spool::open(folder.as_ref(), SpoolOptions::default())?;
    let (sink, collector) = Sink::start(Printer::new(), spool, SinkOptions::default());
    let mut agent = Agent::open(options)?;
    agent.watch(&[]);
    if agent.watched().next().is_none() {
        bail!("process {pid} is not watched: is it there?");
    }
    print(&json!({ "table": "ready" }))?;

    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    std::thread::spawn(move || {
        // An error ends it too.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stop.store(true, Ordering::Relaxed);
    });
    // The sink's task runs on another thread.
    let outcome = agent.run(collector, &sink, &stopped);
    sink.shutdown(Duration::from_secs(60), std::future::pending()).await;
    Ok(outcome?)
}

fn print(value: &Value) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{value}")
}

/// Prints batches, read by the types that the tables are created with.
struct Printer {
    types: HashMap<(String, String), String>,
}

impl Printer {
    fn new() -> Self {
        let mut types = HashMap::new();
        for component in [CORE].into_iter().chain(underspan_trackers::components()) {
            let mut table = String::new();
            for line in component.sql.lines() {
                if let Some((table, name, kind)) = added(line) {
                    types.insert((table.to_owned(), name.to_owned()), kind.to_owned());
                }
                let mut words = line.split_whitespace();
                match (line.strip_prefix("CREATE TABLE IF NOT EXISTS "), words.next(), words.next())
                {
                    (Some(rest), ..) => {
                        table = rest.split(['{', ' ']).next().unwrap_or_default().to_owned();
                    }
                    (None, Some(name), Some(kind)) if line.starts_with(' ') => {
                        let kind = kind.trim_end_matches(',').to_owned();
                        types.insert((table.clone(), name.to_owned()), kind);
                    }
                    _ => {}
                }
            }
        }
        Printer { types }
    }

    fn row(&self, batch: &Batch, bytes: &mut &[u8]) -> anyhow::Result<Value> {
        let mut row = Map::from_iter([("table".to_owned(), json!(batch.table))]);
        for column in &batch.columns {
            let key = (batch.table.clone(), column.clone());
            let kind = self.types.get(&key).with_context(|| format!("no type for {key:?}"))?;
            row.insert(column.clone(), value(bytes, kind)?);
        }
        Ok(row.into())
    }

    fn print(&self, batch: &Batch) -> anyhow::Result<()> {
        let mut bytes = batch.bytes.as_slice();
        for _ in 0..batch.rows {
            print(&self.row(batch, &mut bytes)?)?;
        }
        if bytes.is_empty() {
            Ok(())
        } else {
            bail!("{} has {} more bytes", batch.table, bytes.len())
        }
    }
}

impl Insert for Printer {
    async fn insert(&self, batch: &Batch) -> Result<(), InsertError> {
        self.print(batch).map_err(|error| InsertError::Permanent(format!("{error:#}")))
    }
}

/// Table, name and type of a column that a later migration adds.
fn added(line: &str) -> Option<(&str, &str, &str)> {
    let (table, rest) = line.strip_prefix("ALTER TABLE ")?.split_once('{')?;
    let mut words = rest.split_once(" ADD COLUMN IF NOT EXISTS ")?.1.split([' ', ';']);
    Some((table, words.next()?, words.next()?))
}

/// Reads one value of RowBinary.
fn value(bytes: &mut &[u8], kind: &str) -> anyhow::Result<Value> {
    if let Some(of) = kind.strip_prefix("Array(").and_then(|rest| rest.strip_suffix(')')) {
        let count = length(bytes)?;
        return (0..count).map(|_| value(bytes, of)).collect();
    }
    Ok(match kind {
        "String" | "LowCardinality(String)" => json!(text(bytes)?),
        "UInt8" | "Bool" => json!(u8::from_le_bytes(take(bytes)?)),
        "UInt16" => json!(u16::from_le_bytes(take(bytes)?)),
        "UInt32" => json!(u32::from_le_bytes(take(bytes)?)),
        "UInt64" => json!(u64::from_le_bytes(take(bytes)?)),
        "Nullable(UInt64)" => match u8::from_le_bytes(take(bytes)?) {
            0 => json!(u64::from_le_bytes(take(bytes)?)),
            _ => Value::Null,
        },
        "Int8" => json!(i8::from_le_bytes(take(bytes)?)),
        "Int32" => json!(i32::from_le_bytes(take(bytes)?)),
        kind if kind == "Int64" || kind.starts_with("DateTime64(9") => {
            json!(i64::from_le_bytes(take(bytes)?))
        }
        _ => bail!("a column of type {kind}"),
    })
}

fn take<const N: usize>(bytes: &mut &[u8]) -> anyhow::Result<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk().context("a row is cut")?;
    *bytes = rest;
    Ok(*taken)
}

fn length(bytes: &mut &[u8]) -> anyhow::Result<usize> {
    let mut len = 0;
    for shift in (0..28).step_by(7) {
        let [byte] = take(bytes)?;
        len |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    Ok(len)
}

fn text(bytes: &mut &[u8]) -> anyhow::Result<String> {
    let len = length(bytes)?;
    let (text, rest) = bytes.split_at_checked(len).context("a string is cut")?;
    *bytes = rest;
    Ok(String::from_utf8_lossy(text).into_owned())
}
