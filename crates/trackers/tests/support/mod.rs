//! What unit and integration tests share: a context without an agent, and rows read back.
//!
//! Whoever includes this module names the trackers crate `api` beside it.

#![allow(dead_code, unused_imports, reason = "nobody needs all of it")]

mod context;
mod rowbinary;
mod sql;

pub(crate) use context::FakeContext;
pub(crate) use rowbinary::{Row, decode};
pub(crate) use sql::{Column, Table, tables};

/// So many cases, and no file with those that failed: a failure prints its input.
pub(crate) fn cases(cases: u32) -> proptest::test_runner::Config {
    proptest::test_runner::Config { cases, failure_persistence: None, ..Default::default() }
}
