//! The commands that read, run as a user runs them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::empty_store;
use insta::assert_snapshot;

fn underspan(data: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_underspan"))
        .args(arguments)
        .env("UNDERSPAN_DATA", data)
        .env_remove("UNDERSPAN_STORE")
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn an_id_that_is_none_is_refused_before_anything_is_started() {
    let output = underspan(Path::new("/nonexistent"), &["explain", "hello"]);
    assert_eq!(output.status.code(), Some(3));
    assert_snapshot!(stderr(&output), @r"
    underspan: unknown id 'hello': neither a request id nor a trace id
    hint: a request id has 16 hexadecimal digits, a trace id 32; `underspan requests` lists ids
    ");
}

#[test]
fn a_folder_that_does_not_exist_is_told() {
    let output = underspan(Path::new("/nonexistent"), &["requests"]);
    assert_eq!(output.status.code(), Some(1));
    assert_snapshot!(stderr(&output), @r"
    underspan: no data at /nonexistent: the folder does not exist
    hint: record some with `underspan up` or `underspan run -- CMD`, or name a store with --store URL or --data DIR
    ");
}

#[test]
fn a_store_that_is_down_is_told() {
    // A port that was free a moment ago: nothing answers there.
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    drop(socket);
    let output = underspan(Path::new("/nonexistent"), &["--store", &url, "sql", "SELECT 1"]);
    assert_eq!(output.status.code(), Some(1));
    let error = stderr(&output).replace(&url, "URL");
    assert!(error.starts_with("underspan: the store at URL cannot be reached:"), "{error}");
    assert!(!error.contains("panicked"), "{error}");
}

#[test]
fn options_that_do_not_fit_are_usage_errors() {
    for arguments in
        [&["requests", "--since", "soon"][..], &["explain"], &["--color", "pink", "sql", "x"]]
    {
        let output = underspan(Path::new("/nonexistent"), arguments);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_store_is_read() {
    let (embedded, _, folder) = empty_store().await;
    let data = folder.path();

    let unknown = underspan(data, &["explain", "00000000deadbeef"]);
    assert_eq!(unknown.status.code(), Some(3));
    assert_snapshot!(stderr(&unknown), @r"
    underspan: unknown request 00000000deadbeef: no such row in the store
    hint: `underspan requests` lists recent ones; a row is written when its request ends, or has gone on for a second, and kept for 7 days by default
    ");
    let unknown = underspan(data, &["explain", "4bf92f35-77b3-4da6-a3ce-929d0e0e4736"]);
    assert_eq!(unknown.status.code(), Some(3));
    assert!(
        stderr(&unknown).contains("neither a span nor a request has it"),
        "{}",
        stderr(&unknown)
    );

    assert_eq!(stdout(&underspan(data, &["requests"])), "");
    assert_eq!(stdout(&underspan(data, &["requests", "--json"])), "[]\n");

    let numbers = "SELECT number AS n, 'x' AS s FROM numbers(2);";
    assert_eq!(stdout(&underspan(data, &["sql", numbers])), "n\ts\n0\tx\n1\tx\n");
    let json = stdout(&underspan(data, &["sql", "--json", numbers]));
    assert_eq!(json, "{\"n\":0,\"s\":\"x\"}\n{\"n\":1,\"s\":\"x\"}\n");
    assert_eq!(
        stdout(&underspan(data, &["sql", "--format", "CSV", numbers])),
        "0,\"x\"\n1,\"x\"\n"
    );
    let wrong = underspan(data, &["sql", "SELEC 1"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(stderr(&wrong).contains("Syntax error"), "{}", stderr(&wrong));

    embedded.shutdown().await;
    // The store is down now: reading starts it for as long as it takes.
    assert_eq!(stdout(&underspan(data, &["requests", "--json"])), "[]\n");
}

#[test]
fn kinds_that_know_no_requests_refuse_them_before_anything_is_started() {
    let refused = |kind: &str| {
        let of = [["--route", "/export"], ["--request", "00f1a2b3c4d5e6f7"], ["--slow", "p95"]];
        let errors = of.map(|of| {
            let arguments = [&["flame", "--kind", kind][..], &of].concat();
            let output = underspan(Path::new("/nonexistent"), &arguments);
            assert_eq!(output.status.code(), Some(2));
            stderr(&output)
        });
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
        errors[0].clone()
    };
    assert_snapshot!(refused("goroutine"), @r"
    underspan: which goroutine served a request is not known
    hint: choose the goroutines by the function that they began with, such as --thread main.worker
    ");
    assert_snapshot!(refused("loop"), @r"
    underspan: a stall of an event loop is of all its requests, not of one
    hint: choose the loop with --process NAME, --pid PID or --thread TID
    ");
}
