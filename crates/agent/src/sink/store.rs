//! The real store as the sink's far end.

use underspan_store::{Batch, Store};

use super::{Insert, InsertError};

impl Insert for Store {
    async fn insert(&self, batch: &Batch) -> Result<(), InsertError> {
        Store::insert(self, batch).await.map_err(|error| match error.is_retryable() {
            true => InsertError::Retryable(error.to_string()),
            false => InsertError::Permanent(error.to_string()),
        })
    }
}
