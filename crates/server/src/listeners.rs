//! The ports, taken before anything else is begun: also before root is given up, for those below 1024.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};

use crate::{Config, Error};

pub(crate) const API: &str = "API";
pub(crate) const OTLP_GRPC: &str = "OTLP over gRPC";
pub(crate) const OTLP_HTTP: &str = "OTLP over HTTP";

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

/// Ports on which nobody answers yet. Whoever connects waits.
#[derive(Debug)]
pub struct Listeners {
    pub(crate) api: Bound,
    pub(crate) otlp_grpc: Option<Bound>,
    pub(crate) otlp_http: Option<Bound>,
}

/// A listener, and the address it got.
pub(crate) type Bound = (TcpListener, SocketAddr);

impl Listeners {
    /// Takes every port, or none. Needs no runtime.
    ///
    /// # Errors
    ///
    /// [`Error::PortInUse`], [`Error::Privileged`] or [`Error::Bind`]; all name the address and the
    /// option to change it.
    pub fn bind(config: &Config) -> Result<Self, Error> {
        let optional = |what, option, address: Option<SocketAddr>| {
            address.map(|address| bind(what, option, address)).transpose()
        };
        Ok(Listeners {
            api: bind(API, "--api", config.api)?,
            otlp_grpc: optional(OTLP_GRPC, "--otlp-grpc", config.otlp_grpc)?,
            otlp_http: optional(OTLP_HTTP, "--otlp-http", config.otlp_http)?,
        })
    }

    /// Where they are.
    pub fn addresses(&self) -> Addresses {
        let address = |bound: &Option<Bound>| bound.as_ref().map(|bound| bound.1);
        Addresses {
            api: self.api.1,
            otlp_grpc: address(&self.otlp_grpc),
            otlp_http: address(&self.otlp_http),
        }
    }
}

fn bind(what: &'static str, option: &'static str, address: SocketAddr) -> Result<Bound, Error> {
    let bound = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok((listener.local_addr()?, listener))
    });
    let error = |source: io::Error| match source.kind() {
        ErrorKind::AddrInUse => Error::PortInUse { what, address, option },
        ErrorKind::PermissionDenied => Error::Privileged { what, address, option },
        _ => Error::Bind { what, address, option, source },
    };
    bound.map(|(address, listener)| (listener, address)).map_err(error)
}
