//! The HTTP connections under the client: plain or TLS, with a limit on how long connecting takes.

use std::time::Duration;

use clickhouse::Client;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};

use crate::Endpoint;

/// A host that does not answer at all is noticed after this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TCP_KEEPALIVE: Duration = Duration::from_secs(60);
/// Shorter than ClickHouse keeps an idle connection: 3 s by default.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// The official client on connections of our own.
pub(crate) fn client(endpoint: &Endpoint) -> Client {
    let mut tcp = HttpConnector::new();
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(TCP_KEEPALIVE));
    tcp.set_nodelay(true);
    let mut builder = legacy::Client::builder(TokioExecutor::new());
    builder.pool_idle_timeout(IDLE_TIMEOUT);
    if !endpoint.url.starts_with("https:") {
        return Client::with_http_client(builder.build(tcp));
    }
    match tls() {
        Ok(tls) => {
            tcp.enforce_http(false);
            let connector = HttpsConnectorBuilder::new()
                .with_tls_config(tls)
                .https_only()
                .enable_http1()
                .wrap_connector(tcp);
            Client::with_http_client(builder.build(connector))
        }
        Err(error) => {
            // The plain connector refuses the URL, so nothing is sent in the clear.
            tracing::error!(%error, "no TLS");
            Client::with_http_client(builder.build(tcp))
        }
    }
}

/// TLS that trusts what this machine trusts, or what `SSL_CERT_FILE` names.
fn tls() -> Result<ClientConfig, rustls::Error> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "cannot read some of the machine's trusted certificates");
    }
    let mut roots = RootCertStore::empty();
    let (trusted, _) = roots.add_parsable_certificates(found.certs);
    if trusted == 0 {
        tracing::warn!(
            "no trusted certificates here: install ca-certificates or set SSL_CERT_FILE"
        );
    }
    let config = ClientConfig::builder_with_provider(ring::default_provider().into());
    let config = config.with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
