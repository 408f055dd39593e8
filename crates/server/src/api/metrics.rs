//! The server's own counters in Prometheus' text format.

use std::fmt::Write;

use crate::spans::counters::Counters;

/// The page for `/metrics`.
pub(crate) fn text(counters: &Counters, queued: u64, outage: Option<String>) -> String {
    let mut page = Page(String::new());
    page.counter(
        "underspan_spans_received_total",
        "Spans in well-formed OTLP requests.",
        "transport",
        &[("grpc", counters.received_grpc.get()), ("http", counters.received_http.get())],
    );
    page.single("underspan_spans_written_total", "counter", "Spans the store has.", {
        counters.written.get()
    });
    page.counter(
        "underspan_spans_rejected_total",
        "Spans refused for good; the sender was told.",
        "reason",
        &[
            ("bad_id", counters.rejected_bad_id.get()),
            ("bad_time", counters.rejected_bad_time.get()),
            ("too_large", counters.rejected_too_large.get()),
        ],
    );
    page.counter(
        "underspan_spans_refused_total",
        "Spans the sender was asked to send again.",
        "reason",
        &[
            ("queue_full", counters.refused_queue_full.get()),
            ("store_down", counters.refused_store_down.get()),
            ("shutdown", counters.refused_shutdown.get()),
        ],
    );
    page.counter(
        "underspan_spans_dropped_total",
        "Spans accepted and then lost.",
        "reason",
        &[
            ("store_refused", counters.dropped_by_store.get()),
            ("shutdown", counters.dropped_at_shutdown.get()),
        ],
    );
    page.single(
        "underspan_otlp_malformed_requests_total",
        "counter",
        "OTLP/HTTP requests that could not be decoded.",
        counters.malformed_requests.get(),
    );
    page.single("underspan_spans_queued", "gauge", "Spans accepted and not yet written.", queued);
    page.single("underspan_store_up", "gauge", "1 while the store takes spans.", {
        u64::from(outage.is_none())
    });
    page.0
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail, here and below.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.head(name, kind, help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        self.head(name, "counter", help);
        for (value, count) in values {
            let _ = writeln!(self.0, "{name}{{{label}=\"{value}\"}} {count}");
        }
    }
}
