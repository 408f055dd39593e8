//! `underspan run`.

use std::process::ExitCode;

use crate::Global;
use crate::failure::Failure;

/// Options of `underspan run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(_args: Args, _global: &Global) -> anyhow::Result<ExitCode> {
    Err(Failure::new("run: not in this build yet").into())
}
