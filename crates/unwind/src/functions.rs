//! A binary's functions in the order of their addresses, and the rows that they make.
//!
//! Where functions begin is kept, eight bytes for each. All else is read when its turn comes and handed on at once:
//! a large binary's rows take tens of megabytes.

use crate::frames::Frames;
use crate::go::Go;
use crate::{Error, Row, Rule};

/// Rows of one table at most: 30 times what libpython has.
const MAX_ROWS: usize = 8 << 20;

/// What says how to leave a function.
pub(crate) trait Source {
    /// Tells the function's rules, from its first byte on, in ascending order, of two at one address the later one.
    /// Returns its end. `None`: it cannot be read.
    fn rules(&mut self, place: Place, each: impl FnMut(u64, Rule)) -> Option<u64>;
}

/// What a binary has.
pub(crate) struct Binary {
    pub(crate) frames: Option<Frames>,
    pub(crate) go: Option<Go>,
}

impl Source for Binary {
    fn rules(&mut self, place: Place, each: impl FnMut(u64, Rule)) -> Option<u64> {
        match place.of_go() {
            Some(number) => self.go.as_ref()?.rules(number, each),
            None => self.frames.as_mut()?.rules(place.0 as usize, each),
        }
    }
}

/// Where a function is described: the offset of its entry in `.eh_frame`, or its number in Go's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u32);

impl Place {
    const GO: u32 = 1 << 31;

    pub(crate) fn in_eh_frame(offset: usize) -> Option<Self> {
        u32::try_from(offset).ok().filter(|offset| offset & Place::GO == 0).map(Place)
    }

    pub(crate) fn in_go(number: u32) -> Option<Self> {
        (number & Place::GO == 0).then_some(Place(number | Place::GO))
    }

    fn of_go(self) -> Option<u32> {
        (self.0 & Place::GO != 0).then_some(self.0 & !Place::GO)
    }
}

/// Functions as they are found, in any order.
pub(crate) struct List {
    /// The lowest address of code.
    low: u64,
    functions: Vec<(u32, Place)>,
}

