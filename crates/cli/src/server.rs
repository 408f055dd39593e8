//! `underspan server`.

use std::future::Future;
use std::net::SocketAddr;
use std::process::ExitCode;

use underspan_server::{Addresses, Config, Listeners};
use underspan_store::embedded::DEFAULT_PORT;

use crate::beside::runtime;
use crate::signals::Signals;
use crate::store::Opened;
use crate::watch::{self, TableArgs, progress};
use crate::{Global, store};

/// Options of `underspan server`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    tables: TableArgs,
}

/// Where to listen.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Addresses")]
pub(crate) struct ListenArgs {
    /// Where the API and /metrics listen
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7077")]
    api: SocketAddr,
    /// Where spans are taken over gRPC
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:4317")]
    otlp_grpc: SocketAddr,
    /// Where spans are taken over HTTP
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:4318")]
    otlp_http: SocketAddr,
    /// Port of the embedded store; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_PORT)]
    pub(crate) store_port: u16,
    /// Take no spans: another collector does
    #[arg(long, conflicts_with_all = ["otlp_grpc", "otlp_http"])]
    no_otlp: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    watch::log_to_stderr();
    let target = store::Target::new(global, args.listen.store_port)?;
    let bound = Bound::bind(&args.listen, &args.tables)?;
    runtime()?.block_on(async {
        let signals = Signals::take()?;
        let store = signals.unless(target.open()).await?;
        let result = async {
            signals.unless(store.migrate(&args.tables)).await?;
            let stopped = async {
                signals.next().await;
                signals.stopping();
                progress("stopping");
            };
            bound.serve(&store, stopped, &signals).await
        }
        .await;
        store.close(&signals).await;
        result.map(|()| ExitCode::SUCCESS)
    })
}

/// A server that has its ports.
pub(crate) struct Bound {
    config: Config,
    listeners: Listeners,
}

impl Bound {
    /// Takes the ports, while we may: below 1024 only root may.
    pub(crate) fn bind(listen: &ListenArgs, tables: &TableArgs) -> anyhow::Result<Self> {
        let config = Config {
            api: listen.api,
            otlp_grpc: (!listen.no_otlp).then_some(listen.otlp_grpc),
            otlp_http: (!listen.no_otlp).then_some(listen.otlp_http),
            ttl_days: tables.ttl,
            ..Config::default()
        };
        Ok(Bound { config, listeners: Listeners::bind(&config)? })
    }

    /// Takes spans and answers the API until `shutdown`; a signal after that cuts its end short.
    pub(crate) async fn serve(
        self,
        store: &Opened,
        shutdown: impl Future<Output = ()>,
        signals: &Signals,
    ) -> anyhow::Result<()> {
        announce(&self.listeners.addresses());
        let hurry = signals.clone().hurry();
        let (client, readers) = (store.client(), store.readers("spans"));
        underspan_server::run(self.listeners, &self.config, client, readers, shutdown, hurry)
            .await?;
        Ok(())
    }
}

fn announce(addresses: &Addresses) {
    progress(&format!("API at http://{}", addresses.api));
    if let Some(address) = addresses.otlp_grpc {
        progress(&format!("taking spans over gRPC at {address}"));
    }
    if let Some(address) = addresses.otlp_http {
        progress(&format!("taking spans over HTTP at http://{address}/v1/traces"));
    }
}
