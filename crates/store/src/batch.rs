//! Rows on their way to a table, already in ClickHouse's RowBinary format.
//!
//! A batch is bytes plus what is needed to insert them, so that whoever carries it (the sink, the
//! spool, an insert) needs to know nothing of the row's type.

/// Rows of one table in RowBinary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The table.
    pub table: String,
    /// The columns, in the order of the bytes.
    pub columns: Vec<String>,
    /// How many rows `bytes` holds.
    pub rows: u64,
    /// The rows.
    pub bytes: Vec<u8>,
}

impl Batch {
    /// An empty batch.
    pub fn new(table: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|column| (*column).to_owned()).collect();
        Batch { table: table.to_owned(), columns, rows: 0, bytes: Vec::new() }
    }

    /// Starts a row. The caller writes one value per column, in order.
    pub fn row(&mut self) -> RowWriter<'_> {
        self.rows += 1;
        RowWriter { bytes: &mut self.bytes }
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }
}

/// Writes values in RowBinary: fixed-width little-endian numbers, length-prefixed strings.
pub struct RowWriter<'a> {
    bytes: &'a mut Vec<u8>,
}

macro_rules! fixed_width {
    ($($name:ident: $type:ty, $column:literal;)*) => {$(
        #[doc = concat!("A `", $column, "`.")]
        pub fn $name(&mut self, value: $type) -> &mut Self {
            self.bytes.extend_from_slice(&value.to_le_bytes());
            self
        }
    )*};
}

impl RowWriter<'_> {
    fixed_width! {
        u8: u8, "UInt8";
        u16: u16, "UInt16";
        u32: u32, "UInt32";
        u64: u64, "UInt64";
        i8: i8, "Int8";
        i32: i32, "Int32";
        i64: i64, "Int64";
    }

    /// A `DateTime64(9)` from nanoseconds since the Unix epoch.
    pub fn time(&mut self, unix_ns: u64) -> &mut Self {
        self.i64(i64::try_from(unix_ns).unwrap_or(i64::MAX))
    }

    /// A `Nullable(UInt64)`.
    pub fn nullable_u64(&mut self, value: Option<u64>) -> &mut Self {
        match value {
            Some(value) => self.u8(0).u64(value),
            None => self.u8(1),
        }
    }

    /// A `String` or `LowCardinality(String)`.
    pub fn str(&mut self, value: &str) -> &mut Self {
        self.varint(value.len() as u64);
        self.bytes.extend_from_slice(value.as_bytes());
        self
    }

    /// A `Map(String, String)`.
    pub fn map<'v>(
        &mut self,
        entries: impl ExactSizeIterator<Item = (&'v str, &'v str)>,
    ) -> &mut Self {
        self.len(entries.len());
        for (key, value) in entries {
            self.str(key).str(value);
        }
        self
    }

    /// The length of an `Array` or `Map`; its items follow.
    pub fn len(&mut self, items: usize) -> &mut Self {
        self.varint(items as u64);
        self
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_laid_out_as_clickhouse_reads_it() {
        let mut batch = Batch::new("t", &["a", "b", "c"]);
        batch.row().u16(0x0102).str("hé").map([("k", "v")].into_iter());
        assert_eq!(batch.rows, 1);
        assert_eq!(batch.bytes, [2, 1, 3, b'h', 0xc3, 0xa9, 1, 1, b'k', 1, b'v']);
    }

    #[test]
    fn what_is_not_known_is_one_byte() {
        let mut batch = Batch::new("t", &["a", "b"]);
        batch.row().nullable_u64(None).nullable_u64(Some(7));
        assert_eq!(batch.bytes, [1, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn long_strings_have_long_lengths() {
        let mut batch = Batch::new("t", &["a"]);
        batch.row().str(&"x".repeat(300));
        assert_eq!(batch.bytes[..2], [0xac, 0x02]);
    }
}
