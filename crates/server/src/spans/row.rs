//! Spans as rows of `otel_traces`, column for column what the Collector's ClickHouse exporter writes.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use underspan_store::{Batch, RowWriter};

use super::value;

const TABLE: &str = "otel_traces";

const COLUMNS: [&str; 22] = [
    "Timestamp",
    "TraceId",
    "SpanId",
    "ParentSpanId",
    "TraceState",
    "SpanName",
    "SpanKind",
    "ServiceName",
    "ResourceAttributes",
    "ScopeName",
    "ScopeVersion",
    "SpanAttributes",
    "Duration",
    "StatusCode",
    "StatusMessage",
    "Events.Timestamp",
    "Events.Name",
    "Events.Attributes",
    "Links.TraceId",
    "Links.SpanId",
    "Links.TraceState",
    "Links.Attributes",
];

/// The largest batch that one request may become. A row repeats its resource's attributes, so a
/// small request can ask for very many bytes.
pub(crate) const MAX_BYTES: usize = 64 << 20;

/// An empty batch of spans.
pub(crate) fn empty() -> Batch {
    Batch::new(TABLE, &COLUMNS)
}

/// The rows of a request, and what could not become one.
pub(crate) struct Rows {
    pub(crate) batch: Batch,
    pub(crate) rejected: Rejected,
}

/// When a span may have started, in nanoseconds since the Unix epoch.
///
/// The store forgets rows by age and would drop older ones without a word. Both bounds together
/// keep a batch within a few daily partitions: an insert into more than a hundred fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Window {
    const DAY: u64 = 24 * 3600 * 1_000_000_000;

    /// What a table with `TTL toDate(Timestamp) + INTERVAL days DAY` keeps, until tomorrow. Days are
    /// those of UTC.
    pub(crate) fn around(now: SystemTime, days: u32) -> Self {
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
        let first_day = (now / Self::DAY + 1).saturating_sub(u64::from(days));
        Window { from: first_day * Self::DAY, to: now.saturating_add(Self::DAY) }
    }

    fn contains(self, time: u64) -> bool {
        (self.from..=self.to).contains(&time)
    }
}

/// Spans that were refused for good, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rejected {
    /// A trace or span id of the wrong length.
    pub(crate) bad_id: u64,
    /// Started before what the store keeps, or in the future.
    pub(crate) bad_time: u64,
    /// The request grows beyond `MAX_BYTES`.
    pub(crate) too_large: u64,
}

impl Rejected {
    pub(crate) fn total(self) -> u64 {
        self.bad_id + self.bad_time + self.too_large
    }

    /// What the sender is told, and what to do about it.
    pub(crate) fn message(self) -> String {
        let mut parts = Vec::new();
        if self.bad_id > 0 {
            parts.push(format!(
                "{} spans with a trace id that is not 16 bytes or a span id that is not 8; \
                 mend the sender",
                self.bad_id
            ));
        }
        if self.bad_time > 0 {
            parts.push(format!(
                "{} spans that started before what the store keeps, or after tomorrow; set the \
                 sender's clock, or keep rows for longer",
                self.bad_time
            ));
        }
        if self.too_large > 0 {
            parts.push(format!(
                "{} spans beyond {} MiB of rows in one request; send smaller batches or fewer \
                 resource attributes",
                self.too_large,
                MAX_BYTES >> 20
            ));
        }
        format!("rejected: {}", parts.join("; "))
    }
}

/// How many spans a request holds.
pub(crate) fn count(request: &ExportTraceServiceRequest) -> u64 {
    let scopes = request.resource_spans.iter().flat_map(|resource| &resource.scope_spans);
    scopes.map(|scope| scope.spans.len() as u64).sum()
}

/// Lays a request out as rows. `max_bytes` bounds them.
pub(crate) fn rows(request: &ExportTraceServiceRequest, window: Window, max_bytes: usize) -> Rows {
    let mut rows = Rows { batch: empty(), rejected: Rejected::default() };
    for resource in &request.resource_spans {
        append_resource(&mut rows, resource, window, max_bytes);
    }
    rows
}

