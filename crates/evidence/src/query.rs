//! Sending a query and reading its rows.

use clickhouse::query::Query;
use serde::Serialize;
use serde::de::DeserializeOwned;
use underspan_model::{ONGOING_AGAIN_NS, State, column};
use underspan_store::Store;

use crate::Error;

/// `start_time` as the model has it. The table must be called `t`, and conditions must use
/// `t.start_time`: the bare name means this number, for which there is no index.
pub(crate) const START: &str =
    "toUInt64(greatest(0, toUnixTimestamp64Nano(t.start_time))) AS start_time";

/// What began earlier than this and is not over is not looked for: a day, in nanoseconds.
pub(crate) const OLDEST_NS: u64 = 86_400_000_000_000;
/// Whatever goes on has a row that was made within this time, in nanoseconds: it has to be read and sent, too.
pub(crate) const TOLD_WITHIN_NS: u64 = ONGOING_AGAIN_NS + 60_000_000_000;

/// A query with named parameters, as `{name:Type}` in its text.
pub(crate) struct Select<'a> {
    store: &'a Store,
    table: &'static str,
    query: Query,
}

impl<'a> Select<'a> {
    pub(crate) fn new(store: &'a Store, table: &'static str, sql: &str) -> Self {
        let query = store.client().query_raw(sql);
        // Older servers put 64-bit numbers in quotes unless told otherwise.
        let query = query.with_setting("output_format_json_quote_64bit_integers", "0");
        Select { store, table, query }
    }

    pub(crate) fn param(mut self, name: &str, value: impl Serialize) -> Self {
        self.query = self.query.param(name, value);
        self
    }

    /// An instant, for `fromUnixTimestamp64Nano({name:Int64})`.
    pub(crate) fn time(self, name: &str, unix_ns: u64) -> Self {
        self.param(name, i64::try_from(unix_ns).unwrap_or(i64::MAX))
    }

    pub(crate) async fn rows<T: DeserializeOwned>(self) -> Result<Vec<T>, Error> {
        let failed = |error| Error::Store(self.store.explain(error));
        let mut cursor = self.query.fetch_bytes("JSONEachRow").map_err(failed)?;
        let bytes = cursor.collect().await.map_err(failed)?;
        let lines = bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        lines
            .map(serde_json::from_slice)
            .collect::<Result<_, _>>()
            .map_err(|source| Error::Row { table: self.table, source })
    }
}

/// The ledger's columns, separated by commas.
pub(crate) fn ledger_columns() -> String {
    State::ALL.map(column).join(", ")
}
