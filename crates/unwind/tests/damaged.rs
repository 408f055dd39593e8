//! Damaged files: an error or fewer rows, never a panic, and what is returned is in order.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::OnceLock;

use proptest::prelude::*;
use underspan_unwind::{Error, Image, Rule, Table};

/// A real binary, small enough to be parsed a thousand times.
fn binary() -> &'static [u8] {
    static BINARY: OnceLock<Vec<u8>> = OnceLock::new();
    BINARY.get_or_init(|| {
        ["/usr/lib/x86_64-linux-gnu/libdl.so.2", "/lib64/libdl.so.2", "/usr/bin/true", "/bin/true"]
            .iter()
            .find_map(|path| std::fs::read(path).ok())
            .expect("a small binary")
    })
}

fn read(bytes: &[u8]) -> Result<Table, Error> {
    let image = Image::parse(bytes.to_vec())?;
    let _ = image.identity();
    image.table()
}

fn check(table: &Table) {
    assert!(table.rows.iter().is_sorted_by(|one, other| one.pc < other.pc));
    assert_eq!(table.rows.first().map(|row| row.pc), Some(0));
    assert_eq!(table.rows.last().map(|row| row.rule), Some(Rule::Gap));
    let coverage = table.coverage();
    assert!(coverage.supported <= coverage.described);
}

/// Where the tables are, so that most damage hits them.
fn eh_frame() -> std::ops::Range<usize> {
    use object::{Object as _, ObjectSection as _};
    let file = object::File::parse(binary()).unwrap();
    let section = file.section_by_name(".eh_frame").unwrap();
    let (offset, size) = section.file_range().unwrap();
    offset as usize..(offset + size) as usize
}

#[test]
fn the_whole_file_has_a_table() {
    check(&read(binary()).unwrap());
}

#[test]
fn what_is_no_elf_file_is_said_to_be_none() {
    for bytes in [&b""[..], b"#!/bin/sh\n", b"\x7fELF", &[0; 4096]] {
        assert!(matches!(read(bytes), Err(Error::NotElf(_))));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn cut_off(len in 0..binary().len()) {
        if let Ok(table) = read(&binary()[..len]) {
            check(&table);
        }
    }

    #[test]
    fn garbled_tables(damage in prop::collection::vec((0..eh_frame().len(), any::<u8>()), 1..20)) {
        let mut bytes = binary().to_vec();
        for (at, value) in damage {
            bytes[eh_frame().start + at] = value;
        }
        if let Ok(table) = read(&bytes) {
            check(&table);
        }
    }

    #[test]
    fn garbled_headers(damage in prop::collection::vec((0..1024usize, any::<u8>()), 1..10)) {
        let mut bytes = binary().to_vec();
        for (at, value) in damage {
            bytes[at] = value;
        }
        if let Ok(table) = read(&bytes) {
            check(&table);
        }
    }
}
