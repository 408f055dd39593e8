//! What the first bytes of requests and answers say.

use proptest::prelude::*;

use crate::request::http::{Head, request_head, status};
use crate::tests::support::cases;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn head(bytes: &[u8]) -> (String, String, String) {
    let Head { method, path, trace_id, parent_span_id } = request_head(bytes);
    assert_eq!(trace_id.is_empty(), parent_span_id.is_empty());
    (method, path, trace_id)
}

#[track_caller]
fn expect(bytes: &[u8], method: &str, path: &str, trace: &str) {
    assert_eq!(head(bytes), (method.to_owned(), path.to_owned(), trace.to_owned()));
}

fn with_traceparent(value: &str) -> Head {
    request_head(format!("GET / HTTP/1.1\r\ntraceparent: {value}\r\n\r\n").as_bytes())
}

#[test]
fn query_strings_are_dropped() {
    expect(b"GET /a/b?token=secret HTTP/1.1\r\n\r\n", "GET", "/a/b", "");
    expect(b"GET /a/b#part HTTP/1.1\r\n\r\n", "GET", "/a/b", "");
    expect(b"GET /a?b#c?d HTTP/1.0\r\n\r\n", "GET", "/a", "");
    expect(b"GET ?x HTTP/1.1\r\n\r\n", "GET", "", "");
}

#[test]
fn targets_of_every_form() {
    expect(b"OPTIONS * HTTP/1.1\r\n\r\n", "OPTIONS", "*", "");
    expect(b"GET http://shop/cart?id=3 HTTP/1.1\r\n\r\n", "GET", "http://shop/cart", "");
    expect(b"CONNECT shop:443 HTTP/1.1\r\n\r\n", "CONNECT", "shop:443", "");
    expect(b"PROPFIND /dav HTTP/1.1\r\n\r\n", "PROPFIND", "/dav", "");
}

#[test]
fn heads_that_end_anywhere() {
    let whole =
        format!("POST /pay?x=1 HTTP/1.1\r\ntraceparent: 00-{TRACE}-{PARENT}-01\r\nA: b\r\n\r\n");
    let traceparent_ends = whole.find("\r\nA:").unwrap() + 2;
    for len in 0..=whole.len() {
        let (method, path, trace) = head(&whole.as_bytes()[..len]);
        // The path's last byte is known to be the last once a byte follows it.
        if len > "POST /pay?x=1".len() {
            assert_eq!((method.as_str(), path.as_str()), ("POST", "/pay"), "{len} bytes");
        }
        assert_eq!(trace.is_empty(), len < traceparent_ends, "{len} bytes");
    }
}

#[test]
fn only_the_first_of_pipelined_requests() {
    expect(b"GET /one HTTP/1.1\r\n\r\nGET /two HTTP/1.1\r\n\r\n", "GET", "/one", "");
}

#[test]
fn a_body_is_not_read() {
    let body = format!("POST / HTTP/1.1\r\n\r\ntraceparent: 00-{TRACE}-{PARENT}-01\r\n");
    expect(body.as_bytes(), "POST", "/", "");
}

