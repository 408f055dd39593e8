//! Sessions against the real kernel: what BPF says of a process is compared with what it does and
//! with `/proc`. Needs root.

// Everything here is test code; clippy knows only functions marked `#[test]` as such.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use underspan_trackers as api;

#[path = "../support/mod.rs"]
mod support;

mod collections;
mod gil;
mod lives;
mod loops;
mod machine;
mod off_cpu;
mod oncpu;
mod ongoing;
mod python_stacks;
mod requests;
mod sessions;
mod states;
mod sums;
mod tcp;
mod watcher;
mod workload;
