//! `underspan doctor`.

use std::process::ExitCode;

use crate::Global;
use crate::failure::Failure;

/// Options of `underspan doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_args: Args, _global: &Global) -> anyhow::Result<ExitCode> {
    Err(Failure::new("doctor: not in this build yet").into())
}
