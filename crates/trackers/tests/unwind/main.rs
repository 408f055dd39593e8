//! Native stacks of real programs against the lists that the programs themselves make of their
//! callers. Needs root.

// Everything here is test code; clippy knows only functions marked `#[test]` as such.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use underspan_trackers as api;

#[path = "../support/mod.rs"]
mod support;

mod program;
mod sampler;
mod trees;
