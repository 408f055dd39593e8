//! The store against a real embedded host. The Python to run it with is named by the environment
//! variable `UNDERSPAN_PYTHON`.

mod client;
mod embedded;
mod schema;
mod store;
mod support;
