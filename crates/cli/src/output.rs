//! Standard output, and standard error.

use std::io::{ErrorKind, Write, stderr, stdout};

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

/// Writes it to standard error. Where nobody reads that any more (`2>&1 | head`) it is not said, and all
/// goes on: `eprintln!` would panic, and with it would go what is being watched.
pub(crate) fn tell(text: &str) {
    let _ = stderr().lock().write_all(text.as_bytes());
}
