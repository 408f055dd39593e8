//! A binary's rules in the order of its addresses.

use std::collections::HashMap;

use crate::Rule;

/// From this address on, up to the next row's, this rule holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Bytes from the table's [`base`](Table::base).
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

/// Rows in the order of their addresses. A large binary has millions of them, but a few hundred different rules:
/// each is kept once.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// Where each begins, and its rule's number.
    starts: Vec<(u32, u32)>,
    rules: Vec<Rule>,
}

impl Rows {
    /// How many.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The row with this number.
    pub fn get(&self, at: usize) -> Option<Row> {
        self.starts.get(at).map(|start| self.row(start))
    }

    /// The last.
    pub fn last(&self) -> Option<Row> {
        self.starts.last().map(|start| self.row(start))
    }

    /// The one that holds at so many bytes from the table's base.
    pub fn at(&self, pc: u64) -> Option<Row> {
        let after = self.starts.partition_point(|&(start, _)| u64::from(start) <= pc);
        self.get(after.checked_sub(1)?)
    }

    /// One after another.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Row> {
        self.starts.iter().map(|start| self.row(start))
    }

    fn row(&self, &(pc, number): &(u32, u32)) -> Row {
        Row { pc, rule: self.rules[number as usize] }
    }
}

impl FromIterator<Row> for Rows {
    fn from_iter<I: IntoIterator<Item = Row>>(rows: I) -> Self {
        let mut rules = Rules::default();
        let starts = rows.into_iter().map(|row| (row.pc, rules.number(row.rule))).collect();
        Rows { starts, rules: rules.list }
    }
}

/// Each rule once, with its number.
#[derive(Debug, Default)]
struct Rules {
    list: Vec<Rule>,
    numbers: HashMap<Rule, u32>,
}

impl Rules {
    fn number(&mut self, rule: Rule) -> u32 {
        *self.numbers.entry(rule).or_insert_with(|| {
            self.list.push(rule);
            self.list.len() as u32 - 1
        })
    }
}

/// All rules of a binary. Neighbouring rows differ, and the last one is a [`Rule::Gap`].
#[derive(Clone, Debug)]
pub struct Table {
    /// The virtual address, as the file has it, of the first function.
    pub base: u64,
    /// Sorted by address. The first is at 0.
    pub rows: Rows,
}

impl Table {
    /// Puts functions in order: each is its address, its end, and its rows within.
    pub(crate) fn from_functions(mut functions: Functions) -> Option<Self> {
        functions.list.sort_by_key(|function| function.start);
        let base = functions.list.first()?.start;
        let gap = functions.rules.number(Rule::Gap);
        let mut starts = Vec::with_capacity(functions.rows.len() + functions.list.len());
        let mut end = base;
        for (index, function) in functions.list.iter().enumerate() {
            if function.start > end {
                push(&mut starts, base, end, gap);
            }
            // Where two speak of one address, the one that begins later is the more precise.
            let next = functions.list.get(index + 1).map_or(u64::MAX, |next| next.start);
            let until = function.end.min(next);
            for &(into, number) in &functions.rows[function.rows.clone()] {
                let pc = function.start + u64::from(into);
                if pc < until {
                    push(&mut starts, base, pc, number);
                }
            }
            end = end.max(until);
        }
        push(&mut starts, base, end, gap);
        Some(Table { base, rows: Rows { starts, rules: functions.rules.list } })
    }

    /// The bytes from `base` that the rows speak of.
    pub fn span(&self) -> u32 {
        self.rows.last().map_or(0, |row| row.pc)
    }

