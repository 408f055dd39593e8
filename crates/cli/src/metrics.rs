//! The agent's `/metrics`.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use tokio::task::JoinHandle;
use underspan_agent::Metrics;

use crate::failure::Failure;
use crate::watch::progress;

/// A port that was taken and does not answer yet.
#[derive(Debug)]
pub(crate) struct Endpoint {
    listener: TcpListener,
    address: SocketAddr,
    metrics: Metrics,
}

impl Endpoint {
    /// Takes the port, if one was asked for: before anything else is begun.
    pub(crate) fn bind(address: Option<SocketAddr>) -> anyhow::Result<Option<Self>> {
        let Some(address) = address else { return Ok(None) };
        let bound = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok(Endpoint { listener, address, metrics: Metrics::default() })
        });
        let endpoint = bound.map_err(|error| {
            Failure::new(format!("cannot serve metrics at {address}: {error}"))
                .hint("name another address with --metrics HOST:PORT; port 0 takes a free one")
        })?;
        Ok(Some(endpoint))
    }

    /// Where the agent is to count.
    pub(crate) fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Answers until this is dropped. Must be called on a runtime.
    pub(crate) fn serve(self) -> anyhow::Result<Serving> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let metrics = self.metrics;
        let source: underspan_metrics::Source = Arc::new(move || metrics.families());
        progress(&format!("metrics at http://{}/metrics", self.address));
        Ok(Serving(tokio::spawn(async move {
            // It ends with this process.
            let ended = underspan_metrics::serve(listener, source, std::future::pending()).await;
            if let Err(error) = ended {
                tracing::warn!("metrics are not served any more: {error}");
            }
        })))
    }
}

/// Ends the serving when it is dropped.
#[derive(Debug)]
pub(crate) struct Serving(JoinHandle<()>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}
