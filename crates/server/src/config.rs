//! Where the server listens, and how much it keeps in memory.

use std::net::{Ipv4Addr, SocketAddr};

/// The server's settings. The default is loopback with the usual ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// API and `/metrics`. Port 0 picks a free one, here and below.
    pub api: SocketAddr,
    /// OTLP over gRPC; `None` turns it off.
    pub otlp_grpc: Option<SocketAddr>,
    /// OTLP over HTTP; `None` turns it off.
    pub otlp_http: Option<SocketAddr>,
    /// Spans that may wait for the store. Senders of more are asked to come back.
    pub max_queued_spans: u64,
    /// For how many days the store keeps spans. Older ones are refused: it would drop them silently.
    pub ttl_days: u32,
}

impl Default for Config {
    fn default() -> Self {
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Config {
            api: loopback(7077),
            otlp_grpc: Some(loopback(4317)),
            otlp_http: Some(loopback(4318)),
            max_queued_spans: 100_000,
            ttl_days: 7,
        }
    }
}
