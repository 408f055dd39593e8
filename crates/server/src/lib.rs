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
mod listeners;
mod otlp;
mod server;
mod spans;

use std::future::Future;

use tokio::task::JoinSet;
use underspan_store::Store;
use underspan_store::embedded::Readers;

pub use config::Config;
pub use error::Error;
pub use listeners::{Addresses, Listeners};
pub use server::Server;
pub use spans::queue::Flusher;
pub use spans::sink::{SinkError, SpanSink};

/// Serves a store at `listeners` until `shutdown` completes. `hurry` is for [`Server::with_hurry`]; with
/// `readers`, those of an embedded store, spans are written to it when somebody reads, or later.
///
/// The store's tables must be there: see [`Store::migrate`]. It may go away meanwhile.
///
/// # Errors
///
/// Those of [`Server::on`] and [`Server::serve`].
pub async fn run(
    listeners: Listeners,
    config: &Config,
    store: Store,
    readers: Option<Readers>,
    shutdown: impl Future<Output = ()>,
    hurry: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    let server = Server::on(listeners, config, store.clone())?;
    // A set, so that it ends with this.
    let mut asking = JoinSet::new();
    if let Some(readers) = readers {
        asking.spawn(readers.ask_first(server.flusher()));
    }
    server.with_api(store).with_hurry(hurry).serve(shutdown).await
}