#[test]
fn what_is_no_http_1_has_no_head() {
    for bytes in [
        &b""[..],
        b"\0\0\0\x08\x04\xd2\x16\x2f", // PostgreSQL asks for TLS
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", // TLS
        b"*1\r\n$4\r\nPING\r\n",       // Redis
        b"\xff\xfe\xfd",
        b"\r\n\r\n\r\n",
        b"<html>",
    ] {
        assert_eq!(request_head(bytes), Head::default(), "{bytes:?}");
    }
    let (method, _, trace) = head(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert!(method.is_empty() && trace.is_empty(), "HTTP/2 is not HTTP/1");
}

#[test]
fn a_traceparent_among_many_headers_and_after_a_long_one() {
    let many: String = (0..100).map(|n| format!("X-{n}: y\r\n")).collect();
    let long = format!("Cookie: {}\r\n", "c".repeat(1_000));
    let bytes =
        format!("GET / HTTP/1.1\r\n{long}{many}TraceParent: 00-{TRACE}-{PARENT}-00\r\n\r\n");
    expect(bytes.as_bytes(), "GET", "/", TRACE);
}

#[test]
fn more_headers_than_are_read_keep_method_and_path() {
    let many: String = (0..500).map(|n| format!("X-{n}: y\r\n")).collect();
    expect(format!("GET /p HTTP/1.1\r\n{many}\r\n").as_bytes(), "GET", "/p", "");
}

#[test]
fn a_malformed_header_keeps_what_came_before_it() {
    let bytes =
        format!("GET /p HTTP/1.1\r\ntraceparent: 00-{TRACE}-{PARENT}-01\r\nbad header\x01\r\n\r\n");
    expect(bytes.as_bytes(), "GET", "/p", TRACE);
}

#[test]
fn traceparents_that_are_valid() {
    for value in [
        format!("00-{TRACE}-{PARENT}-01"),
        format!("00-{TRACE}-{PARENT}-00"),
        format!("  00-{TRACE}-{PARENT}-ff  "),
        format!("01-{TRACE}-{PARENT}-01-what-comes-later"),
        format!("fe-{TRACE}-{PARENT}-01"),
    ] {
        let head = with_traceparent(&value);
        assert_eq!(
            (head.trace_id.as_str(), head.parent_span_id.as_str()),
            (TRACE, PARENT),
            "{value}"
        );
    }
}

#[test]
fn traceparents_that_are_not() {
    for value in [
        String::new(),
        "00".to_owned(),
        format!("ff-{TRACE}-{PARENT}-01"),
        format!("00-{}-{PARENT}-01", TRACE.to_uppercase()),
        format!("00-{TRACE}-{}-01", PARENT.to_uppercase()),
        format!("00-{}-{PARENT}-01", "0".repeat(32)),
        format!("00-{TRACE}-{}-01", "0".repeat(16)),
        format!("00-{TRACE}-{PARENT}"),
        format!("00-{TRACE}-{PARENT}-1"),
        format!("00-{TRACE}-{PARENT}-0g"),
        format!("0-{TRACE}-{PARENT}-01"),
        format!("00-{}-{PARENT}-01", &TRACE[1..]),
        format!("00-{TRACE}0-{PARENT}-01"),
        format!("00_{TRACE}_{PARENT}_01"),
        format!("00-{TRACE}-{PARENT}-01-version 0 has no more"),
    ] {
        let head = with_traceparent(&value);
        assert_eq!((head.trace_id.as_str(), head.parent_span_id.as_str()), ("", ""), "{value}");
        assert_eq!(head.method, "GET");
    }
}

#[test]
fn statuses() {
    assert_eq!(status(b"HTTP/1.1 200 OK\r\n"), 200);
    assert_eq!(status(b"HTTP/1.0 404"), 404);
    assert_eq!(status(b"HTTP/1.1 999"), 999);
    for bytes in [
        &b""[..],
        b"HTTP/1.1",
        b"HTTP/1.1 20",
        b"HTTP/1.1 2x0",
        b"HTTP/1.1 -20",
        b"HTTP/2 200 OK",
        b"http/1.1 200 OK",
        b"\0\0\0\0HTTP/1.1 200",
    ] {
        assert_eq!(status(bytes), 0, "{bytes:?}");
    }
}

proptest! {
    #![proptest_config(cases(2_000))]

    #[test]
    fn no_bytes_are_too_odd(bytes in proptest::collection::vec(any::<u8>(), 0..2_048)) {
        request_head(&bytes);
        prop_assert!(status(&bytes) < 1_000);
    }

    /// A request cut short, or with bytes changed, still gives no more than it says.
    #[test]
    fn a_damaged_head_never_leaks_the_query(
        at in 0..60usize, byte in any::<u8>(), cut in 0..60usize,
    ) {
        let mut bytes = b"GET /login?secret=hunter2 HTTP/1.1\r\nHost: shop\r\n\r\n".to_vec();
        if let Some(damaged) = bytes.get_mut(at) {
            *damaged = byte;
        }
        bytes.truncate(cut);
        let question_mark_stands = bytes.get(10).is_none_or(|byte| *byte == b'?' || *byte == b'#');
        let path = request_head(&bytes).path;
        prop_assert!(!question_mark_stands || !path.contains("hunter2"), "{path}");
    }
}
