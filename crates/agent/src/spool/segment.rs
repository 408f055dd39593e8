//! One file of the spool: a magic number, then records.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::frame::{self, Next, Record};

/// What a segment starts with. The digit is the format's version.
const MAGIC: &[u8; 8] = b"USSPOOL1";

const SUFFIX: &str = ".segment";

/// A segment's place in the order, and what of it is still to be drained.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) seq: u64,
    path: PathBuf,
    file: File,
    /// The file's size.
    pub(super) bytes: u64,
    /// Where its last readable record ends.
    end: u64,
    /// Where the next record to drain begins.
    pub(super) read_at: u64,
    /// Rows still to be drained, by table.
    pub(super) pending: BTreeMap<String, u64>,
    /// Records that cannot be read.
    pub(super) damaged: u64,
}

impl Segment {
    /// Creates an empty segment.
    pub(super) fn create(dir: &Path, seq: u64) -> io::Result<Self> {
        let path = dir.join(format!("{seq:020}{SUFFIX}"));
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create_new(true).mode(0o600).open(&path)?;
        if let Err(error) = file.write_all(MAGIC) {
            // The name must stay free for the next attempt.
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        let start = MAGIC.len() as u64;
        Ok(Segment {
            seq,
            path,
            file,
            bytes: start,
            end: start,
            read_at: start,
            pending: BTreeMap::new(),
            damaged: 0,
        })
    }

    /// Opens a segment that another run left, and reads what is to be drained from `read_at` on.
    pub(super) fn open(path: &Path, seq: u64, read_at: u64) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).append(true).open(path)?;
        let bytes = file.metadata()?.len();
        let start = MAGIC.len() as u64;
        let mut segment = Segment {
            seq,
            path: path.to_owned(),
            file,
            bytes,
            end: start,
            read_at: read_at.max(start),
            pending: BTreeMap::new(),
            damaged: 0,
        };
        segment.scan()?;
        if segment.end < segment.bytes {
            // What the writer's death left at the end would be counted again by the next run.
            segment.file.set_len(segment.end)?;
            segment.bytes = segment.end;
        }
        Ok(segment)
    }

    fn scan(&mut self) -> io::Result<()> {
        let mut magic = [0; MAGIC.len()];
        let readable = self.file.read_exact_at(&mut magic, 0);
        if readable.is_err() || &magic != MAGIC {
            // Created and not yet written to, or no segment at all.
            self.damaged = u64::from(self.bytes > 0);
            self.end = self.read_at;
            return Ok(());
        }
        let mut at = self.read_at;
        loop {
            match frame::read(&self.file, at, self.bytes)? {
                Next::Record(record, bytes) => {
                    *self.pending.entry(record.batch.table).or_default() += record.batch.rows;
                    at += bytes;
                    self.end = at;
                }
                Next::Damaged(bytes) => {
                    self.damaged += 1;
                    at += bytes;
                }
                Next::Truncated => {
                    self.damaged += 1;
                    break;
                }
                Next::End => break,
            }
        }
        self.end = self.end.max(self.read_at);
        Ok(())
    }

    /// Appends a record's bytes. When that fails, the file is as it was.
    pub(super) fn append(&mut self, frame: &[u8], table: &str, rows: u64) -> io::Result<()> {
        if let Err(error) = self.file.write_all(frame) {
            // Best effort: a part that stays is skipped as a truncated record.
            let _ = self.file.set_len(self.end);
            return Err(error);
        }
        self.end += frame.len() as u64;
        self.bytes = self.end;
        *self.pending.entry(table.to_owned()).or_default() += rows;
        Ok(())
    }

    /// The next record to drain and where it ends. Skips what cannot be read (counted at open).
    pub(super) fn next(&mut self) -> io::Result<Option<(Record, u64)>> {
        loop {
            match frame::read(&self.file, self.read_at, self.end)? {
                Next::Record(record, bytes) => return Ok(Some((record, self.read_at + bytes))),
                Next::Damaged(bytes) => self.read_at += bytes,
                Next::Truncated | Next::End => {
                    self.read_at = self.end;
                    return Ok(None);
                }
            }
        }
    }

    /// Marks the record that ends at `end` as drained.
    pub(super) fn advance(&mut self, end: u64, table: &str, rows: u64) {
        self.read_at = end;
        if let Some(left) = self.pending.get_mut(table) {
            *left = left.saturating_sub(rows);
        }
    }

    /// Whether nothing is left to drain.
    pub(super) fn is_drained(&self) -> bool {
        self.read_at >= self.end
    }

    /// Makes what was appended survive a power cut.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Deletes the file.
    pub(super) fn remove(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

/// The segments in a directory, oldest first.
pub(super) fn list(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let seq = name.and_then(|name| name.strip_suffix(SUFFIX)).and_then(|seq| seq.parse().ok());
        if let Some(seq) = seq {
            found.push((seq, path));
        }
    }
    found.sort();
    Ok(found)
}
