//! The client: checks, inserts and queries.

use std::time::Duration;

use bytes::Bytes;
use clickhouse::Client;
use tokio::time::timeout;

use crate::{Batch, Endpoint, Error, transport};

/// The oldest ClickHouse that understands Underspan's statements: year and month of its release.
pub const MINIMUM_VERSION: (u32, u32) = (24, 3);

/// How long a check may take.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one piece of an insert may take to be sent, and the store to answer once all is sent.
const SEND_TIMEOUT: Duration = Duration::from_secs(20);
const INSERT_TIMEOUT: Duration = Duration::from_secs(60);
/// A batch is sent, and compressed, in pieces of this size.
const PIECE: usize = 1 << 20;

/// A ClickHouse store. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Store {
    endpoint: Endpoint,
    client: Client,
    /// The same with no current database: the endpoint's may not exist yet.
    no_database: Client,
}

impl Store {
    /// A store at an endpoint. Nothing is sent yet: see [`Store::check`].
    pub fn connect(endpoint: Endpoint) -> Store {
        let no_database = transport::client(&endpoint)
            .with_url(&endpoint.url)
            .with_user(&endpoint.user)
            .with_password(&endpoint.password)
            .with_product_info("underspan", env!("CARGO_PKG_VERSION"));
        let client = no_database.clone().with_database(&endpoint.database);
        Store { endpoint, client, no_database }
    }

    /// Where it is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The official client, for typed queries.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Whether the store answers, lets us in and is new enough. Returns its version.
    ///
    /// # Errors
    ///
    /// One variant for each of those: [`Error::Unreachable`], [`Error::TimedOut`],
    /// [`Error::Unauthorised`], [`Error::NotClickHouse`], [`Error::TooOld`].
    pub async fn check(&self) -> Result<String, Error> {
        // The database may not exist before the first migration.
        let version = self.without_database().query("SELECT version()").fetch_one::<String>();
        let version = match timeout(CHECK_TIMEOUT, version).await {
            Ok(version) => version.map_err(|error| self.not_clickhouse(error))?,
            Err(_) => return Err(self.timed_out(CHECK_TIMEOUT)),
        };
        match parse_version(&version) {
            Some(found) if found >= MINIMUM_VERSION => Ok(version),
            Some(_) => Err(Error::TooOld { url: self.endpoint.url.clone(), found: version }),
            None => Err(Error::NotClickHouse {
                url: self.endpoint.url.clone(),
                reason: format!("version '{version}'"),
            }),
        }
    }

    /// Inserts a batch. It is stored when this returns `Ok`.
    ///
    /// # Errors
    ///
    /// After an error for which [`Error::is_retryable`] holds, the same batch may be sent again. It
    /// may then be stored twice, if the answer was lost and not the batch. After any other error it
    /// will never be taken.
    pub async fn insert(&self, batch: &Batch) -> Result<(), Error> {
        if batch.is_empty() {
            return Ok(());
        }
        let client = self
            .client
            .clone()
            // The embedded store compares this with what it wrote; ClickHouse ignores it.
            .with_header("X-Underspan-Rows", batch.rows.to_string())
            // On a cluster: answer when the shard has the rows, not when they are on their way.
            .with_setting("distributed_foreground_insert", "1");
        let mut insert = client
            .insert_formatted_with(insert_statement(batch))
            .with_timeouts(Some(SEND_TIMEOUT), Some(INSERT_TIMEOUT));
        for piece in batch.bytes.chunks(PIECE) {
            let sent = insert.send(Bytes::copy_from_slice(piece)).await;
            sent.map_err(|error| self.explain(error))?;
        }
        insert.end().await.map_err(|error| self.explain(error))
    }

    /// Runs a statement and returns its result in any of ClickHouse's formats.
    ///
    /// # Errors
    ///
    /// Those of [`Store::check`], and [`Error::Refused`] or [`Error::Schema`] for a wrong statement.
    pub async fn query_raw(&self, sql: &str, format: &str) -> Result<Bytes, Error> {
        let mut cursor =
            self.client.query_raw(sql).fetch_bytes(format).map_err(|error| self.explain(error))?;
        cursor.collect().await.map_err(|error| self.explain(error))
    }

    /// Says what an error of the official client means. For whoever uses [`Store::client`].
    pub fn explain(&self, error: clickhouse::error::Error) -> Error {
        match Error::of_client(error, &self.endpoint.url, &self.endpoint.user) {
            Error::TimedOut { .. } => self.timed_out(INSERT_TIMEOUT),
            error => error,
        }
    }

    /// Runs a statement without a result.
    pub(crate) async fn execute(&self, sql: &str) -> Result<(), Error> {
        self.client.query_raw(sql).execute().await.map_err(|error| self.explain(error))
    }

    /// The client with no current database.
    pub(crate) fn without_database(&self) -> &Client {
        &self.no_database
    }

    /// An answer that cannot be read at all is not from ClickHouse.
    fn not_clickhouse(&self, error: clickhouse::error::Error) -> Error {
        match self.explain(error) {
            Error::Refused { code: 0, reason } => {
                Error::NotClickHouse { url: self.endpoint.url.clone(), reason }
            }
            error => error,
        }
    }

    fn timed_out(&self, after: Duration) -> Error {
        Error::TimedOut { url: self.endpoint.url.clone(), after }
    }
}

fn insert_statement(batch: &Batch) -> String {
    let columns: Vec<_> = batch.columns.iter().map(|column| quoted(column)).collect();
    format!("INSERT INTO {} ({}) FORMAT RowBinary", quoted(&batch.table), columns.join(", "))
}

/// An identifier in backquotes.
pub(crate) fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('\\', "\\\\").replace('`', "\\`"))
}

/// Year and month of a version such as `24.8.4.13`.
fn parse_version(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_insert_names_its_columns() {
        let batch = Batch::new("otel_traces", &["Timestamp", "Events.Name", "a`b"]);
        assert_eq!(
            insert_statement(&batch),
            "INSERT INTO `otel_traces` (`Timestamp`, `Events.Name`, `a\\`b`) FORMAT RowBinary"
        );
    }

    #[test]
    fn versions_compare_by_year_and_month() {
        assert_eq!(parse_version("26.5.1.1"), Some((26, 5)));
        assert!(parse_version("24.12.1.1").unwrap() > MINIMUM_VERSION);
        assert!(parse_version("23.12.9.9").unwrap() < MINIMUM_VERSION);
        assert_eq!(parse_version("PostgreSQL 15"), None);
    }
}
