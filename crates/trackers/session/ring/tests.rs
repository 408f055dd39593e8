use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::*;

/// Of two windows.
const SIZE: usize = 2 * WINDOW;

/// A file that looks like the map: the two positions' pages, then the data, twice. It is mapped as the map is,
/// by the same code.
struct Kernel {
    file: File,
    page: u64,
    position: u64,
}

impl Kernel {
    fn new() -> (Self, Ring) {
        let file = tempfile::tempfile().unwrap();
        // SAFETY: only asks.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        file.set_len(page * 2 + 2 * SIZE as u64).unwrap();
        let nothing = OwnedFd::from(File::open("/dev/null").unwrap());
        let ring = Ring::map(file.as_fd(), SIZE, nothing).unwrap();
        (Kernel { file, page, position: 0 }, ring)
    }

    fn write(&mut self, flags: u32, record: &[u8]) {
        let mut bytes = (record.len() as u32 | flags).to_ne_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend(record);
        let begin = self.position as usize % SIZE;
        for (index, byte) in bytes.chunks(8).enumerate() {
            for copy in [0, SIZE] {
                let at = (begin + index * 8) % SIZE + copy;
                self.file.write_all_at(byte, self.page * 2 + at as u64).unwrap();
            }
        }
        self.position += bytes.len().next_multiple_of(8) as u64;
        self.file.write_all_at(&self.position.to_ne_bytes(), self.page).unwrap();
    }

    fn consumed(&self) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, 0).unwrap();
        u64::from_ne_bytes(bytes)
    }
}

/// Not two alike.
fn record(number: usize, len: usize) -> Vec<u8> {
    (number as u32).to_ne_bytes().into_iter().cycle().take(len).collect()
}

#[test]
fn every_record_is_shown_once_and_whole_also_around_the_end() {
    let (mut kernel, mut ring) = Kernel::new();
    // Some eight times around, with lengths that end everywhere.
    for round in 0..500 {
        let records =
            [0, 1, 2].map(|part| record(round * 3 + part, (round * 7 + part * 4111) % 9000));
        for (record, flags) in records.iter().zip([0, DISCARD, 0]) {
            kernel.write(flags, record);
        }
        let mut shown = Vec::new();
        let count = ring.drain(usize::MAX, |record| shown.push(record.to_vec())).unwrap();
        assert_eq!(count, 2);
        assert!(shown == [records[0].clone(), records[2].clone()], "round {round}");
        assert_eq!(kernel.consumed(), kernel.position);
    }
    assert!(kernel.position > 8 * SIZE as u64, "{}", kernel.position);
}

#[test]
fn a_record_may_be_longer_than_the_window() {
    let (mut kernel, mut ring) = Kernel::new();
    for number in 0..20 {
        let long = record(number, SIZE - 4096 * number - 8);
        kernel.write(0, &long);
        let mut shown = Vec::new();
        ring.drain(usize::MAX, |record| shown.push(record.to_vec())).unwrap();
        assert!(shown == [long], "record {number}");
    }
}

#[test]
fn no_more_than_the_window_is_mapped() {
    let (mut kernel, mut ring) = Kernel::new();
    for number in 0..1000 {
        kernel.write(0, &record(number, 1000));
        assert_eq!(ring.drain(usize::MAX, |_| ()).unwrap(), 1);
        assert_eq!(ring.window.mapping.as_ref().unwrap().len, WINDOW);
    }
}

#[test]
fn what_is_being_written_waits_and_holds_up_what_follows() {
    let (mut kernel, mut ring) = Kernel::new();
    kernel.write(0, b"one");
    kernel.write(BUSY, b"two");
    kernel.write(0, b"three");
    let mut seen = Vec::new();
    assert_eq!(ring.drain(usize::MAX, |record| seen.push(record.to_vec())).unwrap(), 1);
    assert_eq!(kernel.consumed(), 16);
    kernel.file.write_all_at(&3u32.to_ne_bytes(), kernel.page * 2 + 16).unwrap();
    assert_eq!(ring.drain(1, |record| seen.push(record.to_vec())).unwrap(), 1);
    assert_eq!(ring.drain(usize::MAX, |record| seen.push(record.to_vec())).unwrap(), 1);
    assert_eq!(seen, [&b"one"[..], b"two", b"three"]);
    assert_eq!(ring.drain(usize::MAX, |_| ()).unwrap(), 0);
}
