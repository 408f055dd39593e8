//! The server's life: bind everything, serve until told to stop, then flush.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::transport::server::TcpIncoming;
use underspan_store::Store;

use crate::spans::counters::Counters;
use crate::spans::intake::Intake;
use crate::spans::queue::{Limits, Queue};
use crate::spans::sink::SpanSink;
use crate::spans::writer::Writer;
use crate::{Config, Error, api, otlp};

/// Open connections get this long to end once the server stops.
const CONNECTION_GRACE: Duration = Duration::from_secs(3);
/// Queued spans get this long to reach the store once the server stops,
const FLUSH_GRACE: Duration = Duration::from_secs(10);
/// and this long if it was away already: it may be starting again.
const FLUSH_GRACE_AWAY: Duration = Duration::from_secs(5);
/// Whoever waits for that is told after this long.
const TOLD_AFTER: Duration = Duration::from_secs(1);

const API: &str = "API";
const OTLP_GRPC: &str = "OTLP over gRPC";
const OTLP_HTTP: &str = "OTLP over HTTP";

/// A server that has its ports and does not serve yet.
pub struct Server<S> {
    api: TcpListener,
    otlp_grpc: Option<TcpListener>,
    otlp_http: Option<TcpListener>,
    sink: Arc<S>,
    api_router: Router,
    addresses: Addresses,
    limits: Limits,
    ttl_days: u32,
    hurry: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// The addresses a server got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// API and `/metrics`.
    pub api: SocketAddr,
    /// OTLP over gRPC.
    pub otlp_grpc: Option<SocketAddr>,
    /// OTLP over HTTP.
    pub otlp_http: Option<SocketAddr>,
}

impl<S: SpanSink> Server<S> {
    /// Takes every port, or none.
    ///
    /// # Errors
    ///
    /// [`Error::PortInUse`] or [`Error::Bind`]; both name the address and the option to change it.
    pub async fn bind(config: &Config, sink: S) -> Result<Self, Error> {
        let (api, api_at) = bind(API, "--api", config.api).await?;
        let (otlp_grpc, otlp_grpc_at) = match config.otlp_grpc {
            Some(address) => split(bind(OTLP_GRPC, "--otlp-grpc", address).await?),
            None => (None, None),
        };
        let (otlp_http, otlp_http_at) = match config.otlp_http {
            Some(address) => split(bind(OTLP_HTTP, "--otlp-http", address).await?),
            None => (None, None),
        };
        Ok(Server {
            api,
            otlp_grpc,
            otlp_http,
            addresses: Addresses { api: api_at, otlp_grpc: otlp_grpc_at, otlp_http: otlp_http_at },
            sink: Arc::new(sink),
            api_router: Router::new(),
            limits: Limits { max_spans: config.max_queued_spans, ..Limits::default() },
            ttl_days: config.ttl_days,
            hurry: Box::pin(std::future::pending()),
        })
    }

    /// Once told to stop, the server polls this too: when it completes, connections are cut off and
    /// what the store has not taken is given up.
    #[must_use]
    pub fn with_hurry(mut self, hurry: impl Future<Output = ()> + Send + 'static) -> Self {
        self.hurry = Box::pin(hurry);
        self
    }

    /// Answers `/api/requests` from a store.
    #[must_use]
    pub fn with_api(mut self, store: Store) -> Self {
        self.api_router = api::requests::router(store);
        self
    }

    /// Where it will listen.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Serves until `shutdown` completes; then ends connections and writes what is queued.
    ///
    /// # Errors
    ///
    /// [`Error::Serve`] if a listener fails. Queued spans are flushed first.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let counters = Arc::new(Counters::default());
        let queue = Arc::new(Queue::new(self.limits));
        let intake =
            Intake { queue: queue.clone(), counters: counters.clone(), ttl_days: self.ttl_days };
        let (set_deadline, deadline) = watch::channel(None);
        // Sets, so that a server that is dropped leaves no task behind.
        let mut writer = JoinSet::new();
        writer.spawn(Writer::new(queue.clone(), counters.clone(), self.sink, deadline).run());

