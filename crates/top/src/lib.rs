//! `underspan top`: what every watched thread does, live, in the terminal. No store, no server.
//!
//! ```text
//!  kernel ─▶ Live (agent) ─▶ Watch ─▶ View, once a second ─┬─▶ App ─▶ draw ─▶ terminal
//!                                                          ├─▶ plain text
//!                                                          └─▶ JSON
//! ```

mod app;
mod asked;
mod bar;
mod collect;
mod culprits;
mod draw;
mod free;
mod plain;
mod python;
mod requests;
mod spent;
mod stack;
mod table;
mod terminal;
mod view;

use std::time::{Duration, Instant};

pub use collect::Watch;
pub use plain::text;
pub use spent::{Share, Spent};
pub use terminal::{check_terminal, show};
pub use view::{Cost, Culprit, Fault, Process, Request, Thread, View};

/// Why there is nothing to see, or no more.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing to draw on.
    #[error(
        "standard input and output are no terminal: use --once or --batch N for text, with --json \
         for JSON"
    )]
    NoTerminal,
    /// The terminal's side.
    #[error("the terminal cannot be used: {0}")]
    Terminal(std::io::Error),
    /// The kernel's side.
    #[error(transparent)]
    Watch(#[from] underspan_agent::OpenError),
}

/// Shows `count` intervals to `each`, one after the other.
///
/// # Errors
/// If the programs cannot be read any more, or what `each` says.
pub fn batch<E: From<Error>>(
    watch: &mut Watch,
    every: Duration,
    count: u32,
    mut each: impl FnMut(&View) -> Result<(), E>,
) -> Result<(), E> {
    for _ in 0..count {
        let end = Instant::now() + every;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            watch.drain(left.min(Duration::from_millis(100))).map_err(Error::from)?;
            if left.is_zero() {
                break;
            }
        }
        each(&watch.view().map_err(Error::from)?)?;
    }
    Ok(())
}
