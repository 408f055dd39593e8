//! `/metrics` over HTTP.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;

use crate::{Family, Format, encode_protobuf, encode_text, negotiate};

/// Says what there is now. Called at each scrape, and must not block.
pub type Source = Arc<dyn Fn() -> Vec<Family> + Send + Sync>;

/// An open connection gets so long to end when serving does.
const GRACE: Duration = Duration::from_secs(1);

/// An answer, in the format that the request's headers ask for.
pub fn response(headers: &HeaderMap, families: &[Family]) -> impl IntoResponse + use<> {
    let accept = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let accept = accept.collect::<Vec<_>>().join(",");
    let format = negotiate(Some(&accept));
    let body = match format {
        Format::Text => encode_text(families).into_bytes(),
        Format::Protobuf => encode_protobuf(families),
    };
    ([(CONTENT_TYPE, format.content_type())], body)
}

/// Answers at `/metrics` until `shutdown` completes.
///
/// # Errors
/// If the listener fails.
pub async fn serve(
    listener: TcpListener,
    source: Source,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let router = Router::new().route("/metrics", get(metrics)).with_state(source);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let shutdown = async move {
        shutdown.await;
        drop(stop);
    };
    let serving = axum::serve(listener, router).with_graceful_shutdown(shutdown).into_future();
    tokio::select! {
        done = serving => done,
        // A silent peer must not keep us.
        () = async { let _ = stopped.await; tokio::time::sleep(GRACE).await } => Ok(()),
    }
}

async fn metrics(State(source): State<Source>, headers: HeaderMap) -> impl IntoResponse {
    response(&headers, &source())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;
    use crate::Kind;

    async fn ask(address: std::net::SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[tokio::test]
    async fn it_answers_in_both_formats_and_ends_although_a_peer_is_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let source: Source = Arc::new(|| vec![Family::single(Kind::Gauge, "up", "Up.", 1.0)]);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let served = tokio::spawn(serve(listener, source, async move {
            let _ = stopped.await;
        }));
        let text = ask(address, "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let text = text.await;
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        assert!(text.contains("text/plain; version=0.0.4"), "{text}");
        assert!(text.ends_with("# TYPE up gauge\nup 1\n"), "{text}");
        let request = format!(
            "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\naccept: {}\r\n\r\n",
            Format::Protobuf.content_type()
        );
        let answer = ask(address, &request).await;
        assert!(answer.contains("proto=io.prometheus.client.MetricFamily"), "{answer}");
        let other = ask(address, "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(other.starts_with("HTTP/1.1 404"), "{other}");

        let _silent = TcpStream::connect(address).await.unwrap();
        drop(stop);
        let ended = tokio::time::timeout(Duration::from_secs(5), served).await;
        ended.expect("it ends").unwrap().unwrap();
    }
}
