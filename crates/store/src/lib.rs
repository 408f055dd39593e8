//! The store: ClickHouse over HTTP, whether a server or the embedded one.

mod batch;
mod client;
pub mod embedded;
mod endpoint;
mod error;
pub mod schema;
mod transport;

pub use batch::{Batch, RowWriter};
pub use client::{MINIMUM_VERSION, Store};
pub use endpoint::{Endpoint, STORE_VARIABLE};
pub use error::Error;
pub use schema::{CORE, Component, MigrateOptions, SchemaStatus};
