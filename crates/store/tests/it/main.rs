//! The store against a real embedded host. The Python to run it with is named by the environment
//! variable `UNDERSPAN_PYTHON`.

// Helpers outside of test functions fail a test in the same way.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod client;
mod embedded;
mod schema;
mod store;
mod support;
