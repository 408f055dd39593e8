//! How a batch lies in a spool file: length, checksum, payload. All numbers are little-endian.
//!
//! ```text
//! u32 length of the payload · u32 CRC-32 of the payload
//! payload: u64 Unix ns · u64 rows · str table · u32 columns · str column … · the rows
//! str:     u32 length · bytes
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use underspan_store::Batch;

/// Length and checksum.
pub(super) const HEADER: u64 = 8;

/// A batch and when it was spooled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Unix ns.
    pub(super) at_ns: u64,
    pub(super) batch: Batch,
}

/// What lies at an offset of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A record, and the bytes it takes.
    Record(Record, u64),
    /// A record that cannot be read, and the bytes to skip to the next.
    Damaged(u64),
    /// A record that the file ends in the middle of: its writer died.
    Truncated,
    /// Nothing more.
    End,
}

/// The bytes of a record. `None` if its payload does not fit a 32-bit length.
pub(super) fn encode(batch: &Batch, at_ns: u64) -> Option<Vec<u8>> {
    let mut frame = vec![0; HEADER as usize];
    frame.reserve(batch.bytes.len() + 256);
    frame.extend_from_slice(&at_ns.to_le_bytes());
    frame.extend_from_slice(&batch.rows.to_le_bytes());
    put_str(&mut frame, &batch.table)?;
    frame.extend_from_slice(&u32::try_from(batch.columns.len()).ok()?.to_le_bytes());
    for column in &batch.columns {
        put_str(&mut frame, column)?;
    }
    frame.extend_from_slice(&batch.bytes);

    let (header, payload) = frame.split_at_mut(HEADER as usize);
    header[..4].copy_from_slice(&u32::try_from(payload.len()).ok()?.to_le_bytes());
    header[4..].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
    Some(frame)
}

/// Reads what lies at `offset` of a file of `size` bytes.
pub(super) fn read(file: &File, offset: u64, size: u64) -> io::Result<Next> {
    let left = size.saturating_sub(offset);
    if left == 0 {
        return Ok(Next::End);
    }
    if left < HEADER {
        return Ok(Next::Truncated);
    }
    let mut header = [0; HEADER as usize];
    file.read_exact_at(&mut header, offset)?;
    let mut fields = Fields(&header);
    let (Some(length), Some(crc)) = (fields.u32(), fields.u32()) else {
        return Ok(Next::Truncated);
    };
    let bytes = HEADER + u64::from(length);
    if bytes > left {
        return Ok(Next::Truncated);
    }
    let mut payload = vec![0; length as usize];
    file.read_exact_at(&mut payload, offset + HEADER)?;
    if crc32fast::hash(&payload) != crc {
        return Ok(Next::Damaged(bytes));
    }
    Ok(decode(&payload).map_or(Next::Damaged(bytes), |record| Next::Record(record, bytes)))
}

fn decode(payload: &[u8]) -> Option<Record> {
    let mut fields = Fields(payload);
    let at_ns = fields.u64()?;
    let rows = fields.u64()?;
    let table = fields.str()?;
    let columns = (0..fields.u32()?).map(|_| fields.str()).collect::<Option<_>>()?;
    Some(Record { at_ns, batch: Batch { table, columns, rows, bytes: fields.0.to_vec() } })
}

fn put_str(frame: &mut Vec<u8>, value: &str) -> Option<()> {
    frame.extend_from_slice(&u32::try_from(value.len()).ok()?.to_le_bytes());
    frame.extend_from_slice(value.as_bytes());
    Some(())
}

/// Takes fields off the front of a payload.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn str(&mut self) -> Option<String> {
        let length = self.u32()? as usize;
        let (head, tail) = self.0.split_at_checked(length)?;
        self.0 = tail;
        String::from_utf8(head.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    proptest! {
        #[test]
        fn a_batch_comes_back_as_it_was(
            table in "\\PC{0,20}",
            columns in proptest::collection::vec("\\PC{0,10}", 0..5),
            rows: u64,
            bytes: Vec<u8>,
            at_ns: u64,
        ) {
            let batch = Batch { table, columns, rows, bytes };
            let frame = encode(&batch, at_ns).unwrap();
            let size = frame.len() as u64;
            let record = Record { at_ns, batch };
            prop_assert_eq!(read(&file(&frame), 0, size).unwrap(), Next::Record(record, size));
        }

        #[test]
        fn a_cut_or_changed_record_is_never_taken_for_a_whole_one(
            bytes in proptest::collection::vec(any::<u8>(), 0..50),
            cut in 0usize..40,
            flip in 0usize..60,
        ) {
            let batch = Batch { table: "t".into(), columns: vec!["c".into()], rows: 1, bytes };
            let frame = encode(&batch, 1).unwrap();

            let short = &frame[..cut.min(frame.len() - 1)];
            let next = read(&file(short), 0, short.len() as u64).unwrap();
            prop_assert!(matches!(next, Next::Truncated | Next::End));

            let mut changed = frame.clone();
            let at = flip % changed.len();
            changed[at] ^= 0x10;
            let next = read(&file(&changed), 0, changed.len() as u64).unwrap();
            prop_assert!(!matches!(next, Next::Record(..)), "{next:?}");
        }
    }
}
