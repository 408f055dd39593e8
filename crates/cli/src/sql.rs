//! `underspan sql`.

use std::io::{IsTerminal, Read, stdin, stdout};
use std::process::ExitCode;

use anyhow::Context;

use crate::{Global, output, session};

/// Options of `underspan sql`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The query; `-` reads it from standard input
    #[arg(value_name = "QUERY")]
    query: String,

    /// Any of ClickHouse's output formats; default: PrettyCompactMonoBlock on a terminal, else TSV
    /// with names
    #[arg(long, value_name = "FORMAT", conflicts_with = "json")]
    #[arg(help_heading = "Output")]
    format: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let query = match args.query.as_str() {
        "-" => {
            let mut text = String::new();
            stdin()
                .read_to_string(&mut text)
                .context("cannot read the query from standard input")?;
            text
        }
        query => query.to_owned(),
    };
    let format = match (&args.format, global.json) {
        (Some(format), _) => format,
        (None, true) => "JSONEachRow",
        (None, false) if stdout().is_terminal() => "PrettyCompactMonoBlock",
        (None, false) => "TabSeparatedWithNames",
    };
    // A trailing semicolon ends a statement for people, not over HTTP with a format behind it.
    let query = query.trim().trim_end_matches(';');
    let bytes =
        session::with_store(global, async |store| Ok(store.query_raw(query, format).await?))?;
    output::print(&bytes)?;
    Ok(ExitCode::SUCCESS)
}
