//! A running server, and requests for it.

// Each test file uses its own part of this.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use underspan_server::{Addresses, Config, Error, Server, SpanSink};

/// A server on free ports of the loopback.
pub struct Running {
    pub addresses: Addresses,
    pub stop: oneshot::Sender<()>,
    pub server: JoinHandle<Result<(), Error>>,
}

/// Any free port.
pub fn free() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

pub fn config() -> Config {
    Config { api: free(), otlp_grpc: Some(free()), otlp_http: Some(free()), ..Config::default() }
}

impl Running {
    pub async fn start(config: Config, sink: impl SpanSink) -> Self {
        Running::serve(Server::bind(&config, sink).await.unwrap())
    }

    pub fn serve(server: Server<impl SpanSink>) -> Self {
        let addresses = server.addresses();
        let (stop, stopped) = oneshot::channel();
        let server = tokio::spawn(server.serve(async {
            let _ = stopped.await;
        }));
        Running { addresses, stop, server }
    }

    pub async fn stop(self) {
        self.stop.send(()).unwrap();
        let end = tokio::time::timeout(Duration::from_secs(20), self.server);
        end.await.expect("the server hangs").unwrap().unwrap();
    }

    pub fn traces_url(&self) -> String {
        format!("http://{}/v1/traces", self.addresses.otlp_http.unwrap())
    }

    pub fn grpc_url(&self) -> String {
        format!("http://{}", self.addresses.otlp_grpc.unwrap())
    }

    /// One of the server's own counters.
    pub async fn metric(&self, name: &str) -> u64 {
        let url = format!("http://{}/metrics", self.addresses.api);
        let text = reqwest::get(url).await.unwrap().text().await.unwrap();
        let line =
            text.lines().find(|line| line.strip_prefix(name).is_some_and(|l| l.starts_with(' ')));
        let value = line.unwrap_or_else(|| panic!("no {name} in\n{text}")).rsplit(' ').next();
        value.unwrap().parse().unwrap()
    }

    /// Waits until a counter has a value.
    pub async fn wait_for(&self, name: &str, value: u64) {
        for _ in 0..100 {
            if self.metric(name).await == value {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{name} is {}, not {value}", self.metric(name).await);
    }
}

/// A request with so many spans of 100 ns, as of now.
pub fn request(spans: usize) -> ExportTraceServiceRequest {
    let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let span = |index: usize| Span {
        trace_id: vec![1; 16],
        span_id: (index as u64 + 1).to_be_bytes().to_vec(),
        name: "work".to_owned(),
        start_time_unix_nano: start,
        end_time_unix_nano: start + 100,
        ..Default::default()
    };
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            scope_spans: vec![ScopeSpans {
                spans: (0..spans).map(span).collect(),
                ..Default::default()
            }],
            ..Default::default()
        }],
    }
}
