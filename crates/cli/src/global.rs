//! Options that every subcommand takes.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::{ArgAction, ValueEnum};
use underspan_store::{Endpoint, Error};

use crate::failure::{Failure, USAGE};

/// Options that every subcommand takes.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// ClickHouse to use, http://[USER:PASSWORD@]HOST:PORT/DATABASE; without it, the embedded store
    #[arg(long, global = true, value_name = "URL", env = "UNDERSPAN_STORE")]
    #[arg(hide_env_values = true)]
    pub(crate) store: Option<String>,

    /// Folder of the embedded store
    #[arg(long, global = true, value_name = "DIR", env = "UNDERSPAN_DATA")]
    pub(crate) data: Option<PathBuf>,

    /// Print JSON, with the field names of the tables
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// When to use colours; `auto` means on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: ColorChoice,

    /// Print help: `-h` in short, `--help` in full
    #[arg(long, short, global = true, action = ArgAction::Help)]
    help: Option<bool>,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Global {
    /// The server that `--store` names, if it does.
    pub(crate) fn endpoint(&self) -> anyhow::Result<Option<Endpoint>> {
        let endpoint = self.store.as_ref().map(|url| url.parse());
        endpoint
            .transpose()
            .map_err(|error: Error| Failure::new(error.to_string()).status(USAGE).into())
    }

    /// The terminal's width; `None` when standard output is none, and nothing needs to be cut.
    pub(crate) fn width(&self) -> Option<usize> {
        if !std::io::stdout().is_terminal() {
            return None;
        }
        terminal_size::terminal_size().map(|(width, _)| usize::from(width.0))
    }

    /// Whether standard output gets colours.
    pub(crate) fn colour(&self) -> bool {
        match self.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
                !forbidden && std::io::stdout().is_terminal()
            }
        }
    }
}
