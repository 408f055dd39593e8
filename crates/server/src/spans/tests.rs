//! Rows are read back from their RowBinary bytes by an independent reader.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, InstrumentationScope, KeyValue, KeyValueList,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
use proptest::prelude::*;
use prost::Message;

use super::row::{self, MAX_BYTES, Rejected, Window};

const ALWAYS: Window = Window { from: 0, to: u64::MAX };

type Pairs = Vec<(String, String)>;

/// One row of `otel_traces`, in the order of its columns.
#[derive(Debug, Default, PartialEq)]
struct Row {
    timestamp: i64,
    /// From `TraceId` to `ServiceName`.
    names: [String; 7],
    resource: Pairs,
    scope: [String; 2],
    attributes: Pairs,
    duration: u64,
    status: [String; 2],
    event_times: Vec<i64>,
    event_names: Vec<String>,
    event_attributes: Vec<Pairs>,
    link_traces: Vec<String>,
    link_spans: Vec<String>,
    link_states: Vec<String>,
    link_attributes: Vec<Pairs>,
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take(&mut self, count: usize) -> &[u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    fn i64(&mut self) -> i64 {
        i64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn len(&mut self) -> usize {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = self.take(1)[0];
            value |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    }

    fn str(&mut self) -> String {
        let len = self.len();
        String::from_utf8(self.take(len).to_vec()).unwrap()
    }

    fn array<T>(&mut self, item: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..self.len()).map(|_| item(self)).collect()
    }

    fn map(&mut self) -> Pairs {
        self.array(|reader| (reader.str(), reader.str()))
    }

    fn row(&mut self) -> Row {
        Row {
            timestamp: self.i64(),
            names: std::array::from_fn(|_| self.str()),
            resource: self.map(),
            scope: std::array::from_fn(|_| self.str()),
            attributes: self.map(),
            duration: self.i64() as u64,
            status: std::array::from_fn(|_| self.str()),
            event_times: self.array(Self::i64),
            event_names: self.array(Self::str),
            event_attributes: self.array(Self::map),
            link_traces: self.array(Self::str),
            link_spans: self.array(Self::str),
            link_states: self.array(Self::str),
            link_attributes: self.array(Self::map),
        }
    }
}

fn read(request: &ExportTraceServiceRequest) -> (Vec<Row>, Rejected) {
    let rows = row::rows(request, ALWAYS, MAX_BYTES);
    let mut reader = Reader(&rows.batch.bytes);
    let read = (0..rows.batch.rows).map(|_| reader.row()).collect();
    assert!(reader.0.is_empty(), "{} bytes too many", reader.0.len());
    (read, rows.rejected)
}

fn attribute(key: &str, value: Value) -> KeyValue {
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: key.to_owned(), value, ..Default::default() }
}

fn string(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn pairs(entries: &[(&str, &str)]) -> Pairs {
    entries.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn request(spans: Vec<Span>) -> ExportTraceServiceRequest {
    let scope = InstrumentationScope {
        name: "io.example".to_owned(),
        version: "1.0.0".to_owned(),
        attributes: vec![string("lib", "not stored")],
        ..Default::default()
    };
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource {
                attributes: vec![
                    string("service.name", "shop"),
                    attribute("process.pid", Value::IntValue(42)),
                ],
                ..Default::default()
            }),
            scope_spans: vec![ScopeSpans { scope: Some(scope), spans, ..Default::default() }],
            ..Default::default()
        }],
    }
}

