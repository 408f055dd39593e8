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

use std::future::Future;

use underspan_store::Store;

pub use config::Config;
pub use error::Error;
pub use server::{Addresses, Server};
pub use spans::sink::{SinkError, SpanSink};

/// Serves a store until `shutdown` completes; `ready` is told where once every port is taken. `hurry`
/// is for [`Server::with_hurry`].
///
/// The store's tables must be there: see [`Store::migrate`]. It may go away meanwhile.
///
/// # Errors
///
/// Those of [`Server::bind`] and [`Server::serve`].
pub async fn run(
    config: &Config,
    store: Store,
    ready: impl FnOnce(&Addresses),
    shutdown: impl Future<Output = ()>,
    hurry: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    let server = Server::bind(config, store.clone()).await?.with_api(store).with_hurry(hurry);
    ready(&server.addresses());
    server.serve(shutdown).await
}
