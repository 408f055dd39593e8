//! Where batches of spans go.

use std::future::Future;

use underspan_store::Batch;

/// Takes batches for good: the store, or a stand-in where a test must decide what fails.
pub trait SpanSink: Send + Sync + 'static {
    /// Writes a batch. It is stored when this returns `Ok`.
    ///
    /// # Errors
    ///
    /// Says whether the same batch may succeed later.
    fn insert(&self, batch: &Batch) -> impl Future<Output = Result<(), SinkError>> + Send;
}

/// Why a batch was not written.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct SinkError {
    /// What happened.
    pub message: String,
    /// Whether the same batch may succeed later.
    pub retryable: bool,
}
