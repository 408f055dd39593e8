//! Where batches of spans go.

use std::future::Future;

use underspan_store::{Batch, Error, Store};

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

impl SpanSink for Store {
    async fn insert(&self, batch: &Batch) -> Result<(), SinkError> {
        Store::insert(self, batch).await.map_err(|error| SinkError {
            // Spans also outlast tables that do not fit (yet): no span can be the reason for that.
            retryable: error.is_retryable() || matches!(error, Error::Schema { .. }),
            message: error.to_string(),
        })
    }
}
