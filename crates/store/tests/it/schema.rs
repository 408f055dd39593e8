//! Migrations, applied to a real store.

use underspan_store::schema::Difference;
use underspan_store::{Batch, CORE, Component, Error, MigrateOptions, SchemaStatus};

use crate::support::{Running, text};

/// The trackers' tables, as they are.
const TRACKERS: [Component; 4] = [
    Component { name: "ledger", sql: include_str!("../../../trackers/ledger/table.sql") },
    Component { name: "request", sql: include_str!("../../../trackers/request/table.sql") },
    Component { name: "gc", sql: include_str!("../../../trackers/gc/table.sql") },
    Component { name: "gil", sql: include_str!("../../../trackers/gil/table.sql") },
];

const FIRST: &str = "-- migration 1: a table\n\
    CREATE TABLE IF NOT EXISTS grown{on_cluster} (a UInt8) ENGINE = {engine} ORDER BY a;\n";
const SECOND: &str = "-- migration 1: a table\n\
    CREATE TABLE IF NOT EXISTS grown{on_cluster} (a UInt8) ENGINE = {engine} ORDER BY a;\n\
    -- migration 2: a column\n\
    ALTER TABLE grown{on_cluster} ADD COLUMN IF NOT EXISTS b String;\n";

#[tokio::test]
async fn every_table_is_made_once() {
    let running = Running::start().await;
    let store = running.store();
    let components: Vec<_> = [CORE].into_iter().chain(TRACKERS).collect();
    let status = store.schema_status(&components).await.unwrap();
    assert!(matches!(&status, SchemaStatus::Behind(all) if all.len() == 5), "{status}");
    let options = MigrateOptions { ttl_days: 3, cluster: None };
    let applied = store.migrate(&components, &options).await.unwrap();
    assert!(applied.len() >= 7, "{applied:?}");
    assert_eq!(store.schema_status(&components).await.unwrap(), SchemaStatus::UpToDate);
    assert_eq!(store.migrate(&components, &options).await.unwrap(), []);
    let tables = text(&store, "SELECT name FROM system.tables WHERE database = 'default'").await;
    for table in ["requests", "waits", "thread_states", "gc_pause", "gil_wait", "lost_events"] {
        assert!(tables.lines().any(|name| name == table), "{table} is not in {tables}");
    }
    let sql = "SELECT create_table_query FROM system.tables WHERE name = 'requests'";
    assert!(text(&store, sql).await.contains("toIntervalDay(3)"));
    running.stop().await;
}

/// There is no cluster here, but ClickHouse's own parser is.
#[tokio::test]
async fn a_clusters_statements_are_well_formed() {
    let running = Running::start().await;
    let store = running.store();
    let components: Vec<_> =
        [CORE, Component { name: "x", sql: SECOND }].into_iter().chain(TRACKERS).collect();
    let options = MigrateOptions { ttl_days: 30, cluster: Some("main".to_owned()) };
    let statements = underspan_store::schema::statements(&components, &options).unwrap();
    for statement in &statements {
        assert!(!statement.contains(['{', '}']), "{statement}");
        assert!(statement.contains("ON CLUSTER 'main'"), "{statement}");
        store.query_raw(&format!("EXPLAIN AST {statement}"), "TSV").await.unwrap();
    }
    let replicated = statements.iter().filter(|s| s.contains("= ReplicatedMergeTree")).count();
    let distributed = statements.iter().filter(|s| s.contains("= Distributed(")).count();
    assert!(replicated >= 12 && replicated == distributed, "{replicated} {distributed}");
    running.stop().await;
}

