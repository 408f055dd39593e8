//! The store: ClickHouse over HTTP, whether a server or the embedded one.

mod batch;

pub use batch::{Batch, RowWriter};
