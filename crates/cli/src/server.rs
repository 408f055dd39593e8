//! `underspan server`.

use std::future::Future;
use std::net::SocketAddr;
use std::process::ExitCode;

use underspan_server::{Addresses, Config};
use underspan_store::Store;
use underspan_store::embedded::DEFAULT_PORT;

use crate::watch::{self, TableArgs, progress};
use crate::{Global, signals};

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
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let (store, embedded) = watch::open_store(global, args.listen.store_port).await?;
        let result = async {
            watch::migrate(&store, &args.tables).await?;
            serve(&args.listen, &args.tables, store, async {
                // Without a handler for the signals, going on is all that is left.
                if signals::interrupted_or(|| false).await.is_err() {
                    std::future::pending::<()>().await;
                }
                progress("stopping");
            })
            .await
        }
        .await;
        // Last, so that what was queued has been written.
        if let Some(embedded) = embedded {
            embedded.shutdown().await;
        }
        result.map(|()| ExitCode::SUCCESS)
    })
}

/// Takes spans and answers the API until `shutdown`.
pub(crate) async fn serve(
    listen: &ListenArgs,
    tables: &TableArgs,
    store: Store,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let config = Config {
        api: listen.api,
        otlp_grpc: (!listen.no_otlp).then_some(listen.otlp_grpc),
        otlp_http: (!listen.no_otlp).then_some(listen.otlp_http),
        ttl_days: tables.ttl,
        ..Config::default()
    };
    underspan_server::run(&config, store, announce, shutdown).await?;
    Ok(())
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
