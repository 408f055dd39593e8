//! Where the server listens.

use std::net::{Ipv4Addr, SocketAddr};

/// Addresses to listen on. The default is loopback with the usual ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// API and `/metrics`. Port 0 picks a free one, here and below.
    pub api: SocketAddr,
    /// OTLP over gRPC; `None` turns it off.
    pub otlp_grpc: Option<SocketAddr>,
    /// OTLP over HTTP; `None` turns it off.
    pub otlp_http: Option<SocketAddr>,
}

impl Default for Config {
    fn default() -> Self {
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Config {
            api: loopback(7077),
            otlp_grpc: Some(loopback(4317)),
            otlp_http: Some(loopback(4318)),
        }
    }
}
