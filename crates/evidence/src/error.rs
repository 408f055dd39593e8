//! What can go wrong.

/// Why the evidence could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] underspan_store::Error),
    /// A row is not what this version of Underspan expects.
    #[error(
        "a row of `{table}` cannot be read: {source}; it was written by another version of \
         Underspan: use the same version everywhere"
    )]
    Row {
        /// The table.
        table: &'static str,
        /// What was wrong with it.
        source: serde_json::Error,
    },
}
