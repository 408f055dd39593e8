//! Standard output.

use std::io::{ErrorKind, Write, stdout};

use anyhow::Context;
use serde::Serialize;

/// Writes it all. A reader that has seen enough (`| head`) is no error.
pub(crate) fn print(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Writes one JSON document.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut json = serde_json::to_vec_pretty(value).context("cannot write JSON")?;
    json.push(b'\n');
    print(&json)
}
