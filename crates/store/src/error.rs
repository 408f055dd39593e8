//! What can go wrong with a store, and what to do about it.

use std::time::Duration;

use crate::MINIMUM_VERSION;
use crate::endpoint::STORE_VARIABLE;

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text names no store.
    #[error(
        "the store's URL '{url}' cannot be used: {reason}; \
         write it as http://user:password@host:8123/database"
    )]
    BadUrl {
        /// The URL, without its password.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Nothing answers there.
    #[error(
        "the store at {url} cannot be reached: {reason}; start it, or name another one with \
         --store URL or {STORE_VARIABLE}"
    )]
    Unreachable {
        /// The endpoint's URL.
        url: String,
        /// What the network said.
        reason: String,
    },
    /// It answers too slowly.
    #[error("the store at {url} did not answer within {after:?}; it is overloaded or stuck")]
    TimedOut {
        /// The endpoint's URL.
        url: String,
        /// How long was waited.
        after: Duration,
    },
    /// It wants another user or password.
    #[error(
        "the store at {url} refused user '{user}': {reason}; put the right ones into its URL, as \
         http://user:password@host:8123/database"
    )]
    Unauthorised {
        /// The endpoint's URL.
        url: String,
        /// The user.
        user: String,
        /// What the store said.
        reason: String,
    },
    /// Something else answers there.
    #[error("what answers at {url} is not ClickHouse's HTTP interface ({reason}); check the port")]
    NotClickHouse {
        /// The endpoint's URL.
        url: String,
        /// What came back.
        reason: String,
    },
    /// It is older than what Underspan's statements need.
    #[error(
        "the store at {url} is ClickHouse {found}; Underspan needs {}.{} or newer: upgrade it",
        MINIMUM_VERSION.0, MINIMUM_VERSION.1
    )]
    TooOld {
        /// The endpoint's URL.
        url: String,
        /// The version it gave.
        found: String,
    },
    /// It cannot take this now.
    #[error("the store at {url} cannot take this now, try again later: {reason}")]
    Busy {
        /// The endpoint's URL.
        url: String,
        /// What the store said.
        reason: String,
    },
    /// A table, column or database is not there, or not what the statement expects.
    #[error(
        "the store's tables do not fit the statement: {reason}; if an older Underspan made them, \
         run `underspan server` once to migrate them"
    )]
    Schema {
        /// What the store said.
        reason: String,
    },
    /// The statement or its rows are wrong.
    #[error("the store refused the statement: {reason}")]
    Refused {
        /// ClickHouse's error code, 0 where it gave none.
        code: u32,
        /// What the store said.
        reason: String,
    },
    /// A newer Underspan made the tables.
    #[error(
        "the store's table set '{component}' is at version {found}, this Underspan knows up to \
         {known}: a newer one made it; upgrade this one"
    )]
    SchemaAhead {
        /// The component.
        component: String,
        /// The version in the store.
        found: u32,
        /// The newest version known here.
        known: u32,
    },
    /// A component's SQL text is not in the form migrations have. A defect of this program.
    #[error("the migrations of '{component}' are malformed: {reason}")]
    BadMigrations {
        /// The component.
        component: String,
        /// What is wrong with them.
        reason: String,
    },
}

/// Codes of ClickHouse that say who may come in.
const AUTHENTICATION: [u32; 4] = [
    192, // UNKNOWN_USER
    193, // WRONG_PASSWORD
    194, // REQUIRED_PASSWORD
    516, // AUTHENTICATION_FAILED
];
/// Codes that speak of databases, tables and columns.
const SCHEMA: [u32; 6] = [
    8,  // THERE_IS_NO_COLUMN
    10, // NOT_FOUND_COLUMN_IN_BLOCK
    16, // NO_SUCH_COLUMN_IN_TABLE
    20, // NUMBER_OF_COLUMNS_DOESNT_MATCH
    60, // UNKNOWN_TABLE
    81, // UNKNOWN_DATABASE
];
/// Codes of a store that is short of something, on its way down, or without its cluster.
const PASSING: [u32; 26] = [
    3,   // UNEXPECTED_END_OF_FILE: the body broke off
    75,  // CANNOT_WRITE_TO_FILE_DESCRIPTOR
    76,  // CANNOT_OPEN_FILE
    159, // TIMEOUT_EXCEEDED
    160, // TOO_SLOW
    198, // DNS_ERROR
    202, // TOO_MANY_SIMULTANEOUS_QUERIES
    203, // NO_FREE_CONNECTION
    209, // SOCKET_TIMEOUT
    210, // NETWORK_ERROR
    225, // NO_ZOOKEEPER
    236, // ABORTED
    241, // MEMORY_LIMIT_EXCEEDED
    242, // TABLE_IS_READ_ONLY: a replica that lost its keeper
    243, // NOT_ENOUGH_SPACE
    252, // TOO_MANY_PARTS
    279, // ALL_CONNECTION_TRIES_FAILED
    285, // TOO_FEW_LIVE_REPLICAS
    286, // UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE
    319, // UNKNOWN_STATUS_OF_INSERT
    341, // UNFINISHED: a statement ON CLUSTER
    394, // QUERY_WAS_CANCELLED
    425, // SYSTEM_ERROR
    439, // CANNOT_SCHEDULE_TASK
    499, // S3_ERROR
    999, // KEEPER_EXCEPTION
];

