//! From an instruction to its line: three formats, by version. Garbage in gives some line out, in
//! time proportional to its length.

/// How a table tells lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// 3.8 and 3.9: pairs of (bytes to go, lines to add).
    Lnotab,
    /// 3.10: pairs of (length in bytes, lines to add before it).
    Linetable,
    /// 3.11 on: entries of varying length.
    Locations,
}

/// From a table to runs of instructions.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// First byte of the run, and its line.
    runs: Vec<(u32, u32)>,
}

impl Lines {
    pub(super) fn new(format: Format, table: &[u8], first: i32) -> Self {
        let mut lines = Builder { runs: Vec::new(), at: 0, line: first };
        match format {
            Format::Lnotab => lines.lnotab(table),
            Format::Linetable => lines.linetable(table),
            Format::Locations => lines.locations(table),
        }
        Lines { runs: lines.runs }
    }

    /// The line of the instruction at this byte. Instructions that no line made have that of those
    /// before them. `None`: the table has none for it.
    pub(super) fn line(&self, lasti: u32) -> Option<u32> {
        let after = self.runs.partition_point(|&(start, _)| start <= lasti);
        after.checked_sub(1).and_then(|run| self.runs.get(run)).map(|&(_, line)| line)
    }
}

struct Builder {
    runs: Vec<(u32, u32)>,
    at: u32,
    line: i32,
}

impl Builder {
    /// A run with the current line begins here.
    fn run(&mut self) {
        let line = self.line.max(0) as u32;
        match self.runs.last_mut() {
            Some((start, last)) if *start == self.at => *last = line,
            Some((_, last)) if *last == line => {}
            _ => self.runs.push((self.at, line)),
        }
    }

    fn lnotab(&mut self, table: &[u8]) {
        self.run();
        let (pairs, _) = table.as_chunks::<2>();
        for &[bytes, lines] in pairs {
            self.at = self.at.saturating_add(bytes.into());
            self.line = self.line.saturating_add((lines as i8).into());
            self.run();
        }
    }

    fn linetable(&mut self, table: &[u8]) {
        const NO_LINE: i8 = -128;
        let (pairs, _) = table.as_chunks::<2>();
        for &[bytes, lines] in pairs {
            if lines as i8 != NO_LINE {
                self.line = self.line.saturating_add((lines as i8).into());
                if bytes > 0 {
                    self.run();
                }
            }
            self.at = self.at.saturating_add(bytes.into());
        }
    }

    /// `Objects/locations.md` in CPython's sources.
    fn locations(&mut self, table: &[u8]) {
        let mut rest = table;
        while let Some((&head, tail)) = rest.split_first() {
            let units = u32::from(head & 7) + 1;
            let payload = tail.iter().position(|byte| byte & 0x80 != 0).unwrap_or(tail.len());
            let (payload, next) = tail.split_at(payload);
            rest = next;
            let kind = head >> 3 & 15;
            let lines = match kind {
                // Without a line, then columns in the same line.
                15 | 0..=9 => 0,
                10..=12 => i32::from(kind) - 10,
                _ => signed_varint(payload),
            };
            self.line = self.line.saturating_add(lines);
            if kind != 15 {
                self.run();
            }
            self.at = self.at.saturating_add(units * 2);
        }
    }
}

/// Six bits a byte, the lowest first; the sign is the lowest bit.
fn signed_varint(bytes: &[u8]) -> i32 {
    let mut value = 0u32;
    for (index, byte) in bytes.iter().take(6).enumerate() {
        value |= u32::from(byte & 63).checked_shl(6 * index as u32).unwrap_or(0);
        if byte & 64 == 0 {
            break;
        }
    }
    let magnitude = (value >> 1) as i32;
    if value & 1 == 1 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(format: Format, table: &[u8], first: i32, at: &[u32]) -> Vec<Option<u32>> {
        let lines = Lines::new(format, table, first);
        at.iter().map(|&at| lines.line(at)).collect()
    }

    #[test]
    fn lnotab_of_3_8() {
        // Lines may go back: -2 is 254.
        let table = [0, 1, 8, 3, 4, 254, 2, 0];
        let found = lines(Format::Lnotab, &table, 10, &[0, 7, 8, 11, 12, 100]);
        assert_eq!(found, [11, 11, 14, 14, 12, 12].map(Some));
    }

    #[test]
    fn linetable_of_3_10() {
        // A jump over more than 127 lines takes an entry of length 0; -128 has no line.
        let table = [4, 1, 0, 127, 2, 100, 2, 128, 6, 255];
        let found = lines(Format::Linetable, &table, 1, &[0, 3, 4, 6, 8, 13]);
        assert_eq!(found, [2, 2, 229, 229, 228, 228].map(Some));
    }

    #[test]
    fn locations_of_3_11() {
        // RESUME; one line on, with columns; without a location; 70 lines back, without columns.
        let table = [0x80, 0x00, 0x80 | 11 << 3 | 1, 4, 9, 0x80 | 15 << 3, 0x80 | 13 << 3, 0x4d, 2];
        let found = lines(Format::Locations, &table, 100, &[0, 2, 5, 6, 8]);
        assert_eq!(found, [100, 101, 101, 101, 31].map(Some));
    }

    #[test]
    fn an_empty_table_says_nothing() {
        assert_eq!(lines(Format::Locations, &[], 5, &[0]), [None]);
        assert_eq!(lines(Format::Linetable, &[], 5, &[0]), [None]);
        assert_eq!(lines(Format::Lnotab, &[], 5, &[0]), [Some(5)]);
    }

    proptest! {
        #[test]
        fn garbage_is_read_to_its_end(
            table in proptest::collection::vec(any::<u8>(), 0..4096),
            first in any::<i32>(),
            at in any::<u32>(),
        ) {
            for format in [Format::Lnotab, Format::Linetable, Format::Locations] {
                let lines = Lines::new(format, &table, first);
                prop_assert!(lines.runs.len() <= table.len() + 1);
                prop_assert!(lines.runs.is_sorted_by_key(|&(start, _)| start));
                let _ = lines.line(at);
            }
        }
    }
}
