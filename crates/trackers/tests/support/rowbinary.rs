//! Reads batches back the way ClickHouse would: by the types in `table.sql`, not by what the
//! decoder believes that it wrote.

use std::collections::BTreeMap;

use underspan_store::Batch;

use super::super::api::Rows;
use super::sql;

/// One value. Times are nanoseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Number(i128),
    Text(String),
    Numbers(Vec<i128>),
    Null,
}

/// One row, by column name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) table: String,
    values: BTreeMap<String, Value>,
}

impl Row {
    /// A number of any width, or a time.
    #[track_caller]
    pub(crate) fn number(&self, column: &str) -> i128 {
        match self.value(column) {
            Value::Number(number) => *number,
            other => panic!("{}.{column} is no number: {other:?}", self.table),
        }
    }

    /// A number that is not negative.
    #[track_caller]
    pub(crate) fn u64(&self, column: &str) -> u64 {
        u64::try_from(self.number(column)).expect("a number that is not negative")
    }

    /// A number that may not be known.
    #[track_caller]
    pub(crate) fn nullable(&self, column: &str) -> Option<u64> {
        match self.value(column) {
            Value::Null => None,
            _ => Some(self.u64(column)),
        }
    }

    #[track_caller]
    pub(crate) fn text(&self, column: &str) -> &str {
        match self.value(column) {
            Value::Text(text) => text,
            other => panic!("{}.{column} is no text: {other:?}", self.table),
        }
    }

    /// An array of numbers.
    #[track_caller]
    pub(crate) fn numbers(&self, column: &str) -> &[i128] {
        match self.value(column) {
            Value::Numbers(numbers) => numbers,
            other => panic!("{}.{column} is no array: {other:?}", self.table),
        }
    }

    /// The sum of the columns of a ledger.
    pub(crate) fn ledger_total(&self) -> u128 {
        let cells = underspan_model::State::ALL
            .map(|state| u128::from(self.u64(&underspan_model::column(state))));
        cells.into_iter().sum()
    }

    /// The columns in which two rows of a table differ, by name.
    pub(crate) fn differences(&self, other: &Row) -> Vec<&str> {
        assert_eq!(self.table, other.table);
        let differs = |name: &&String| self.values.get(*name) != other.values.get(*name);
        self.values.keys().filter(differs).map(String::as_str).collect()
    }

    #[track_caller]
    fn value(&self, column: &str) -> &Value {
        self.values.get(column).unwrap_or_else(|| panic!("{} has no {column}", self.table))
    }
}

/// Takes what was written and reads it back. Fails if a batch's columns are not its table's, or if
/// its bytes are not exactly its rows.
#[track_caller]
pub(crate) fn decode(rows: &mut Rows) -> Vec<Row> {
    let tables = sql::tables();
    let mut decoded = Vec::new();
    for batch in rows.take() {
        let table = tables.get(&batch.table).expect("rows of a table that table.sql creates");
        let names: Vec<_> = table.columns.iter().map(|column| column.name.clone()).collect();
        assert_eq!(batch.columns, names, "columns of {}", batch.table);
        decoded.extend(batch_rows(&batch, &table.columns));
    }
    decoded
}

fn batch_rows(batch: &Batch, columns: &[sql::Column]) -> Vec<Row> {
    let mut bytes = batch.bytes.as_slice();
    let rows = (0..batch.rows)
        .map(|_| {
            let values = columns
                .iter()
                .map(|column| (column.name.clone(), value(&mut bytes, &column.kind)))
                .collect();
            Row { table: batch.table.clone(), values }
        })
        .collect();
    assert!(bytes.is_empty(), "{} bytes too many in {}", bytes.len(), batch.table);
    rows
}

fn value(bytes: &mut &[u8], kind: &str) -> Value {
    let number = match kind {
        "String" | "LowCardinality(String)" => return Value::Text(text(bytes)),
        "Array(UInt64)" => {
            let items = (0..length(bytes)).map(|_| u64::from_le_bytes(take(bytes)).into());
            return Value::Numbers(items.collect());
        }
        "UInt8" => u8::from_le_bytes(take(bytes)).into(),
        "UInt16" => u16::from_le_bytes(take(bytes)).into(),
        "UInt32" => u32::from_le_bytes(take(bytes)).into(),
        "UInt64" => u64::from_le_bytes(take(bytes)).into(),
        "Nullable(UInt64)" => match u8::from_le_bytes(take(bytes)) {
            0 => u64::from_le_bytes(take(bytes)).into(),
            null => {
                assert_eq!(null, 1, "a nullable begins with 0 or 1");
                return Value::Null;
            }
        },
        "Int8" => i8::from_le_bytes(take(bytes)).into(),
        "Int32" => i32::from_le_bytes(take(bytes)).into(),
        "Int64" | "DateTime64(9, 'UTC')" => i64::from_le_bytes(take(bytes)).into(),
        _ => panic!("a column of type {kind}"),
    };
    Value::Number(number)
}

fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let (taken, rest) = bytes.split_first_chunk().expect("a row that is whole");
    *bytes = rest;
    *taken
}

fn length(bytes: &mut &[u8]) -> usize {
    let mut len = 0;
    for shift in (0..).step_by(7) {
        let [byte] = take(bytes);
        len |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    len
}

fn text(bytes: &mut &[u8]) -> String {
    let len = length(bytes);
    let (text, rest) = bytes.split_at_checked(len).expect("a string that is whole");
    *bytes = rest;
    String::from_utf8(text.to_vec()).expect("text is UTF-8")
}
