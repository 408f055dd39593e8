//! The receive stack's histograms against what programs see of the same packets, over veth between
//! two network namespaces. Needs root, iproute2 and nftables.

// Everything here is test code; clippy knows only functions marked `#[test]` as such.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod clock;
mod filters;
mod lab;
mod reader;
mod stages;
mod stamps;
