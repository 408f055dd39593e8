//! What JIT compilers tell of their code: `/tmp/perf-PID.map`, in the process's own file system and
//! under the id that the process has there.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;

/// A larger file is read no further.
const MAX_BYTES: u64 = 32 << 20;
/// A file that grew is read again, not more often than this.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// A process's perf map.
#[derive(Debug)]
pub(crate) struct PerfMap {
    path: PathBuf,
    len: u64,
    read: Option<Instant>,
    /// Sorted by address.
    entries: Vec<Entry>,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    start: u64,
    size: u64,
    name: Box<str>,
}

impl PerfMap {
    /// Where it would be.
    pub(crate) fn new(pid: u32) -> Self {
        let path = format!("/proc/{pid}/root/tmp/perf-{}.map", inner_pid(pid).unwrap_or(pid));
        PerfMap { path: path.into(), len: 0, read: None, entries: Vec::new() }
    }

    /// The name of the code at an address.
    pub(crate) fn find(&mut self, address: u64) -> Option<&str> {
        if self.search(address).is_none()
            && self.read.is_none_or(|read| read.elapsed() >= READ_AGAIN)
        {
            self.read = Some(Instant::now());
            // Not there, or gone with the process: what was read before stays.
            let _ = self.read_file();
        }
        self.search(address).map(|entry| &*entry.name)
    }

    fn search(&self, address: u64) -> Option<&Entry> {
        let after = self.entries.partition_point(|entry| entry.start <= address);
        let entry = self.entries.get(after.checked_sub(1)?)?;
        (address - entry.start < entry.size).then_some(entry)
    }

    fn read_file(&mut self) -> io::Result<()> {
        // Anyone can write to /tmp: a pipe there must not hold us up, and a link not lead us away.
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(&self.path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.len() == self.len {
            return Ok(());
        }
        self.entries = parse(file.take(MAX_BYTES))?;
        self.len = metadata.len();
        Ok(())
    }
}

/// `start size name`, both numbers in hexadecimal. Code that was made later at the same place wins.
fn parse(file: impl Read) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut lines = BufReader::new(file);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        entries.extend(parse_line(&String::from_utf8_lossy(&line)));
        line.clear();
    }
    entries.reverse();
    entries.sort_by_key(|entry: &Entry| entry.start);
    entries.dedup_by_key(|entry| entry.start);
    Ok(entries)
}

fn parse_line(line: &str) -> Option<Entry> {
    let (start, rest) = line.trim_end().split_once(' ')?;
    let (size, name) = rest.split_once(' ')?;
    let hex = |digits: &str| u64::from_str_radix(digits.trim_start_matches("0x"), 16).ok();
    Some(Entry { start: hex(start)?, size: hex(size)?, name: name.into() })
}

/// The id that a process has in its own pid namespace.
fn inner_pid(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_and_later_ones_win() {
        let text = "1000 10 old\n2000 20 LazyCompile:*run /app/x.js:1\n1000 8 new\nbroken\n\n";
        let map = PerfMap {
            path: "/nonexistent".into(),
            len: 0,
            read: Some(Instant::now()),
            entries: parse(text.as_bytes()).unwrap(),
        };
        assert_eq!(&*map.search(0x1004).unwrap().name, "new");
        assert_eq!(map.search(0x1008), None);
        assert_eq!(&*map.search(0x201f).unwrap().name, "LazyCompile:*run /app/x.js:1");
        assert_eq!(map.search(0x2020), None);
        assert_eq!(map.search(0xfff), None);
    }

    #[test]
    fn a_file_that_grows_is_read_again() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut map =
            PerfMap { path: file.path().to_owned(), len: 0, read: None, entries: Vec::new() };
        assert_eq!(map.find(0x1000), None);
        fs::write(file.path(), "1000 10 f\n").unwrap();
        assert_eq!(map.find(0x1000), None, "not yet");
        map.read = None;
        assert_eq!(map.find(0x1000), Some("f"));
    }

    #[test]
    fn a_process_knows_its_own_id() {
        assert_eq!(inner_pid(std::process::id()), Some(std::process::id()));
        assert_eq!(inner_pid(u32::MAX), None);
    }
}
