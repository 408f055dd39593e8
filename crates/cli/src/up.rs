//! `underspan up`: store, server and agent on this machine, until Ctrl-C.

use std::process::ExitCode;

use crate::server::{self, ListenArgs};
use crate::watch::{self, AgentArgs, Running, SelectArgs, TableArgs, progress};
use crate::{Global, signals};

/// Options of `underspan up`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    listen: ListenArgs,
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
        let (store, embedded) = watch::open_store(global, args.listen.store_port).await?;
        let result = async {
            watch::migrate(&store, &args.tables).await?;
            let never = embedded.iter().filter_map(|embedded| embedded.pid()).collect();
            let agent = Running::start(options, &args.agent, global, store.clone(), never).await?;
            progress("watching; Ctrl-C ends it");
            let stopped = async {
                // Without a handler for the signals, going on is all that is left.
                if signals::interrupted_or(|| agent.has_ended()).await.is_err() {
                    std::future::pending::<()>().await;
                }
                progress("stopping");
            };
            let served = server::serve(&args.listen, &args.tables, store, stopped).await;
            agent.stop().await.and(served)
        }
        .await;
        // Last, so that what was queued has been written.
        if let Some(embedded) = embedded {
            embedded.shutdown().await;
        }
        result.map(|()| ExitCode::SUCCESS)
    })
}