impl Error {
    /// Whether the same request may succeed later, unchanged. Rows behind such an error are kept.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Unreachable { .. }
            | Error::TimedOut { .. }
            | Error::Unauthorised { .. }
            | Error::NotClickHouse { .. }
            | Error::Busy { .. } => true,
            Error::BadUrl { .. }
            | Error::TooOld { .. }
            | Error::Schema { .. }
            | Error::Refused { .. }
            | Error::SchemaAhead { .. }
            | Error::BadMigrations { .. } => false,
        }
    }

    /// Sorts an error of the client by what it means for the caller.
    pub(crate) fn of_client(error: clickhouse::error::Error, url: &str, user: &str) -> Error {
        use clickhouse::error::Error as Client;
        let url = url.to_owned();
        match error {
            Client::Network(source) => {
                Error::Unreachable { url, reason: innermost(source.as_ref()) }
            }
            Client::TimedOut => Error::TimedOut { url, after: Duration::ZERO },
            Client::BadResponse(text) => Error::of_response(text, url, user),
            other => Error::Refused { code: 0, reason: other.to_string() },
        }
    }

    fn of_response(text: String, url: String, user: &str) -> Error {
        let reason = text.trim().to_owned();
        let Some(code) = code(&reason) else {
            // A proxy's answer in front of a store that is down, or something else altogether.
            return match reason.as_bytes() {
                [b'5', _, _, b' ', ..] => Error::Busy { url, reason },
                _ => Error::NotClickHouse { url, reason: first_line(&reason) },
            };
        };
        if AUTHENTICATION.contains(&code) {
            Error::Unauthorised { url, user: user.to_owned(), reason }
        } else if PASSING.contains(&code) {
            Error::Busy { url, reason }
        } else if SCHEMA.contains(&code) {
            Error::Schema { reason }
        } else {
            Error::Refused { code, reason }
        }
    }
}

/// The code in `Code: 60. DB::Exception: …`, or in the bare `Code: 60`.
fn code(reason: &str) -> Option<u32> {
    let digits = reason.strip_prefix("Code: ")?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// What lies at the bottom of an error: "connection refused" rather than "client error".
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(120).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Error {
        let error = clickhouse::error::Error::BadResponse(text.to_owned());
        Error::of_client(error, "http://ch:8123", "ann")
    }

    #[test]
    fn answers_are_sorted_by_what_they_mean() {
        assert!(matches!(of("Code: 516. DB::Exception: no"), Error::Unauthorised { .. }));
        assert!(matches!(of("Code: 60. DB::Exception: no table"), Error::Schema { .. }));
        assert!(matches!(of("Code: 252. DB::Exception: parts"), Error::Busy { .. }));
        assert!(matches!(of("502 Bad Gateway"), Error::Busy { .. }));
        assert!(matches!(of("<html>nginx</html>"), Error::NotClickHouse { .. }));
        assert!(matches!(of("Code: 62. DB::Exception: x"), Error::Refused { code: 62, .. }));
        assert!(matches!(of("Code: 241"), Error::Busy { .. }));
    }

    #[test]
    fn rows_are_kept_only_for_what_may_pass() {
        assert!(of("Code: 241. DB::Exception: memory").is_retryable());
        assert!(of("Code: 516. DB::Exception: no").is_retryable());
        assert!(!of("Code: 16. DB::Exception: no such column").is_retryable());
        assert!(!of("Code: 33. DB::Exception: cannot read all data").is_retryable());
    }
}
