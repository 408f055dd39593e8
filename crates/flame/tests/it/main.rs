//! What pictures must keep: sums, paths, and what other programs read.

// Helpers outside of test functions fail a test in the same way.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../story/mod.rs"]
mod story;

mod diffs;
mod exports;
mod pictures;
mod scaling;
mod summaries;
mod sums;
