//! The `underspan` command.
fn main() {}
