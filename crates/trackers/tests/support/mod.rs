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
