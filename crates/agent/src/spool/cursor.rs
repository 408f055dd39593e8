//! How far draining got: the segment and the offset in it, with a checksum.
//!
//! A cursor that cannot be read means that draining starts again at the oldest segment: rows come
//! twice rather than not at all.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const BYTES: usize = 20;

#[derive(Debug)]
pub(super) struct Cursor {
    file: File,
    pub(super) seq: u64,
    pub(super) offset: u64,
}

impl Cursor {
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(dir.join("cursor"))?;
        let mut bytes = [0; BYTES];
        let (seq, offset) = match file.read_exact_at(&mut bytes, 0) {
            Ok(()) => decode(&bytes).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => (0, 0),
            Err(error) => return Err(error),
        };
        Ok(Cursor { file, seq, offset })
    }

    /// Writes the position down. It is less than a page, so a crash of the agent cannot tear it.
    pub(super) fn save(&mut self, seq: u64, offset: u64) -> io::Result<()> {
        (self.seq, self.offset) = (seq, offset);
        self.file.write_all_at(&encode(seq, offset), 0)
    }
}

fn encode(seq: u64, offset: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&seq.to_le_bytes());
    bytes[8..16].copy_from_slice(&offset.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..16]);
    bytes[16..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; BYTES]) -> Option<(u64, u64)> {
    let (seq, rest) = bytes.split_first_chunk()?;
    let (offset, rest) = rest.split_first_chunk()?;
    let crc = rest.first_chunk()?;
    let whole = crc32fast::hash(&bytes[..16]) == u32::from_le_bytes(*crc);
    whole.then(|| (u64::from_le_bytes(*seq), u64::from_le_bytes(*offset)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_survives_and_a_damaged_one_is_the_start() {
        let dir = tempfile::tempdir().unwrap();
        Cursor::open(dir.path()).unwrap().save(7, 4096).unwrap();
        let cursor = Cursor::open(dir.path()).unwrap();
        assert_eq!((cursor.seq, cursor.offset), (7, 4096));

        cursor.file.write_all_at(&[1], 9).unwrap();
        let cursor = Cursor::open(dir.path()).unwrap();
        assert_eq!((cursor.seq, cursor.offset), (0, 0));
    }
}
