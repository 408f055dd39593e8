//! Batches that the store refused for good, kept so that someone can look at them.
//!
//! Each is two files: `N-TABLE.rowbinary`, the rows, and `N-TABLE.txt`, the reason and the columns.
//! `clickhouse-client --query "INSERT INTO T (columns) FORMAT RowBinary" < file` inserts the first.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use underspan_store::Batch;

use crate::clock;
use crate::error::{Error, Result};

/// The folder `rejected/` of a spool.
#[derive(Clone, Debug)]
pub struct Rejected {
    dir: PathBuf,
    max_bytes: u64,
}

impl Rejected {
    /// The folder below the spool directory `spool`, for at most `max_bytes`. It is created with
    /// its first batch.
    pub fn new(spool: &Path, max_bytes: u64) -> Self {
        Rejected { dir: spool.join("rejected"), max_bytes }
    }

    /// Keeps a batch; the oldest are deleted to stay within the bound. Returns its file, or `None`
    /// if the batch is larger than the bound.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn keep(&self, batch: &Batch, reason: &str) -> Result<Option<PathBuf>> {
        let now = clock::unix_ns()?;
        self.write(batch, reason, now).map_err(Error::file("keep a rejected batch in", &self.dir))
    }

    fn write(&self, batch: &Batch, reason: &str, now_ns: u64) -> io::Result<Option<PathBuf>> {
        let columns = batch.columns.join(", ");
        let note = format!(
            "table: {}\ncolumns: {columns}\nrows: {}\nreason: {reason}\n",
            batch.table, batch.rows
        );
        let bytes = (batch.bytes.len() + note.len()) as u64;
        if bytes > self.max_bytes {
            return Ok(None);
        }
        fs::create_dir_all(&self.dir)?;
        self.make_room(bytes)?;
        // A table's name comes from the agent itself; a slash would still lead out of the folder.
        let table = batch.table.replace(['/', '\0'], "_");
        let path = self.dir.join(format!("{now_ns:020}-{table}.rowbinary"));
        fs::write(path.with_extension("txt"), note)?;
        fs::write(&path, &batch.bytes)?;
        Ok(Some(path))
    }

    fn make_room(&self, bytes: u64) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            files.push((entry.path(), entry.metadata()?.len()));
        }
        // Names begin with the time, so this is oldest first.
        files.sort();
        let mut total: u64 = files.iter().map(|(_, bytes)| bytes).sum();
        let mut removed = None;
        for (path, size) in files {
            // A batch and its note go together.
            if total + bytes <= self.max_bytes && removed.as_deref() != path.file_stem() {
                break;
            }
            removed = path.file_stem().map(ToOwned::to_owned);
            fs::remove_file(path)?;
            total -= size;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_with_their_reason() {
        let spool = tempfile::tempdir().unwrap();
        let rejected = Rejected::new(spool.path(), 1000);
        let mut batch = Batch::new("waits", &["host", "pid"]);
        batch.row().str(&"x".repeat(300)).u32(1);
        for at in 0..5 {
            assert!(rejected.write(&batch, "no column pid", at).unwrap().is_some());
        }
        let mut names: Vec<_> = fs::read_dir(spool.path().join("rejected"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        names.sort();
        assert_eq!(names.len(), 4, "{names:?}");
        assert_eq!(fs::read(&names[2]).unwrap(), batch.bytes);
        let note = fs::read_to_string(&names[3]).unwrap();
        assert!(note.contains("columns: host, pid\n") && note.contains("no column pid"), "{note}");

        batch.bytes = vec![0; 2000];
        assert_eq!(rejected.write(&batch, "too long", 9).unwrap(), None);
    }
}
