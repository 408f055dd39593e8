//! The server's life: bind everything, serve until told to stop, then flush.

use std::future::Future;
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

use crate::listeners::{API, Addresses, Listeners, OTLP_GRPC, OTLP_HTTP};
use crate::spans::counters::Counters;
use crate::spans::intake::Intake;
use crate::spans::queue::{Flusher, Limits, Queue};
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

/// A server that has its ports and does not serve yet.
pub struct Server<S> {
    api: TcpListener,
    otlp_grpc: Option<TcpListener>,
    otlp_http: Option<TcpListener>,
    sink: Arc<S>,
    api_router: Router,
    addresses: Addresses,
    queue: Arc<Queue>,
    ttl_days: u32,
    hurry: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<S: SpanSink> Server<S> {
    /// Takes every port, or none.
    ///
    /// # Errors
    ///
    /// Those of [`Listeners::bind`].
    pub async fn bind(config: &Config, sink: S) -> Result<Self, Error> {
        Server::on(Listeners::bind(config)?, config, sink)
    }

    /// A server with ports that were taken before. Needs a Tokio runtime.
    ///
    /// # Errors
    ///
    /// [`Error::Serve`] if the runtime cannot watch them.
    pub fn on(listeners: Listeners, config: &Config, sink: S) -> Result<Self, Error> {
        let addresses = listeners.addresses();
        let watched = |what: &'static str, listener: std::net::TcpListener| {
            TcpListener::from_std(listener)
                .map_err(|source| Error::Serve { what, source: source.into() })
        };
        let Listeners { api, otlp_grpc, otlp_http } = listeners;
        Ok(Server {
            api: watched(API, api.0)?,
            otlp_grpc: otlp_grpc.map(|bound| watched(OTLP_GRPC, bound.0)).transpose()?,
            otlp_http: otlp_http.map(|bound| watched(OTLP_HTTP, bound.0)).transpose()?,
            addresses,
            sink: Arc::new(sink),
            api_router: Router::new(),
            queue: Arc::new(Queue::new(Limits {
                max_spans: config.max_queued_spans,
                ..Limits::default()
            })),
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

    /// For whoever reads the store: has queued spans written first.
    pub fn flusher(&self) -> Flusher {
        Flusher::new(Arc::clone(&self.queue))
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
        let queue = self.queue;
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
