//! Where batches go.

use std::future::Future;

use underspan_store::Batch;

/// Why a batch was not inserted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InsertError {
    /// The store is away or overloaded: the same batch may succeed later.
    #[error("{0}")]
    Retryable(String),
    /// The store will never take this batch: no such table or column, a value it cannot read.
    #[error("{0}")]
    Permanent(String),
}

/// Something that takes batches: the store.
pub trait Insert: Send + Sync + 'static {
    /// Inserts the rows, all or none. Returns once the store has them.
    ///
    /// # Errors
    /// [`InsertError`] says whether to try again.
    fn insert(&self, batch: &Batch) -> impl Future<Output = Result<(), InsertError>> + Send;
}

impl<I: Insert> Insert for std::sync::Arc<I> {
    fn insert(&self, batch: &Batch) -> impl Future<Output = Result<(), InsertError>> + Send {
        I::insert(self, batch)
    }
}
