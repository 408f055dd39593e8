//! From the sink to a real embedded store, through an outage. The Python to run it with is named by
//! the environment variable `UNDERSPAN_PYTHON`.

// Helpers outside of test functions fail a test in the same way.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use underspan_agent::{
    Collector, Health, Reason, Sink, SinkOptions, Spool, SpoolOptions, rows, unix_ns,
};
use underspan_model::LostEvents;
use underspan_store::embedded::{Embedded, Options};
use underspan_store::{CORE, MigrateOptions, Store};

fn options(folder: &Path, port: u16) -> Options {
    let python = std::env::var_os("UNDERSPAN_PYTHON").map(PathBuf::from).expect(
        "set UNDERSPAN_PYTHON to a Python that has underspan[store] installed (`make test` does)",
    );
    let folder = folder.to_owned();
    Options { folder, port, python: Some(python), memory_limit_mib: Some(1024) }
}

fn write(collector: &mut Collector, count: u64) {
    let row = LostEvents {
        host: "test".into(),
        start_time: unix_ns().unwrap(),
        duration_ns: 1,
        tracker: "agent".into(),
        reason: "none".into(),
        count,
    };
    rows::lost_events(collector.batch(rows::LOST_EVENTS, rows::LOST_EVENTS_COLUMNS), &row);
    collector.flush();
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..2000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within 20 s: {what}");
}

/// The counts in the store, in the order of their values.
async fn stored(store: &Store) -> Vec<u64> {
    let sql = "SELECT count FROM lost_events ORDER BY count";
    let text = store.query_raw(sql, "TSV").await.unwrap();
    let text = String::from_utf8(text.to_vec()).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[tokio::test]
async fn rows_written_before_during_and_after_an_outage_are_all_there_once() {
    let folder = tempfile::tempdir().unwrap();
    let spool = tempfile::tempdir().unwrap();
    let embedded = Embedded::start(&options(folder.path(), 0), |_| {}).await.unwrap();
    let url = embedded.endpoint().url.clone();
    let port: u16 = url.trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap();
    let store = Store::connect(embedded.endpoint().clone());
    store.migrate(&[CORE], &MigrateOptions::default()).await.unwrap();

    let limits = SinkOptions { backoff_max: Duration::from_millis(200), ..SinkOptions::default() };
    let spool = Spool::open(spool.path(), SpoolOptions::default()).unwrap();
    let (sink, mut collector) = Sink::start(store.clone(), spool, limits);
    for count in 0..10 {
        write(&mut collector, count);
    }
    until("the store up", || sink.stats().inserted_total() == 10).await;

    embedded.shutdown().await;
    for count in 10..60 {
        write(&mut collector, count);
    }
    until("the store down", || sink.stats().spool_rows == 50).await;
    let Health::Down { error } = sink.stats().health else { panic!("the store is not down") };
    assert!(error.contains("cannot be reached"), "{error}");

    // The refused batch keeps its place aside; the rest goes on.
    collector.batch("no_such_table", &["x"]).row().u8(1);
    collector.flush();
    let embedded = Embedded::start(&options(folder.path(), port), |_| {}).await.unwrap();
    write(&mut collector, 60);
    until("the spool drained", || sink.stats().inserted_total() == 61).await;
    until("the wrong batch refused", || sink.stats().losses.total() == 1).await;
    drop(collector);
    let stats = sink.shutdown(Duration::from_secs(5), std::future::pending()).await;

    assert_eq!(stats.losses.by_reason(Reason::Rejected), 1);
    assert_eq!((stats.health, stats.spool_rows), (Health::Up, 0));
    assert_eq!(stored(&store).await, (0..=60).collect::<Vec<_>>());
    embedded.shutdown().await;
}
