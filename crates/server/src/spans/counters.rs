//! What happened to spans, counted. Every received span ends in exactly one of the other counters
//! or is still queued.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The server's own counters.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Spans in well-formed OTLP requests over gRPC.
    pub(crate) received_grpc: Counter,
    /// Spans in well-formed OTLP requests over HTTP.
    pub(crate) received_http: Counter,
    /// Spans the store has.
    pub(crate) written: Counter,
    /// Refused for good, and the sender was told: an id of the wrong length.
    pub(crate) rejected_bad_id: Counter,
    /// Refused for good, and the sender was told: older than what the store keeps, or in the future.
    pub(crate) rejected_bad_time: Counter,
    /// Refused for good, and the sender was told: too many bytes of rows in one request.
    pub(crate) rejected_too_large: Counter,
    /// The sender was asked to send them again: the queue was full.
    pub(crate) refused_queue_full: Counter,
    /// The sender was asked to send them again: the store did not take spans.
    pub(crate) refused_store_down: Counter,
    /// The sender was asked to send them again: the server was ending.
    pub(crate) refused_shutdown: Counter,
    /// Accepted and lost: the store refused the rows for good.
    pub(crate) dropped_by_store: Counter,
    /// Accepted and lost: the store was down until the server ended.
    pub(crate) dropped_at_shutdown: Counter,
    /// OTLP requests over HTTP that could not be decoded.
    pub(crate) malformed_requests: Counter,
}
