//! The official Rust client, unchanged, against the embedded store.

use bytes::Bytes;
use clickhouse::{Compression, Row};
use serde::{Deserialize, Serialize};

use crate::support::{Running, text};

#[derive(Clone, Debug, PartialEq, Row, Serialize, Deserialize)]
struct Sample {
    id: u64,
    name: String,
    at: i64,
    tags: Vec<(String, String)>,
    note: Option<String>,
}

const TABLE: &str = "CREATE TABLE samples (id UInt64, name LowCardinality(String), \
    at DateTime64(9, 'UTC'), tags Map(String, String), note Nullable(String), \
    extra UInt8 DEFAULT 9) ENGINE = MergeTree ORDER BY id";

fn sample(id: u64) -> Sample {
    Sample {
        id,
        // What would end a statement, if rows were ever taken for one.
        name: format!("it's; \"{}\"\n", id % 7),
        at: 1_700_000_000_123_456_789 + id as i64,
        tags: vec![("k;".to_owned(), "v'".to_owned())],
        note: id.is_multiple_of(2).then(|| "even".to_owned()),
    }
}

#[tokio::test]
async fn typed_rows_go_in_and_come_back() {
    let running = Running::start().await;
    let store = running.store();
    store.client().query(TABLE).execute().await.unwrap();
    for compression in [Compression::Lz4, Compression::None] {
        let client = store.client().clone().with_compression(compression);
        client.query("TRUNCATE TABLE samples").execute().await.unwrap();
        let mut insert = client.insert::<Sample>("samples").await.unwrap();
        for id in 0..50_000 {
            insert.write(&sample(id)).await.unwrap();
        }
        insert.end().await.unwrap();
        let sql = "SELECT ?fields FROM samples WHERE id >= ? ORDER BY id";
        let rows = client.query(sql).bind(10).fetch_all::<Sample>().await.unwrap();
        assert_eq!(rows.len(), 49_990);
        assert!(rows.iter().zip(10..).all(|(row, id)| *row == sample(id)));
        assert_eq!(text(&store, "SELECT sum(extra) FROM samples").await, "450000");
    }
    running.stop().await;
}

#[tokio::test]
async fn a_row_that_does_not_fit_the_table_is_refused_by_the_client() {
    #[derive(Row, Serialize)]
    struct Wrong {
        id: String,
    }
    let running = Running::start().await;
    let client = running.store().client().clone();
    client.query(TABLE).execute().await.unwrap();
    let Err(error) = client.insert::<Wrong>("samples").await else { panic!("it was taken") };
    assert!(error.to_string().contains("schema mismatch"), "{error}");
    running.stop().await;
}

#[tokio::test]
async fn formatted_rows_and_server_side_parameters() {
    let running = Running::start().await;
    let client = running.store().client().clone();
    client
        .query("CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a")
        .execute()
        .await
        .unwrap();
    let mut insert = client.insert_formatted_with("INSERT INTO t FORMAT CSV");
    insert.send(Bytes::from_static(b"1\n2\n")).await.unwrap();
    insert.send(Bytes::from_static(b"3\n")).await.unwrap();
    insert.end().await.unwrap();
    let above = client.query("SELECT a FROM t WHERE a > {low:UInt64} ORDER BY a").param("low", 1);
    assert_eq!(above.fetch_all::<u64>().await.unwrap(), [2, 3]);
    let value = "tab\t quote' back\\slash é;\n";
    let echo = client.query("SELECT {value:String}").param("value", value);
    assert_eq!(echo.fetch_one::<String>().await.unwrap(), value);
    running.stop().await;
}

#[tokio::test]
async fn an_aborted_insert_stores_nothing() {
    let running = Running::start().await;
    let store = running.store();
    store.client().query(TABLE).execute().await.unwrap();
    let mut insert = store.client().insert::<Sample>("samples").await.unwrap();
    for id in 0..50_000 {
        insert.write(&sample(id)).await.unwrap();
    }
    drop(insert); // not ended: the client breaks the body off
    assert_eq!(text(&store, "SELECT count() FROM samples").await, "0");
    running.stop().await;
}
