//! The server's own counters.

use underspan_metrics::{Family, Kind};

use crate::spans::counters::Counters;

/// What `/metrics` answers.
pub(crate) fn families(counters: &Counters, queued: u64, outage: bool) -> Vec<Family> {
    let by = |name, help, label: &'static str, values: &[(&str, u64)]| {
        let family = Family::new(Kind::Counter, name, help);
        values
            .iter()
            .fold(family, |family, (value, count)| family.with([(label, value)], *count as f64))
    };
    let one = |kind, name, help, value: u64| Family::single(kind, name, help, value as f64);
    vec![
        by(
            "underspan_spans_received_total",
            "Spans in well-formed OTLP requests.",
            "transport",
            &[("grpc", counters.received_grpc.get()), ("http", counters.received_http.get())],
        ),
        one(
            Kind::Counter,
            "underspan_spans_written_total",
            "Spans the store has.",
            counters.written.get(),
        ),
        by(
            "underspan_spans_rejected_total",
            "Spans refused for good; the sender was told.",
            "reason",
            &[
                ("bad_id", counters.rejected_bad_id.get()),
                ("bad_time", counters.rejected_bad_time.get()),
                ("too_large", counters.rejected_too_large.get()),
            ],
        ),
        by(
            "underspan_spans_refused_total",
            "Spans the sender was asked to send again.",
            "reason",
            &[
                ("queue_full", counters.refused_queue_full.get()),
                ("store_down", counters.refused_store_down.get()),
                ("shutdown", counters.refused_shutdown.get()),
            ],
        ),
        by(
            "underspan_spans_dropped_total",
            "Spans accepted and then lost.",
            "reason",
            &[
                ("store_refused", counters.dropped_by_store.get()),
                ("shutdown", counters.dropped_at_shutdown.get()),
            ],
        ),
        one(
            Kind::Counter,
            "underspan_otlp_malformed_requests_total",
            "OTLP/HTTP requests that could not be decoded.",
            counters.malformed_requests.get(),
        ),
        one(Kind::Gauge, "underspan_spans_queued", "Spans accepted and not yet written.", queued),
        one(
            Kind::Gauge,
            "underspan_store_up",
            "1 while the store takes spans.",
            u64::from(!outage),
        ),
        Family::new(Kind::Gauge, "underspan_build_info", "1; the version is a label.")
            .with([("version", env!("CARGO_PKG_VERSION"))], 1.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_the_documentation_names_every_metric() {
        let page = include_str!("../../../../docs/metrics.md");
        for family in families(&Counters::default(), 0, false) {
            let name = format!("`{}`", family.name);
            assert!(page.contains(&name), "{name} in docs/metrics.md");
        }
    }

    #[test]
    fn an_outage_shows() {
        let up = |outage| {
            let families = families(&Counters::default(), 7, outage);
            underspan_metrics::encode_text(&families)
        };
        assert!(up(false).contains("\nunderspan_store_up 1\n"));
        assert!(up(true).contains("\nunderspan_store_up 0\n"));
        assert!(up(true).contains("\nunderspan_spans_queued 7\n"));
    }
}
