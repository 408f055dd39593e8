//! What can go wrong with the server as a whole.

use std::io;
use std::net::SocketAddr;

/// Why the server could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another program has the port.
    #[error(
        "port {} ({what}) is in use; end the program that listens on {address}, or choose another \
         port with {option} HOST:PORT",
        address.port()
    )]
    PortInUse {
        /// What would have listened there.
        what: &'static str,
        /// The address.
        address: SocketAddr,
        /// The option that changes it.
        option: &'static str,
    },
    /// Only root may listen there.
    #[error(
        "port {} ({what}) is one that only root may listen on: run as root, or choose a port from \
         1024 on with {option} HOST:PORT",
        address.port()
    )]
    Privileged {
        /// What would have listened there.
        what: &'static str,
        /// The address.
        address: SocketAddr,
        /// The option that changes it.
        option: &'static str,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address} ({what}); choose another address with {option} HOST:PORT")]
    Bind {
        /// What would have listened there.
        what: &'static str,
        /// The address.
        address: SocketAddr,
        /// The option that changes it.
        option: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A listener failed while the server ran.
    #[error("{what} stopped")]
    Serve {
        /// What listened.
        what: &'static str,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
