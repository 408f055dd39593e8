//! Programs whose stacks are known, in each language.

#![allow(clippy::unwrap_used, clippy::panic)]

mod native;
mod program;
mod python;
