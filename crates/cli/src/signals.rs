//! Ctrl-C and SIGTERM.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

/// How often the condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Waits for SIGINT or SIGTERM, or until `ended` says so.
pub(crate) async fn interrupted_or(ended: impl Fn() -> bool) -> std::io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            () = tokio::time::sleep(LOOK_EVERY) => if ended() { return Ok(()) },
        }
    }
}