/// The span of the exporter's own integration test, and a little more.
fn full_span() -> Span {
    Span {
        trace_id: [&[1, 2, 3][..], &[0; 13]].concat(),
        span_id: [&[1, 2, 3][..], &[0; 5]].concat(),
        parent_span_id: [&[1, 2, 4][..], &[0; 5]].concat(),
        trace_state: "trace state".to_owned(),
        name: "call db".to_owned(),
        kind: 1,
        start_time_unix_nano: 1_703_498_029_000_000_001,
        end_time_unix_nano: 1_703_498_089_000_000_001,
        attributes: vec![
            string("service.name", "v"),
            attribute("underspan.tid", Value::IntValue(7)),
        ],
        events: vec![
            Event {
                time_unix_nano: 1_703_498_029_000_000_002,
                name: "event1".to_owned(),
                attributes: vec![string("level", "info")],
                ..Default::default()
            },
            Event { name: "event2".to_owned(), ..Default::default() },
        ],
        links: vec![Link {
            trace_id: [&[1, 2, 5][..], &[0; 13]].concat(),
            span_id: [&[1, 2, 5][..], &[0; 5]].concat(),
            trace_state: "error".to_owned(),
            attributes: vec![string("k", "v")],
            ..Default::default()
        }],
        status: Some(Status { message: "error".to_owned(), code: 2 }),
        ..Default::default()
    }
}

#[test]
fn a_span_is_the_row_that_the_collector_writes() {
    let expected = Row {
        timestamp: 1_703_498_029_000_000_001,
        names: [
            "01020300000000000000000000000000",
            "0102030000000000",
            "0102040000000000",
            "trace state",
            "call db",
            "Internal",
            "shop",
        ]
        .map(str::to_owned),
        resource: pairs(&[("service.name", "shop"), ("process.pid", "42")]),
        scope: ["io.example", "1.0.0"].map(str::to_owned),
        attributes: pairs(&[("service.name", "v"), ("underspan.tid", "7")]),
        duration: 60_000_000_000,
        status: ["Error", "error"].map(str::to_owned),
        event_times: vec![1_703_498_029_000_000_002, 0],
        event_names: ["event1", "event2"].map(str::to_owned).to_vec(),
        event_attributes: vec![pairs(&[("level", "info")]), vec![]],
        link_traces: vec!["01020500000000000000000000000000".to_owned()],
        link_spans: vec!["0102050000000000".to_owned()],
        link_states: vec!["error".to_owned()],
        link_attributes: vec![pairs(&[("k", "v")])],
    };
    assert_eq!(read(&request(vec![full_span()])), (vec![expected], Rejected::default()));
}

#[test]
fn a_span_without_anything_is_a_row_too() {
    let request = ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            scope_spans: vec![ScopeSpans { spans: vec![Span::default()], ..Default::default() }],
            ..Default::default()
        }],
    };
    let mut expected = Row::default();
    expected.names[5] = "Unspecified".to_owned();
    expected.status[0] = "Unset".to_owned();
    assert_eq!(read(&request), (vec![expected], Rejected::default()));
}

#[test]
fn a_span_that_ends_before_it_starts_has_no_length() {
    let span = Span { start_time_unix_nano: 5, end_time_unix_nano: 4, ..Default::default() };
    assert_eq!(read(&request(vec![span])).0[0].duration, 0);
}

#[test]
fn an_id_of_the_wrong_length_rejects_its_span_only() {
    let bad = |change: fn(&mut Span)| {
        let mut span = full_span();
        change(&mut span);
        span
    };
    let spans = vec![
        bad(|span| span.trace_id.truncate(15)),
        full_span(),
        bad(|span| span.span_id.push(0)),
        bad(|span| span.parent_span_id.truncate(1)),
        bad(|span| span.links[0].trace_id.truncate(8)),
    ];
    let (rows, rejected) = read(&request(spans));
    assert_eq!((rows.len(), rejected), (1, Rejected { bad_id: 4, ..Rejected::default() }));
    assert!(rejected.message().contains("4 spans"), "{}", rejected.message());
}

#[test]
fn what_the_store_would_forget_at_once_is_rejected() {
    let second = 1_000_000_000;
    let now = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    let window = Window::around(now, 7);
    let at = |start_time_unix_nano| Span { start_time_unix_nano, ..full_span() };
    let spans = [
        at(0),
        // That moment is in the twelfth day: the sixth is the first of seven.
        at(5 * 86_400 * second - 1),
        at(5 * 86_400 * second),
        at((1_000_000 + 86_400) * second),
        at((1_000_000 + 86_401) * second),
        at(u64::MAX),
    ];
    let rows = row::rows(&request(spans.to_vec()), window, MAX_BYTES);
    assert_eq!((rows.batch.rows, rows.rejected.bad_time), (2, 4));
}

