//! `underspan agent`.

use std::process::ExitCode;

use underspan_store::embedded::DEFAULT_PORT;

use crate::watch::{self, AgentArgs, Running, SelectArgs, TableArgs, progress};
use crate::{Global, signals};

/// Options of `underspan agent`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    tables: TableArgs,
}

/// Runs the command.
pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    watch::log_to_stderr();
    let options = args.agent.options(args.select.selection()?)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let (store, embedded) = watch::open_store(global, DEFAULT_PORT).await?;
        watch::migrate(&store, &args.tables).await?;
        let never = embedded.iter().filter_map(|embedded| embedded.pid()).collect();
        let running = Running::start(options, &args.agent, global, store, never).await?;
        progress("watching; Ctrl-C ends it");
        signals::interrupted_or(|| running.has_ended()).await?;
        progress("stopping");
        let outcome = running.stop().await;
        if let Some(embedded) = embedded {
            embedded.shutdown().await;
        }
        outcome.map(|()| ExitCode::SUCCESS)
    })
}
