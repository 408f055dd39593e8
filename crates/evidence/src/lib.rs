//! Typed queries: everything `explain` needs to know about one request or trace.
//!
//! Rows come back as JSON, so that a row of the store is a noun of the model by its column names,
//! and a ledger may gain states without a change here. Every query begins with what its table is
//! ordered by (host, pid, tid, start_time) or with a column that has a bloom filter.

mod error;
pub mod flame;
mod network;
mod query;
mod requests;
mod rows;
mod samples;

pub use error::Error;
pub use requests::{Filter, recent_requests, request_by_id, requests_in_flight, requests_of_trace};
pub use rows::{evidence_for, spans_of_trace};
