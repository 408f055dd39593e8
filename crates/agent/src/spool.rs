//! Batches on disk while the store is away: bounded, in order, surviving crashes and restarts.
//!
//! The spool is a directory of segment files. Records are appended to the newest and drained from the
//! oldest; a drained segment is deleted. When the bound is reached the oldest segment makes room, and
//! its rows are counted as lost. A small `cursor` file says how far draining got.
//!
//! A batch leaves the spool only after it was inserted. If the agent dies between the two, the batch
//! is inserted again: rows may come twice, never not at all.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use underspan_store::Batch;

use crate::clock;
use crate::error::{Error, Result};
use crate::losses::{Losses, Reason};

mod cursor;
mod frame;
mod rejected;
mod segment;
#[cfg(test)]
mod tests;

use cursor::Cursor;
pub use rejected::Rejected;
use segment::Segment;

/// The default bound: 256 MiB.
pub const DEFAULT_MAX_BYTES: u64 = 256 << 20;

/// Dropping goes by segment, so a segment is at most this share of the bound …
const SEGMENTS: u64 = 16;
/// … and at most this large.
const MAX_SEGMENT_BYTES: u64 = 16 << 20;

/// How long an appended record may be unsafe against a power cut.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// The spool's bounds.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// All segment files together, in bytes.
    pub max_bytes: u64,
    /// Batches older than this are not worth inserting: the table's TTL would delete them.
    pub max_age: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Options { max_bytes: DEFAULT_MAX_BYTES, max_age: None }
    }
}

/// The batch that was taken and neither removed nor put back.
#[derive(Debug)]
struct Taken {
    seq: u64,
    end: u64,
    table: String,
    rows: u64,
    /// Its segment had to make room meanwhile: the caller now has the only copy.
    dropped: bool,
}

/// A bounded queue of batches on disk. Its owner holds a lock on the directory.
#[derive(Debug)]
pub struct Spool {
    dir: PathBuf,
    options: Options,
    segments: VecDeque<Segment>,
    /// Whether the newest segment is this run's, so that it may be appended to.
    writable: bool,
    next_seq: u64,
    cursor: Cursor,
    taken: Option<Taken>,
    unsynced_since: Option<Instant>,
    losses: Losses,
    _lock: Flock<File>,
}