        let (stop, stopping) = watch::channel(false);
        let api_router = self.api_router.merge(api::router(intake.clone()));
        let mut listeners = JoinSet::new();
        listeners.spawn(serve_http(API, self.api, api_router, stopping.clone()));
        if let Some(listener) = self.otlp_http {
            let router = otlp::http::router(intake.clone());
            listeners.spawn(serve_http(OTLP_HTTP, listener, router, stopping.clone()));
        }
        if let Some(listener) = self.otlp_grpc {
            listeners.spawn(serve_grpc(listener, intake, stopping));
        }

        let failure = tokio::select! {
            () = shutdown => None,
            failure = first_to_end(&mut listeners) => Some(failure),
        };
        // Order matters: no new spans, then none on the way, then write what is there.
        let _ = stop.send(true);
        let (mut hurry, mut hurried) = (self.hurry, false);
        tokio::select! {
            () = end(listeners) => {}
            () = &mut hurry => hurried = true,
        }
        queue.close();
        let grace = match queue.outage() {
            _ if hurried => Duration::ZERO,
            Some(_) => FLUSH_GRACE_AWAY,
            None => FLUSH_GRACE,
        };
        let _ = set_deadline.send(Some(Instant::now() + grace));
        let ended = tokio::select! {
            ended = writer.join_next() => ended,
            () = tell_of_the_wait(&queue, grace) => None,
            () = &mut hurry, if !hurried => {
                let _ = set_deadline.send(Some(Instant::now()));
                writer.join_next().await
            }
        };
        if let Some(Err(error)) = ended {
            tracing::error!(%error, "the span writer failed");
        }
        failure.map_or(Ok(()), Err)
    }
}

/// Says what is being waited for, if it takes a while. Never completes.
async fn tell_of_the_wait(queue: &Queue, grace: Duration) {
    tokio::time::sleep(TOLD_AFTER).await;
    tracing::warn!(
        spans = queue.queued(),
        "the store does not take the last spans: they are lost unless it does within {:?}; another \
         Ctrl-C gives them up",
        grace.saturating_sub(TOLD_AFTER)
    );
    std::future::pending().await
}

/// A listener, and the address it got.
type Bound = (TcpListener, SocketAddr);

async fn bind(
    what: &'static str,
    option: &'static str,
    address: SocketAddr,
) -> Result<Bound, Error> {
    let listener = TcpListener::bind(address).await;
    let bound = listener.and_then(|listener| Ok((listener.local_addr()?, listener)));
    match bound {
        Ok((address, listener)) => Ok((listener, address)),
        Err(source) if source.kind() == io::ErrorKind::AddrInUse => {
            Err(Error::PortInUse { what, address, option })
        }
        Err(source) => Err(Error::Bind { what, address, option, source }),
    }
}

fn split((listener, address): Bound) -> (Option<TcpListener>, Option<SocketAddr>) {
    (Some(listener), Some(address))
}

async fn stopped(mut stopping: watch::Receiver<bool>) {
    // An error means that the server is gone, which is a stop too.
    let _ = stopping.wait_for(|&stop| stop).await;
}

async fn serve_http(
    what: &'static str,
    listener: TcpListener,
    router: Router,
    stopping: watch::Receiver<bool>,
) -> Result<(), Error> {
    axum::serve(listener, router)
        .with_graceful_shutdown(stopped(stopping))
        .await
        .map_err(|source| Error::Serve { what, source: source.into() })
}

async fn serve_grpc(
    listener: TcpListener,
    intake: Intake,
    stopping: watch::Receiver<bool>,
) -> Result<(), Error> {
    tonic::transport::Server::builder()
        .add_routes(otlp::grpc::service(intake))
        .serve_with_incoming_shutdown(TcpIncoming::from(listener), stopped(stopping))
        .await
        .map_err(|source| Error::Serve { what: OTLP_GRPC, source: source.into() })
}

/// Listeners serve for ever, so the first to end is a failure.
async fn first_to_end(listeners: &mut JoinSet<Result<(), Error>>) -> Error {
    let source = match listeners.join_next().await {
        Some(Ok(Err(error))) => return error,
        Some(Err(error)) => error.into(),
        Some(Ok(Ok(()))) | None => "it ended by itself".into(),
    };
    Error::Serve { what: "a listener", source }
}

/// Waits for open connections, then cuts them off: a silent peer must not keep the server alive.
async fn end(mut listeners: JoinSet<Result<(), Error>>) {
    let all = async { while listeners.join_next().await.is_some() {} };
    if tokio::time::timeout(CONNECTION_GRACE, all).await.is_err() {
        listeners.shutdown().await;
    }
}