fn append_resource(rows: &mut Rows, resource: &ResourceSpans, window: Window, max_bytes: usize) {
    let attributes = resource.resource.as_ref().map_or(&[][..], |r| &r.attributes);
    let attributes = Attributes::of(attributes);
    let service = attributes.get("service.name").unwrap_or_default();
    let unnamed = InstrumentationScope::default();
    for scope_spans in &resource.scope_spans {
        let scope = scope_spans.scope.as_ref().unwrap_or(&unnamed);
        for span in &scope_spans.spans {
            if !ids_are_well_formed(span) {
                rows.rejected.bad_id += 1;
            } else if !window.contains(span.start_time_unix_nano) {
                rows.rejected.bad_time += 1;
            } else if rows.batch.bytes.len() >= max_bytes {
                rows.rejected.too_large += 1;
            } else {
                append_span(&mut rows.batch, &attributes, service, scope, span);
            }
        }
    }
}

fn append_span(
    batch: &mut Batch,
    resource: &Attributes<'_>,
    service: &str,
    scope: &InstrumentationScope,
    span: &Span,
) {
    let status = span.status.as_ref();
    // A clock that stepped back in the middle of a span gives it no length, not 584 years.
    let duration = span.end_time_unix_nano.saturating_sub(span.start_time_unix_nano);
    let mut row = batch.row();
    row.time(span.start_time_unix_nano)
        .str(&hex(&span.trace_id))
        .str(&hex(&span.span_id))
        .str(&hex(&span.parent_span_id))
        .str(&span.trace_state)
        .str(&span.name)
        .str(kind(span.kind))
        .str(service);
    resource.write(&mut row);
    row.str(&scope.name).str(&scope.version);
    Attributes::of(&span.attributes).write(&mut row);
    row.u64(duration)
        .str(status.map_or("Unset", |status| status_code(status.code)))
        .str(status.map_or("", |status| &status.message));
    append_events(&mut row, &span.events);
    append_links(&mut row, &span.links);
}

/// A `Nested` column is one array per field.
fn append_events(row: &mut RowWriter<'_>, events: &[Event]) {
    row.len(events.len());
    for event in events {
        row.time(event.time_unix_nano);
    }
    row.len(events.len());
    for event in events {
        row.str(&event.name);
    }
    row.len(events.len());
    for event in events {
        Attributes::of(&event.attributes).write(row);
    }
}

fn append_links(row: &mut RowWriter<'_>, links: &[Link]) {
    row.len(links.len());
    for link in links {
        row.str(&hex(&link.trace_id));
    }
    row.len(links.len());
    for link in links {
        row.str(&hex(&link.span_id));
    }
    row.len(links.len());
    for link in links {
        row.str(&link.trace_state);
    }
    row.len(links.len());
    for link in links {
        Attributes::of(&link.attributes).write(row);
    }
}

/// Attributes as text, in the sender's order.
struct Attributes<'a>(Vec<(&'a str, Cow<'a, str>)>);

impl<'a> Attributes<'a> {
    fn of(attributes: &'a [KeyValue]) -> Self {
        let text = |entry: &'a KeyValue| (entry.key.as_str(), value::text(entry.value.as_ref()));
        Attributes(attributes.iter().map(text).collect())
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| *name == key).map(|(_, value)| value.as_ref())
    }

    fn write(&self, row: &mut RowWriter<'_>) {
        row.map(self.0.iter().map(|(key, value)| (*key, value.as_ref())));
    }
}

/// An absent id is allowed, as in the Collector; one of the wrong length is not.
fn ids_are_well_formed(span: &Span) -> bool {
    let trace = |id: &[u8]| id.is_empty() || id.len() == 16;
    let span_id = |id: &[u8]| id.is_empty() || id.len() == 8;
    trace(&span.trace_id)
        && span_id(&span.span_id)
        && span_id(&span.parent_span_id)
        && span.links.iter().all(|link| trace(&link.trace_id) && span_id(&link.span_id))
}

/// Lower-case hexadecimal; an id of zeros is no id.
fn hex(id: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    if id.iter().all(|&byte| byte == 0) {
        return String::new();
    }
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble & 15)]);
    id.iter().flat_map(|&byte| [digit(byte >> 4), digit(byte)]).collect()
}

fn kind(kind: i32) -> &'static str {
    match kind {
        0 => "Unspecified",
        1 => "Internal",
        2 => "Server",
        3 => "Client",
        4 => "Producer",
        5 => "Consumer",
        _ => "",
    }
}

fn status_code(code: i32) -> &'static str {
    match code {
        0 => "Unset",
        1 => "Ok",
        2 => "Error",
        _ => "",
    }
}