impl Spool {
    /// Opens the spool in `dir`, which is created if need be, with what earlier runs left in it.
    ///
    /// # Errors
    /// [`Error::SpoolInUse`] if another process has it open, [`Error::File`] if it cannot be used.
    pub fn open(dir: &Path, options: Options) -> Result<Self> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(Error::file("create the spool directory", dir))?;
        let lock = lock(dir)?;
        let cursor = Cursor::open(dir).map_err(Error::file("open the spool cursor in", dir))?;
        let mut spool = Spool {
            dir: dir.to_owned(),
            options,
            segments: VecDeque::new(),
            writable: false,
            next_seq: cursor.seq + 1,
            cursor,
            taken: None,
            unsynced_since: None,
            losses: Losses::default(),
            _lock: lock,
        };
        spool.recover().map_err(Error::file("read the spool", dir))?;
        Ok(spool)
    }

    fn recover(&mut self) -> io::Result<()> {
        for (seq, path) in segment::list(&self.dir)? {
            self.next_seq = self.next_seq.max(seq.saturating_add(1));
            if seq < self.cursor.seq {
                // Drained, and the agent ended before it could delete the file.
                fs::remove_file(path)?;
                continue;
            }
            let read_at = if seq == self.cursor.seq { self.cursor.offset } else { 0 };
            let segment = Segment::open(&path, seq, read_at)?;
            self.losses.add("", Reason::SpoolDamaged, segment.damaged);
            if segment.is_drained() {
                segment.remove()?;
            } else {
                self.segments.push_back(segment);
            }
        }
        // The bound may be smaller than it was when these were written.
        self.make_room(0)
    }

    /// Appends a batch. Its rows are kept, or counted as lost.
    ///
    /// # Errors
    /// If the disk refuses the write. The rows were counted as lost.
    pub fn append(&mut self, batch: &Batch) -> Result<()> {
        let now = clock::unix_ns()?;
        self.append_at(batch, now)
    }

    fn append_at(&mut self, batch: &Batch, now_ns: u64) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        // A segment's magic number counts towards the bound too.
        let frame = frame::encode(batch, now_ns);
        let Some(frame) = frame.filter(|f| f.len() as u64 + 8 <= self.options.max_bytes) else {
            self.losses.add(&batch.table, Reason::TooLarge, batch.rows);
            return Ok(());
        };
        let result = loop {
            // Asked before the write, which may itself begin a segment.
            let can_make_room = !self.segments.is_empty();
            match self.write(&frame, batch) {
                // The disk is smaller than the bound: the oldest makes room, as it would at the bound.
                Err(error) if error.kind() == io::ErrorKind::StorageFull && can_make_room => {
                    if let Err(error) = self.drop_oldest() {
                        break Err(error);
                    }
                }
                other => break other,
            }
        };
        result.map_err(|source| {
            self.losses.add(&batch.table, Reason::SpoolWrite, batch.rows);
            Error::File { action: "write to the spool", path: self.dir.clone(), source }
        })
    }

    fn write(&mut self, frame: &[u8], batch: &Batch) -> io::Result<()> {
        let bytes = frame.len() as u64;
        let limit = (self.options.max_bytes / SEGMENTS).min(MAX_SEGMENT_BYTES);
        let fits = self.writable && self.segments.back().is_some_and(|s| s.bytes + bytes <= limit);
        if !fits {
            self.start_segment(bytes)?;
        } else {
            self.make_room(bytes)?;
        }
        if !self.writable {
            // The newest segment itself had to make room.
            self.start_segment(bytes)?;
        }
        let Some(segment) = self.segments.back_mut() else {
            return Err(io::Error::other("the spool has no segment to write to"));
        };
        segment.append(frame, &batch.table, batch.rows)?;
        self.unsynced_since.get_or_insert_with(Instant::now);
        if let Err(error) = self.sync_if_due() {
            // The rows are in the file; only a power cut could take them now.
            tracing::warn!("cannot sync the spool {}: {error}", self.dir.display());
        }
        Ok(())
    }

    fn start_segment(&mut self, bytes: u64) -> io::Result<()> {
        self.sync_newest()?;
        self.writable = false;
        self.make_room(bytes + 8)?;
        self.segments.push_back(Segment::create(&self.dir, self.next_seq)?);
        self.next_seq += 1;
        self.writable = true;
        // The file's name must survive a power cut as well as its content.
        File::open(&self.dir)?.sync_all()
    }

    /// Drops the oldest segments until `bytes` more are within the bound.
    fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        while !self.segments.is_empty() && self.bytes() + bytes > self.options.max_bytes {
            self.drop_oldest()?;
        }
        Ok(())
    }

    fn drop_oldest(&mut self) -> io::Result<()> {
        let Some(mut segment) = self.segments.pop_front() else {
            return Ok(());
        };
        if let Some(taken) = self.taken.as_mut().filter(|taken| taken.seq == segment.seq) {
            // Not lost as long as its insert may succeed.
            taken.dropped = true;
            segment.advance(taken.end, &taken.table, taken.rows);
        }
        for (table, rows) in &segment.pending {
            self.losses.add(table, Reason::SpoolFull, *rows);
        }
        self.forget_if_writing();
        segment.remove()
    }

    /// After the last segment went there is none to append to.
    fn forget_if_writing(&mut self) {
        if self.segments.is_empty() {
            self.writable = false;
            self.unsynced_since = None;
        }
    }

    /// The oldest batch, to be inserted; then call [`Spool::remove`] or [`Spool::put_back`]. `None`
    /// if the spool is empty. Batches past their age are counted and skipped.
    ///
    /// # Errors
    /// If a segment cannot be read.
    pub fn take(&mut self) -> Result<Option<Batch>> {
        let now = clock::unix_ns()?;
        self.take_at(now)
    }

    fn take_at(&mut self, now_ns: u64) -> Result<Option<Batch>> {
        self.put_back();
        let failed = Error::file("read the spool", &self.dir);
        self.oldest(now_ns).map_err(failed)
    }

    fn oldest(&mut self, now_ns: u64) -> io::Result<Option<Batch>> {
        loop {
            let Some(segment) = self.segments.front_mut() else {
                return Ok(None);
            };
            let Some((record, end)) = segment.next()? else {
                self.remove_drained()?;
                continue;
            };
            let batch = record.batch;
            let age = Duration::from_nanos(now_ns.saturating_sub(record.at_ns));
            if self.options.max_age.is_some_and(|max_age| age > max_age) {
                segment.advance(end, &batch.table, batch.rows);
                self.losses.add(&batch.table, Reason::Expired, batch.rows);
                self.save_cursor()?;
                continue;
            }
            let (seq, table, rows) = (segment.seq, batch.table.clone(), batch.rows);
            self.taken = Some(Taken { seq, end, table, rows, dropped: false });
            return Ok(Some(batch));
        }
    }

    /// The batch that was taken is in the store (or counted as lost by the caller): removes it.
    ///
    /// # Errors
    /// If the progress cannot be written down. The batch may then be inserted again after a restart.
    pub fn remove(&mut self) -> Result<()> {
        let Some(taken) = self.taken.take().filter(|taken| !taken.dropped) else {
            return Ok(());
        };
        if let Some(segment) = self.segments.front_mut() {
            segment.advance(taken.end, &taken.table, taken.rows);
        }
        let failed = Error::file("write the spool cursor in", &self.dir);
        self.save_cursor().and_then(|()| self.remove_drained()).map_err(failed)
    }

    /// The batch that was taken could not be inserted: it stays the oldest.
    pub fn put_back(&mut self) {
        if let Some(taken) = self.taken.take().filter(|taken| taken.dropped) {
            self.losses.add(&taken.table, Reason::SpoolFull, taken.rows);
        }
    }

    fn save_cursor(&mut self) -> io::Result<()> {
        match self.segments.front() {
            Some(segment) => self.cursor.save(segment.seq, segment.read_at),
            None => Ok(()),
        }
    }

    fn remove_drained(&mut self) -> io::Result<()> {
        while self.segments.front().is_some_and(Segment::is_drained) {
            if let Some(segment) = self.segments.pop_front() {
                self.forget_if_writing();
                segment.remove()?;
            }
        }
        Ok(())
    }

    /// Makes everything appended survive a power cut.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn sync(&mut self) -> Result<()> {
        let failed = Error::file("sync the spool", &self.dir);
        self.sync_newest().map_err(failed)
    }

    fn sync_if_due(&mut self) -> io::Result<()> {
        if self.unsynced_since.is_some_and(|since| since.elapsed() >= SYNC_EVERY) {
            self.sync_newest()?;
        }
        Ok(())
    }

    fn sync_newest(&mut self) -> io::Result<()> {
        if self.unsynced_since.take().is_some()
            && let Some(segment) = self.segments.back()
        {
            segment.sync()?;
        }
        Ok(())
    }

    /// Bytes of all segment files.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Rows still to be drained.
    pub fn rows(&self) -> u64 {
        self.segments.iter().flat_map(|segment| segment.pending.values()).sum()
    }

    /// Whether nothing is left to drain.
    pub fn is_empty(&self) -> bool {
        self.segments.iter().all(Segment::is_drained)
    }

    /// The rows lost since this was last called.
    pub fn take_losses(&mut self) -> Losses {
        self.losses.take()
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

fn lock(dir: &Path) -> Result<Flock<File>> {
    let path = dir.join("lock");
    let failed = || Error::file("open the spool's lock", &path);
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(failed())?;
    let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => lock,
        Err((_, Errno::EWOULDBLOCK)) => {
            let owner = fs::read_to_string(&path).unwrap_or_default();
            let owner = match owner.trim() {
                "" => "pid not known".to_owned(),
                pid => format!("pid {pid}"),
            };
            return Err(Error::SpoolInUse { path: dir.to_owned(), owner });
        }
        Err((_, errno)) => return Err(failed()(errno.into())),
    };
    // Whom to name when someone else wants the directory.
    lock.set_len(0).map_err(failed())?;
    write!(lock, "{}", std::process::id()).map_err(failed())?;
    Ok(lock)
}