#[tokio::test]
async fn a_newer_underspan_adds_what_is_missing_and_an_older_one_notices() {
    let running = Running::start().await;
    let store = running.store();
    let (old, new) = (Component { name: "x", sql: FIRST }, Component { name: "x", sql: SECOND });
    let options = MigrateOptions::default();
    store.migrate(&[old], &options).await.unwrap();
    let behind = Difference { component: "x", found: 1, known: 2 };
    assert_eq!(store.schema_status(&[new]).await.unwrap(), SchemaStatus::Behind(vec![behind]));
    assert_eq!(store.migrate(&[new], &options).await.unwrap()[0].description, "a column");
    let ahead = Difference { component: "x", found: 2, known: 1 };
    assert_eq!(store.schema_status(&[old]).await.unwrap(), SchemaStatus::Ahead(vec![ahead]));
    let error = store.migrate(&[old, CORE], &options).await.unwrap_err();
    assert!(matches!(error, Error::SchemaAhead { found: 2, known: 1, .. }), "{error}");
    assert_eq!(text(&store, "EXISTS TABLE otel_traces").await, "0", "nothing is changed then");
    running.stop().await;
}

#[tokio::test]
async fn a_database_of_its_own_is_made() {
    let running = Running::start().await;
    let mut endpoint = running.embedded.endpoint().clone();
    endpoint.database = "my `db`".to_owned();
    let store = underspan_store::Store::connect(endpoint);
    store.check().await.unwrap();
    assert!(matches!(store.schema_status(&[CORE]).await.unwrap(), SchemaStatus::Behind(_)));
    store.migrate(&[CORE], &MigrateOptions::default()).await.unwrap();
    assert_eq!(store.schema_status(&[CORE]).await.unwrap(), SchemaStatus::UpToDate);
    running.stop().await;
}

#[tokio::test]
async fn a_failed_migration_is_not_recorded() {
    const BROKEN: Component = Component {
        name: "x",
        sql: "-- migration 1: fine\n\
              CREATE TABLE IF NOT EXISTS fine{on_cluster} (a UInt8) ENGINE = {engine} ORDER BY a;\n\
              -- migration 2: broken\n\
              CREATE TABLE broken{on_cluster} (a NoSuchType) ENGINE = {engine} ORDER BY a;\n",
    };
    let running = Running::start().await;
    let store = running.store();
    store.migrate(&[BROKEN], &MigrateOptions::default()).await.unwrap_err();
    let behind = Difference { component: "x", found: 1, known: 2 };
    assert_eq!(store.schema_status(&[BROKEN]).await.unwrap(), SchemaStatus::Behind(vec![behind]));
    running.stop().await;
}

#[tokio::test]
async fn spans_are_found_by_trace_and_by_thread() {
    let running = Running::start().await;
    let store = running.store();
    store.migrate(&[CORE], &MigrateOptions::default()).await.unwrap();
    let now =
        1_000_000_000 * text(&store, "SELECT toUnixTimestamp(now())").await.parse::<u64>().unwrap();
    let columns =
        ["Timestamp", "TraceId", "SpanId", "ResourceAttributes", "SpanAttributes", "Duration"];
    let mut batch = Batch::new("otel_traces", &columns);
    let thread = [("underspan.pid", "7"), ("underspan.tid", "8")];
    for (span, attributes) in [("s1", &thread[..]), ("s2", &thread[..1]), ("s3", &[])] {
        let mut row = batch.row();
        row.time(now + 5).str("t1").str(span).map([("host.name", "h")].into_iter());
        row.map(attributes.iter().copied()).u64(1000);
    }
    store.insert(&batch).await.unwrap();
    let sql = "SELECT host, pid, tid, toUnixTimestamp64Nano(start_time), duration_ns, trace_id, \
               span_id FROM spans_by_thread";
    assert_eq!(text(&store, sql).await, format!("h\t7\t8\t{}\t1000\tt1\ts1", now + 5));
    let sql = "SELECT TraceId, toUnixTimestamp(Start) FROM otel_traces_trace_id_ts";
    assert_eq!(text(&store, sql).await, format!("t1\t{}", now / 1_000_000_000));
    running.stop().await;
}
