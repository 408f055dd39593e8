//! The server: takes spans over OTLP, writes them to the store, and answers the HTTP API.
//!
//! ```text
//!  OTLP/gRPC :4317 ─┐
//!  OTLP/HTTP :4318 ─┴▶ decode ─▶ rows of otel_traces ─▶ bounded queue ─▶ writer ─▶ store
//!  API       :7077 ◀── requests, explanations, /health, /metrics
//! ```
//!
//! A span is acknowledged once it is queued. While the store is down or the queue is full, senders
//! are asked to come back, and keep their spans. What is lost all the same is counted by reason.

mod api;
mod config;
mod error;
mod otlp;
mod server;
mod spans;

pub use config::Config;
pub use error::Error;
pub use server::{Addresses, Server};
pub use spans::sink::{SinkError, SpanSink};
