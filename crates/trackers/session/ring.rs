//! The near end of the ring buffer. libbpf's maps all of its data, and that twice in a row, so that a record
//! that wraps around the end lies in one piece; all those pages count as this process's memory. Here it is
//! seen through a window, which is moved on as records are read. The kernel, too, has the data twice in a
//! row, so that a window may reach beyond the end. Records are shown where they lie.
//!
//! The kernel's side: `kernel/bpf/ringbuf.c`; libbpf's, after which this is made: `src/ringbuf.c`.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use libbpf_rs::{MapCore as _, MapHandle};

/// Bytes of data that are mapped, or more if a record is longer. Moving it takes two system calls and the page
/// faults of what is read (measured once: 10 µs).
const WINDOW: usize = 256 << 10;
/// Before each record: its length and two flags in one word, and where its page is.
const HEADER: usize = 8;
/// It is still being written.
const BUSY: u32 = 1 << 31;
/// It was given up.
const DISCARD: u32 = 1 << 30;

/// A ring buffer of which this is the only reader.
pub(super) struct Ring {
    /// How far was read, in bytes since the beginning. A page of its own.
    consumer: Mapping,
    /// How far was written. A page of its own, too.
    producer: Mapping,
    window: Window,
    /// Ready when a program asks for a reader. (The map itself is ready whenever there is a record.)
    epoll: OwnedFd,
}

impl Ring {
    pub(super) fn open(map: &MapHandle) -> io::Result<Self> {
        let fd = map.as_fd();
        // SAFETY: a new descriptor, which nobody else has.
        let epoll =
            unsafe { OwnedFd::from_raw_fd(checked(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: both descriptors are open, and `event` outlives the call.
        checked(unsafe {
            let (epoll, fd) = (epoll.as_raw_fd(), fd.as_raw_fd());
            libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event)
        })?;
        Ring::map(fd, map.max_entries() as usize, epoll)
    }

    fn map(fd: BorrowedFd<'_>, size: usize, epoll: OwnedFd) -> io::Result<Self> {
        // SAFETY: only asks.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })
            .map_err(|_| io::Error::last_os_error())?;
        let consumer = Mapping::new(fd, 0, page, libc::PROT_READ | libc::PROT_WRITE)?;
        let producer = Mapping::new(fd, page, page, libc::PROT_READ)?;
        let window = Window { fd: fd.try_clone_to_owned()?, page, size, begin: 0, mapping: None };
        Ok(Ring { consumer, producer, window, epoll })
    }

    /// Waits until a program asks for a reader, or the time is over, or a signal came.
    pub(super) fn wait(&self, timeout: Duration) -> io::Result<()> {
        let fd = self.epoll.as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let timeout = i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        // SAFETY: one pollfd, which outlives the call.
        match checked(unsafe { libc::poll(&raw mut poll, 1, timeout) }) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// Shows what was written, `most` records at the most. Returns how many. Each counts as read, and its
    /// room is free, once it was shown.
    ///
    /// # Errors
    /// If there is no memory to map it.
    pub(super) fn drain(&mut self, most: usize, mut each: impl FnMut(&[u8])) -> io::Result<usize> {
        let Ring { consumer, producer, window, .. } = self;
        // SAFETY: each begins a page that is mapped, and is never used but as an atomic.
        let (consumer, producer) = unsafe {
            (consumer.start.cast::<AtomicU64>().as_ref(), producer.start.cast().as_ref())
        };
        // Nobody else writes it.
        let mut position = consumer.load(Ordering::Relaxed);
        let mut count = 0;
        // Acquire: what was reserved until there is seen, with its flags.
        while count < most && position < AtomicU64::load(producer, Ordering::Acquire) {
            let header = window.at(position, HEADER)?.cast::<AtomicU32>();
            // SAFETY: mapped; records begin at multiples of eight. Acquire: if it is not busy, all of it is
            // seen as it was written.
            let word = unsafe { header.as_ref() }.load(Ordering::Acquire);
            if word & BUSY != 0 {
                break;
            }
            let len = (word & !DISCARD) as usize;
            if word & DISCARD == 0 {
                let record = window.at(position + HEADER as u64, len)?;
                // SAFETY: mapped, and not written to before it counts as read.
                each(unsafe { std::slice::from_raw_parts(record.as_ptr(), len) });
                count += 1;
            }
            position += (HEADER + len).next_multiple_of(8) as u64;
            // Release: it was read before its room is free.
            consumer.store(position, Ordering::Release);
        }
        Ok(count)
    }
}

/// The part of the data that is mapped.
struct Window {
    fd: OwnedFd,
    page: usize,
    /// Of all the data; a power of two.
    size: usize,
    /// The position of its first byte.
    begin: u64,
    mapping: Option<Mapping>,
}

impl Window {
    /// Where `len` bytes from a position on lie, until the next call.
    fn at(&mut self, position: u64, len: usize) -> io::Result<NonNull<u8>> {
        let end = position + len as u64;
        let mapping = match &self.mapping {
            Some(mapping) if self.begin <= position && end <= self.begin + mapping.len as u64 => {
                mapping
            }
            _ => {
                self.mapping = None;
                self.begin = position & !(self.page as u64 - 1);
                let needed = (end - self.begin) as usize;
                let len = needed.max(WINDOW.min(self.size)).next_multiple_of(self.page);
                // After the positions' pages.
                let offset = 2 * self.page + (self.begin & (self.size as u64 - 1)) as usize;
                let mapping = Mapping::new(self.fd.as_fd(), offset, len, libc::PROT_READ)?;
                self.mapping.insert(mapping)
            }
        };
        // SAFETY: within the mapping.
        Ok(unsafe { mapping.start.add((position - self.begin) as usize) })
    }
}

/// Pages of the map.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it belongs to whoever has it; the other end are the kernel's programs.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, offset: usize, len: usize, protection: i32) -> io::Result<Self> {
        let (fd, offset) = (fd.as_raw_fd(), offset as libc::off_t);
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start =
            unsafe { libc::mmap(null_mut(), len, protection, libc::MAP_SHARED, fd, offset) };
        match NonNull::new(start.cast()) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED.cast() => Ok(Mapping { start, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests;