    /// The rule for a virtual address.
    pub fn rule(&self, address: u64) -> Rule {
        let row = address.checked_sub(self.base).and_then(|pc| self.rows.at(pc));
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

/// Rows that say the same as the one before are left out; of two at one address the later counts.
fn push(starts: &mut Vec<(u32, u32)>, base: u64, address: u64, number: u32) {
    // The caller has seen to it that the span is below 4 GiB.
    let pc = (address - base) as u32;
    if starts.last().is_some_and(|&(last, _)| last >= pc) {
        starts.pop();
    }
    if starts.last().is_none_or(|&(_, last)| last != number) {
        starts.push((pc, number));
    }
}

/// Functions as they were read, in any order.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    list: Vec<Function>,
    /// Bytes from the function's start, and the rule's number.
    rows: Vec<(u32, u32)>,
    rules: Rules,
}

#[derive(Debug)]
struct Function {
    start: u64,
    end: u64,
    rows: std::ops::Range<usize>,
}

impl Functions {
    /// Adds one. Its rows begin at its start and ascend.
    pub(crate) fn add(
        &mut self,
        start: u64,
        end: u64,
        rows: impl IntoIterator<Item = (u64, Rule)>,
    ) {
        let first = self.rows.len();
        let mut last = None;
        for (pc, rule) in rows {
            // A function of 4 GiB makes the whole table too wide.
            let Ok(into) = u32::try_from(pc - start) else { break };
            if last != Some(rule) {
                let number = self.rules.number(rule);
                self.rows.push((into, number));
                last = Some(rule);
            }
        }
        self.list.push(Function { start, end, rows: first..self.rows.len() });
    }

    /// The lowest and the highest address.
    pub(crate) fn span(&self) -> Option<(u64, u64)> {
        let low = self.list.iter().map(|function| function.start).min()?;
        let high = self.list.iter().map(|function| function.end).max()?;
        Some((low, high))
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cfa, Rbp};

    fn rsp(offset: i32) -> Rule {
        Rule::Frame { cfa: Cfa::Rsp(offset), rbp: Rbp::Same }
    }

    type Listed<'a> = (u64, u64, &'a [(u64, Rule)]);

    fn table(functions: &[Listed<'_>]) -> Table {
        let mut all = Functions::default();
        for (start, end, rows) in functions {
            all.add(*start, *end, rows.iter().copied());
        }
        Table::from_functions(all).unwrap()
    }

    #[test]
    fn rows_that_say_the_same_are_one() {
        let table = table(&[
            (0x1000, 0x1010, &[(0x1000, rsp(8)), (0x1004, rsp(16)), (0x1008, rsp(8))]),
            (0x1010, 0x1020, &[(0x1010, rsp(8)), (0x1018, rsp(8))]),
        ]);
        let pcs: Vec<_> = table.rows.iter().map(|row| (row.pc, row.rule)).collect();
        let expected = [(0, rsp(8)), (4, rsp(16)), (8, rsp(8)), (0x20, Rule::Gap)];
        assert_eq!((table.base, pcs.as_slice()), (0x1000, &expected[..]));
        assert_eq!(table.span(), 0x20);
    }

    #[test]
    fn between_functions_is_a_gap() {
        let table = table(&[
            (0x2000, 0x2010, &[(0x2000, rsp(8))]),
            (0x1000, 0x1010, &[(0x1000, rsp(8)), (0x1004, Rule::Unsupported)]),
        ]);
        assert_eq!(table.rule(0xfff), Rule::Gap);
        assert_eq!(table.rule(0x1003), rsp(8));
        assert_eq!(table.rule(0x100f), Rule::Unsupported);
        assert_eq!(table.rule(0x1010), Rule::Gap);
        assert_eq!(table.rule(0x2000), rsp(8));
        assert_eq!(table.rule(0x2010), Rule::Gap);
        assert_eq!(table.coverage(), Coverage { described: 0x20, supported: 0x14 });
    }

    #[test]
    fn where_two_overlap_the_later_one_counts() {
        let table = table(&[
            (0x1000, 0x1020, &[(0x1000, rsp(8)), (0x1018, rsp(32))]),
            (0x1010, 0x1020, &[(0x1010, rsp(16))]),
        ]);
        assert_eq!(table.rule(0x100f), rsp(8));
        assert_eq!(table.rule(0x1010), rsp(16));
        assert_eq!(table.rule(0x101f), rsp(16));
    }
}
