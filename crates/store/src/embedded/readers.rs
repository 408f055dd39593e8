//! Learning that somebody is about to read the embedded store.
//!
//! Who reads waits for a moment until its writers have written what they held back; the protocol is in
//! `python/underspan/store/README.md`.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use tokio::time::timeout;

use crate::Endpoint;

/// The host answers within 20 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// When a store that does not say whether somebody reads is tried again.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// Its answer is much shorter.
const ANSWER_BYTES: usize = 1 << 10;

/// Why it is not known whether somebody reads.
#[derive(Debug, thiserror::Error)]
pub enum ReadersError {
    /// A host of another version: it tells nobody.
    #[error("this store does not tell its writers when somebody reads")]
    Untold,
    /// It is away, or it said something else.
    #[error("the store does not say whether somebody reads: {0}")]
    NoAnswer(String),
}

/// Holds rows back, so that inserts are few and large.
pub trait Holds: Send + 'static {
    /// Whether those who read the store have this asked for rows first. Then rows may wait longer.
    fn will_be_asked(&self, will_be: bool);

    /// Returns once all that came until now is in the store, or cannot be for now.
    fn flush(&mut self) -> impl Future<Output = ()> + Send;
}

/// Those who read an embedded store, for one that writes to it.
pub struct Readers {
    endpoint: Endpoint,
    client: Client<HttpConnector, Empty<Bytes>>,
    writer: String,
    /// Up to which question everything is written.
    written: u64,
}

#[derive(Deserialize)]
struct Answer {
    asked: u64,
}

impl Readers {
    pub(super) fn new(endpoint: Endpoint, writer: String) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Readers { endpoint, client, writer, written: 0 }
    }

    /// Has everything written whenever somebody reads. Never returns.
    pub async fn ask_first(mut self, mut holds: impl Holds) {
        loop {
            let asked = self.next().await;
            // Else rows go on sooner by themselves.
            holds.will_be_asked(asked.is_ok());
            match asked {
                Ok(()) => holds.flush().await,
                Err(error) => {
                    tracing::debug!("{error}");
                    tokio::time::sleep(ASK_AGAIN).await;
                }
            }
        }
    }

    /// Says that everything is written that was held back when this last returned, and waits until somebody
    /// reads again. The first time, and after an error, it returns at once.
    ///
    /// # Errors
    ///
    /// [`ReadersError`]: nobody who reads waits for this writer now. It may be tried again later.
    pub async fn next(&mut self) -> Result<(), ReadersError> {
        let before = std::mem::take(&mut self.written);
        let mut asked = before;
        while asked == before {
            asked = match timeout(ANSWER_TIMEOUT, self.ask(before)).await {
                Ok(answer) => answer?,
                Err(_) => {
                    let late = format!("nothing within {ANSWER_TIMEOUT:?}");
                    return Err(ReadersError::NoAnswer(late));
                }
            };
        }
        self.written = asked;
        Ok(())
    }

    async fn ask(&self, written: u64) -> Result<u64, ReadersError> {
        let no_answer = |error: &dyn std::fmt::Display| ReadersError::NoAnswer(error.to_string());
        let Endpoint { url, password, .. } = &self.endpoint;
        let request =
            Request::get(format!("{url}/underspan/asked?writer={}&written={written}", self.writer))
                .header("X-ClickHouse-Key", password)
                .body(Empty::new())
                .map_err(|error| no_answer(&error))?;
        let answer = self.client.request(request).await.map_err(|error| no_answer(&error))?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Err(ReadersError::Untold),
            status => return Err(no_answer(&status)),
        }
        let body = Limited::new(answer.into_body(), ANSWER_BYTES);
        let body = body.collect().await.map_err(|error| no_answer(&error))?.to_bytes();
        let answer: Answer = serde_json::from_slice(&body).map_err(|error| no_answer(&error))?;
        Ok(answer.asked)
    }
}
