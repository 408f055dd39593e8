//! Who waited for the GIL, and who held it?

mod decode;

use crate::rows::columns;
use crate::{Decoder, Hook, Tracker};

/// Waits for the GIL. Its BPF code (`gil.bpf.h`) runs inside the ledger's program: a GIL wait is a
/// futex wait at a known address, so nothing more needs to be hooked.
pub struct GilTracker;

impl Tracker for GilTracker {
    fn name(&self) -> &'static str {
        "gil"
    }

    fn question(&self) -> &'static str {
        "Who waited for the GIL, and who held it?"
    }

    fn hooks(&self) -> &'static [Hook] {
        &[]
    }

    fn sql(&self) -> &'static str {
        include_str!("table.sql")
    }

    fn tables(&self) -> Vec<(&'static str, Vec<String>)> {
        let own = ["holder_tid", "holder_thread", "holder_ns", "gc_ns", "slices"];
        vec![("gil_wait", columns(&own))]
    }

    fn readme(&self) -> &'static str {
        include_str!("README.md")
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(decode::GilDecoder::new(self.tables().remove(0).1))
    }
}

#[cfg(test)]
mod tests;
