//! `underspan server`.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use underspan_server::{Addresses, Config};
use underspan_store::embedded::{DEFAULT_PORT, Embedded, EmbeddedError, Options, default_folder};
use underspan_store::{CORE, Endpoint, MigrateOptions, Store};

use crate::Global;
use crate::failure::Failure;

/// Options of `underspan server`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
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
    store_port: u16,
    /// Take no spans: another collector does
    #[arg(long, conflicts_with_all = ["otlp_grpc", "otlp_http"])]
    no_otlp: bool,
    /// Drop rows after this many days
    #[arg(long, value_name = "DAYS", default_value_t = 7)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    ttl: u32,
    /// Make the tables on this cluster of a ClickHouse server
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    log_to_stderr();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(serve(args, global))?;
    Ok(ExitCode::SUCCESS)
}

/// Warnings and errors, or what RUST_LOG asks for.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    // An error means that there is a subscriber already.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .with_target(false)
        .try_init();
}

async fn serve(args: Args, global: &Global) -> anyhow::Result<()> {
    let progress = |text: &str| eprintln!("underspan: {text}");
    let (endpoint, embedded) = match &global.store {
        Some(url) => (url.parse::<Endpoint>()?, None),
        None => {
            let folder = global.data.clone().unwrap_or_else(default_folder);
            let options = Options { folder, port: args.store_port, ..Options::default() };
            let embedded = Embedded::attach_or_start(&options, progress).await.map_err(explain)?;
            (embedded.endpoint().clone(), Some(embedded))
        }
    };
    let result = serve_store(args, Store::connect(endpoint), progress).await;
    // Last, so that what was queued has been written.
    if let Some(embedded) = embedded {
        embedded.shutdown().await;
    }
    result
}

fn explain(error: EmbeddedError) -> anyhow::Error {
    match error {
        EmbeddedError::PortInUse(_) => Failure::new(error.to_string())
            .hint("choose another port for the store with --store-port PORT, 0 for any")
            .into(),
        error => error.into(),
    }
}

async fn serve_store(args: Args, store: Store, progress: impl Fn(&str)) -> anyhow::Result<()> {
    store.check().await?;
    let options = MigrateOptions { ttl_days: args.ttl, cluster: args.cluster };
    let mut components = vec![CORE];
    components.extend(underspan_trackers::components());
    for applied in store.migrate(&components, &options).await? {
        progress(&format!(
            "tables: {} {}, {}",
            applied.component, applied.version, applied.description
        ));
    }
    let config = Config {
        api: args.api,
        otlp_grpc: (!args.no_otlp).then_some(args.otlp_grpc),
        otlp_http: (!args.no_otlp).then_some(args.otlp_http),
        ttl_days: args.ttl,
        ..Config::default()
    };
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let shutdown = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        progress("stopping");
    };
    underspan_server::run(&config, store, |addresses| announce(addresses, &progress), shutdown)
        .await?;
    Ok(())
}

fn announce(addresses: &Addresses, progress: &impl Fn(&str)) {
    progress(&format!("API at http://{}", addresses.api));
    if let Some(address) = addresses.otlp_grpc {
        progress(&format!("taking spans over gRPC at {address}"));
    }
    if let Some(address) = addresses.otlp_http {
        progress(&format!("taking spans over HTTP at http://{address}/v1/traces"));
    }
}