impl List {
    pub(crate) fn new(low: u64) -> Self {
        List { low, functions: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Where a function begins, in the order that they are in by now.
    fn get(&self, at: usize) -> Option<(u64, Place)> {
        self.functions.get(at).map(|&(start, place)| (self.low + u64::from(start), place))
    }

    /// Adds the function that begins there.
    pub(crate) fn add(&mut self, start: u64, place: Option<Place>) -> Result<(), Error> {
        let start = u32::try_from(start.wrapping_sub(self.low)).map_err(|_| Error::TooWide)?;
        self.functions.push((start, place.ok_or(Error::TooWide)?));
        Ok(())
    }
}

/// All functions of a binary, to be read one after another.
pub struct Functions(Ordered<Binary>);

impl Functions {
    pub(crate) fn new(binary: Binary, list: List) -> Result<Self, Error> {
        Ordered::new(binary, list)?.map(Functions).ok_or(Error::NoTable)
    }

    /// The virtual address, as the file has it, of the first function.
    pub fn base(&self) -> u64 {
        self.0.base
    }

    /// The bytes from there that the rows speak of: what the last row's `pc` is.
    pub fn span(&self) -> u32 {
        (self.0.end - self.0.base) as u32
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.list.functions.len()
    }

    /// Reads on, so many functions at the most, and hands out their rows: neighbouring rows differ, the first is
    /// at 0, the last one is a [`Rule::Gap`]. Says whether there are more functions.
    ///
    /// # Errors
    /// If there are more rows than are worth keeping.
    pub fn read(&mut self, functions: usize, each: impl FnMut(Row)) -> Result<bool, Error> {
        self.0.read(functions, each)
    }
}

/// Functions in the order of their addresses.
struct Ordered<S> {
    source: S,
    list: List,
    base: u64,
    end: u64,
    /// The next to be read.
    next: usize,
    /// Where those end that were read.
    until: u64,
    rows: Rows,
}

impl<S: Source> Ordered<S> {
    /// `None`: there is no function.
    fn new(mut source: S, mut list: List) -> Result<Option<Self>, Error> {
        // Of two that begin at one address the one that was found later counts.
        list.functions.sort_by_key(|&(start, _)| start);
        let (Some(&(first, _)), Some(&(_, last))) = (list.functions.first(), list.functions.last())
        else {
            return Ok(None);
        };
        let base = list.low + u64::from(first);
        // All others end where the next one begins, at the latest.
        let Some(end) = source.rules(last, |_, _| {}) else { return Ok(None) };
        let end = end.max(base);
        if end - base > u64::from(u32::MAX) {
            return Err(Error::TooWide);
        }
        let rows = Rows::default();
        Ok(Some(Ordered { source, list, base, end, next: 0, until: base, rows }))
    }

    fn read(&mut self, functions: usize, mut each: impl FnMut(Row)) -> Result<bool, Error> {
        let (base, last) = (self.base, self.end);
        let pc = |address: u64| (address - base) as u32;
        let stop = self.next.saturating_add(functions).min(self.list.functions.len());
        for at in self.next..stop {
            let (start, place) = self.list.get(at).unwrap_or((last, Place(0)));
            if start > self.until {
                self.rows.push(Row { pc: pc(self.until), rule: Rule::Gap }, &mut each);
            }
            // Where two speak of one address, the one that begins later is the more precise.
            let next = self.list.get(at + 1).map_or(last, |(next, _)| next);
            let rows = &mut self.rows;
            let end = self.source.rules(place, |address, rule| {
                if (start..next).contains(&address) {
                    rows.push(Row { pc: pc(address), rule }, &mut each);
                }
            });
            // Every function could be read when it was listed; but files change.
            self.until = self.until.max(end.unwrap_or(start).min(next));
            if self.rows.count > MAX_ROWS {
                return Err(Error::TooManyRows { limit: MAX_ROWS });
            }
        }
        self.next = stop;
        let more = stop < self.list.functions.len();
        if !more {
            self.rows.push(Row { pc: pc(self.until), rule: Rule::Gap }, &mut each);
            self.rows.finish(&mut each);
        }
        Ok(more)
    }
}

/// Hands rows on, but those that say the same as the one before; of two at one address the later counts.
#[derive(Debug, Default)]
struct Rows {
    /// Of the last that was handed on.
    told: Option<Rule>,
    /// There may be another one at its address.
    held: Option<Row>,
    count: usize,
}

impl Rows {
    fn push(&mut self, row: Row, each: &mut impl FnMut(Row)) {
        if self.held.is_some_and(|held| held.pc >= row.pc) {
            self.held = None;
        }
        if self.held.map(|held| held.rule).or(self.told) == Some(row.rule) {
            return;
        }
        self.finish(each);
        self.held = Some(row);
    }

    fn finish(&mut self, each: &mut impl FnMut(Row)) {
        let Some(held) = self.held.take() else { return };
        self.told = Some(held.rule);
        self.count += 1;
        if self.count <= MAX_ROWS {
            each(held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cfa, Coverage, Rbp, Table};

    fn rsp(offset: i32) -> Rule {
        Rule::Frame { cfa: Cfa::Rsp(offset), rbp: Rbp::Same }
    }

    /// Start, end, and rules.
    type Listed = (u64, u64, Vec<(u64, Rule)>);

    impl Source for &[Listed] {
        fn rules(&mut self, place: Place, mut each: impl FnMut(u64, Rule)) -> Option<u64> {
            let (_, end, rules) = &self[place.0 as usize];
            rules.iter().for_each(|&(address, rule)| each(address, rule));
            Some(*end)
        }
    }

    /// Read so many functions at once.
    fn table(functions: &[Listed], at_once: usize) -> Table {
        let mut list = List::new(0x800);
        for (number, (start, ..)) in functions.iter().enumerate() {
            list.add(*start, Place::in_eh_frame(number)).unwrap();
        }
        let mut ordered = Ordered::new(functions, list).unwrap().unwrap();
        let mut rows = Vec::new();
        while ordered.read(at_once, |row| rows.push(row)).unwrap() {}
        let table = Table { base: ordered.base, rows };
        assert_eq!(u64::from(table.span()), ordered.end - ordered.base);
        table
    }

    #[test]
    fn rows_that_say_the_same_are_one() {
        let functions: [Listed; 2] = [
            (0x1000, 0x1010, vec![(0x1000, rsp(8)), (0x1004, rsp(16)), (0x1008, rsp(8))]),
            (0x1010, 0x1020, vec![(0x1010, rsp(8)), (0x1018, rsp(8))]),
        ];
        for at_once in [1, 2] {
            let table = table(&functions, at_once);
            let pcs: Vec<_> = table.rows.iter().map(|row| (row.pc, row.rule)).collect();
            let expected = [(0, rsp(8)), (4, rsp(16)), (8, rsp(8)), (0x20, Rule::Gap)];
            assert_eq!((table.base, pcs.as_slice()), (0x1000, &expected[..]));
            assert_eq!(table.span(), 0x20);
        }
    }

    #[test]
    fn between_functions_is_a_gap() {
        let functions: [Listed; 2] = [
            (0x2000, 0x2010, vec![(0x2000, rsp(8))]),
            (0x1000, 0x1010, vec![(0x1000, rsp(8)), (0x1004, Rule::Unsupported)]),
        ];
        let table = table(&functions, 1);
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
        let functions: [Listed; 2] = [
            (0x1000, 0x1020, vec![(0x1000, rsp(8)), (0x1018, rsp(32))]),
            (0x1010, 0x1020, vec![(0x1010, rsp(16))]),
        ];
        let table = table(&functions, 2);
        assert_eq!(table.rule(0x100f), rsp(8));
        assert_eq!(table.rule(0x1010), rsp(16));
        assert_eq!(table.rule(0x101f), rsp(16));
    }

    #[test]
    fn of_rows_at_one_address_the_last_one_counts() {
        let functions: [Listed; 2] = [
            (0x1000, 0x1010, vec![(0x1000, rsp(8)), (0x1004, rsp(16)), (0x1004, rsp(8))]),
            // Its last row is where it ends, and the next function begins.
            (0x1010, 0x1020, vec![(0x1010, rsp(24)), (0x1020, rsp(48))]),
        ];
        let table = table(&functions, 1);
        let pcs: Vec<_> = table.rows.iter().map(|row| (row.pc, row.rule)).collect();
        assert_eq!(pcs, [(0, rsp(8)), (0x10, rsp(24)), (0x20, Rule::Gap)]);
    }
}