#[test]
fn rows_of_one_request_are_bounded() {
    let request = request(vec![full_span(); 100]);
    let rows = row::rows(&request, ALWAYS, 1000);
    assert!(rows.batch.bytes.len() < 2000, "{}", rows.batch.bytes.len());
    assert_eq!(rows.batch.rows + rows.rejected.too_large, 100);
    assert!(rows.batch.rows > 0 && rows.rejected.too_large > 0);
}

fn any_value() -> impl Strategy<Value = AnyValue> {
    let leaf = prop_oneof![
        any::<String>().prop_map(Value::StringValue),
        any::<bool>().prop_map(Value::BoolValue),
        any::<i64>().prop_map(Value::IntValue),
        any::<f64>().prop_map(Value::DoubleValue),
        any::<Vec<u8>>().prop_map(Value::BytesValue),
        any::<i32>().prop_map(Value::StringValueStrindex),
    ];
    let value = leaf.prop_recursive(4, 32, 4, |inner| {
        let item = proptest::option::of(inner).prop_map(|value| AnyValue { value });
        let items = proptest::collection::vec(item, 0..4);
        prop_oneof![
            items.clone().prop_map(|values| Value::ArrayValue(ArrayValue { values })),
            (items, any::<Vec<String>>()).prop_map(|(items, keys)| {
                let values = keys
                    .into_iter()
                    .zip(items)
                    .map(|(key, value)| KeyValue { key, value: Some(value), key_strindex: 0 })
                    .collect();
                Value::KvlistValue(KeyValueList { values })
            }),
        ]
    });
    proptest::option::of(value).prop_map(|value| AnyValue { value })
}

fn attributes() -> impl Strategy<Value = Vec<KeyValue>> {
    let entry = (any::<String>(), proptest::option::of(any_value()))
        .prop_map(|(key, value)| KeyValue { key, value, key_strindex: 0 });
    proptest::collection::vec(entry, 0..5)
}

prop_compose! {
    fn span()(
        trace_id in prop_oneof![any::<[u8; 16]>().prop_map(|id| id.to_vec()), any::<Vec<u8>>()],
        span_id in prop_oneof![any::<[u8; 8]>().prop_map(|id| id.to_vec()), any::<Vec<u8>>()],
        name in any::<String>(),
        (kind, code) in any::<(i32, i32)>(),
        (start_time_unix_nano, end_time_unix_nano) in any::<(u64, u64)>(),
        attributes in attributes(),
        events in proptest::collection::vec((any::<u64>(), any::<String>(), attributes()), 0..3),
    ) -> Span {
        let events = events.into_iter().map(|(time_unix_nano, name, attributes)| {
            Event { time_unix_nano, name, attributes, dropped_attributes_count: 0 }
        });
        Span {
            links: vec![Link { trace_id: trace_id.clone(), ..Default::default() }],
            trace_id, span_id, name, kind, start_time_unix_nano, end_time_unix_nano, attributes,
            events: events.collect(),
            status: Some(Status { code, message: String::new() }),
            ..Default::default()
        }
    }
}

proptest! {
    #[test]
    fn every_span_is_a_whole_row_or_rejected(spans in proptest::collection::vec(span(), 0..4)) {
        let count = spans.len() as u64;
        let (rows, rejected) = read(&request(spans));
        prop_assert_eq!(rows.len() as u64 + rejected.total(), count);
        for row in rows {
            prop_assert!(row.timestamp >= 0);
            prop_assert_eq!(row.event_times.len(), row.event_attributes.len());
        }
    }

    #[test]
    fn what_decodes_never_panics(
        mut bytes in Just(request(vec![full_span()]).encode_to_vec()),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in any::<prop::sample::Index>(),
    ) {
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        if let Ok(request) = ExportTraceServiceRequest::decode(&*bytes) {
            read(&request);
        }
    }

    #[test]
    fn what_decodes_from_json_never_panics(spans in proptest::collection::vec(span(), 0..3)) {
        let json = serde_json::to_vec(&request(spans)).unwrap();
        if let Ok(request) = crate::otlp::json::decode(&json) {
            read(&request);
        }
    }
}
