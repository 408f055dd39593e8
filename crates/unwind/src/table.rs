//! A binary's rules in the order of its addresses.

use crate::{Error, Functions, Rule};

/// From this address on, up to the next row's, this rule holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Bytes from the first function's first.
    pub pc: u32,
    /// How to leave a frame there.
    pub rule: Rule,
}

/// How much of a binary's code the rules can be followed in. In bytes of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// That `.eh_frame` speaks of.
    pub described: u64,
    /// Of these, that have a rule other than [`Rule::Unsupported`].
    pub supported: u64,
}

impl Coverage {
    /// The supported share, from 0 to 1.
    pub fn share(self) -> f64 {
        if self.described == 0 { 0.0 } else { self.supported as f64 / self.described as f64 }
    }
}

/// All rules of a binary, to look them up. Neighbouring rows differ, and the last one is a [`Rule::Gap`].
#[derive(Clone, Debug)]
pub struct Table {
    /// The virtual address, as the file has it, of the first function.
    pub base: u64,
    /// Sorted by address. The first is at 0.
    pub rows: Vec<Row>,
}

impl Table {
    /// Reads all of them.
    ///
    /// # Errors
    /// If there are too many.
    pub fn new(mut functions: Functions) -> Result<Self, Error> {
        let mut rows = Vec::new();
        while functions.read(usize::MAX, |row| rows.push(row))? {}
        Ok(Table { base: functions.base(), rows })
    }

    /// The bytes from `base` that the rows speak of.
    pub fn span(&self) -> u32 {
        self.rows.last().map_or(0, |row| row.pc)
    }

    /// The rule for a virtual address.
    pub fn rule(&self, address: u64) -> Rule {
        let Some(pc) = address.checked_sub(self.base) else { return Rule::Gap };
        let after = self.rows.partition_point(|row| u64::from(row.pc) <= pc);
        let row = after.checked_sub(1).and_then(|at| self.rows.get(at));
        row.map_or(Rule::Gap, |row| row.rule)
    }

    /// How much can be followed.
    pub fn coverage(&self) -> Coverage {
        let mut coverage = Coverage::default();
        for (row, next) in self.rows.iter().zip(self.rows.iter().skip(1)) {
            let bytes = u64::from(next.pc - row.pc);
            match row.rule {
                Rule::Gap => {}
                Rule::Unsupported => coverage.described += bytes,
                _ => {
                    coverage.described += bytes;
                    coverage.supported += bytes;
                }
            }
        }
        coverage
    }
}
