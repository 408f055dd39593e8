//! `underspan up`: store, server and agent on this machine, until Ctrl-C.

use std::process::ExitCode;

use underspan_agent::Agent;

use crate::beside::beside;
use crate::metrics::Endpoint;
use crate::privileges::PrivilegeArgs;
use crate::server::{Bound, ListenArgs};
use crate::signals::Signals;
use crate::watch::{self, AgentArgs, SelectArgs, TableArgs, progress};
use crate::{Global, store};

/// Options of `underspan up`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    privileges: PrivilegeArgs,
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    tables: TableArgs,
}

/// Runs the command.
pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    watch::log_to_stderr();
    let target = store::Target::new(global, args.listen.store_port)?;
    let spool = args.agent.spool(global);
    let bound = Bound::bind(&args.listen, &args.tables)?;
    let endpoint = Endpoint::bind(args.agent.metrics)?;
    let metrics = endpoint.as_ref().map(Endpoint::metrics);
    let agent = Agent::open(args.agent.options(args.select.selection()?, metrics)?)?;
    args.privileges.drop(global, &spool)?;
    beside(agent, async |starter| {
        let signals = Signals::take()?;
        let _serving = endpoint.map(Endpoint::serve).transpose()?;
        let store = signals.unless(target.open()).await?;
        let result = async {
            signals.unless(store.migrate(&args.tables)).await?;
            let start = starter.start(
                &store,
                std::slice::from_ref(&spool),
                args.agent.spool_options(&args.tables),
            );
            let mut running = signals.unless(start).await?;
            progress("watching; Ctrl-C ends it");
            let stopped = async {
                tokio::select! {
                    _ = signals.next() => {}
                    () = running.ended() => {}
                }
                signals.stopping();
                progress("stopping");
            };
            let served = bound.serve(&store, stopped, &signals).await;
            running.stop(&signals).await.and(served)
        }
        .await;
        store.close(&signals).await;
        result.map(|()| ExitCode::SUCCESS)
    })
}
