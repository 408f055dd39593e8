//! Checks, inserts and their errors.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use underspan_store::{Batch, Endpoint, Error, Store};

use crate::support::{Running, text};

fn batch(rows: u64) -> Batch {
    let mut batch = Batch::new("t", &["a", "b"]);
    for row in 0..rows {
        batch.row().u64(row).str("x;'");
    }
    batch
}

async fn with_table() -> (Running, Store) {
    let running = Running::start().await;
    let store = running.store();
    let sql = "CREATE TABLE t (a UInt64, b String) ENGINE = MergeTree ORDER BY a";
    store.client().query(sql).execute().await.unwrap();
    (running, store)
}

/// Answers every request with the same bytes.
async fn answering(answer: &'static str) -> Store {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    Store::connect(url.parse::<Endpoint>().unwrap())
}

#[tokio::test]
async fn a_batch_is_stored_whole() {
    let (running, store) = with_table().await;
    assert!(store.check().await.unwrap().starts_with("26."));
    let start = Instant::now();
    store.insert(&batch(200_000)).await.unwrap();
    println!("200,000 rows inserted in {:?}", start.elapsed());
    store.insert(&batch(0)).await.unwrap();
    assert_eq!(text(&store, "SELECT count(), sum(a) FROM t").await, "200000\t19999900000");
    running.stop().await;
}

#[tokio::test]
async fn what_does_not_fit_is_refused_for_good() {
    let (running, store) = with_table().await;
    let mut unknown_table = batch(1);
    unknown_table.table = "nowhere".to_owned();
    let mut unknown_column = batch(1);
    unknown_column.columns[1] = "nothing".to_owned();
    let mut cut_short = batch(10);
    cut_short.bytes.pop();
    let mut miscounted = batch(10);
    miscounted.rows = 11;
    for (batch, words) in [
        (unknown_table, "UNKNOWN_TABLE"),
        (unknown_column, "NO_SUCH_COLUMN"),
        (cut_short, "CANNOT_READ_ALL_DATA"),
        (miscounted, "11 rows were sent and 10 written"),
    ] {
        let error = store.insert(&batch).await.unwrap_err();
        assert!(!error.is_retryable() && error.to_string().contains(words), "{error}");
    }
    running.stop().await;
}

#[tokio::test]
async fn a_store_that_is_down_can_be_tried_again() {
    let (running, store) = with_table().await;
    let mut endpoint = store.endpoint().clone();
    endpoint.password = "wrong".to_owned();
    let stranger = Store::connect(endpoint);
    let error = stranger.check().await.unwrap_err();
    assert!(matches!(error, Error::Unauthorised { .. }), "{error}");
    let error = stranger.insert(&batch(5)).await.unwrap_err();
    assert!(matches!(error, Error::Unauthorised { .. }) && error.is_retryable(), "{error}");
    running.stop().await;
    for error in [store.check().await.unwrap_err(), store.insert(&batch(5)).await.unwrap_err()] {
        assert!(matches!(error, Error::Unreachable { .. }) && error.is_retryable(), "{error}");
        assert!(error.to_string().contains("onnection refused"), "{error}");
    }
}

#[tokio::test]
async fn other_answers_are_told_apart() {
    let old = "HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n\x01\x09version()\x06String\x059.1.1";
    let error = answering(old).await.check().await.unwrap_err();
    assert!(matches!(error, Error::TooOld { .. }), "{error}");
    assert!(error.to_string().contains("9.1.1") && error.to_string().contains("24.3"), "{error}");

    let web = "HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>";
    let error = answering(web).await.check().await.unwrap_err();
    assert!(matches!(error, Error::NotClickHouse { .. }), "{error}");

    let proxy = "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n";
    let error = answering(proxy).await.insert(&batch(1)).await.unwrap_err();
    assert!(matches!(error, Error::Busy { .. }) && error.is_retryable(), "{error}");
}

#[tokio::test]
async fn a_silent_store_does_not_hang_us() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let store = Store::connect(url.parse::<Endpoint>().unwrap());
    let start = Instant::now();
    let error = store.check().await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }) && error.is_retryable(), "{error}");
    assert!(start.elapsed() < Duration::from_secs(15));
}

#[tokio::test]
async fn raw_queries_come_in_any_format() {
    let (running, store) = with_table().await;
    store.insert(&batch(2)).await.unwrap();
    let sql = "SELECT a, b FROM t WHERE b != '?' ORDER BY a";
    let json = store.query_raw(sql, "JSONEachRow").await.unwrap();
    assert_eq!(json, "{\"a\":0,\"b\":\"x;'\"}\n{\"a\":1,\"b\":\"x;'\"}\n");
    let error = store.query_raw("SELECT (", "CSV").await.unwrap_err();
    assert!(matches!(error, Error::Refused { code: 62, .. }), "{error}");
    running.stop().await;
}

/// A real handshake is the first thing sent; an answer in the clear is not believed.
#[tokio::test]
async fn https_is_tls() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let store = Store::connect(url.parse::<Endpoint>().unwrap());
    let hello = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut hello = [0; 3];
        stream.read_exact(&mut hello).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        hello
    });
    let error = store.check().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    // A TLS record of a handshake, in the version of every first record.
    assert_eq!(hello.await.unwrap(), [0x16, 3, 1]);
}
