//! The kernel's symbols, from `/proc/kallsyms`.
//!
//! The kernel hides the addresses from readers without `CAP_SYSLOG`, and decides that when the file
//! is opened. So it is opened while the agent is still root and kept open: it can then be read at any
//! time, also again when modules were loaded or BPF programs attached.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Seek as _, SeekFrom};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Addresses beyond what was read make the file be read again, not more often than this.
const READ_AGAIN: Duration = Duration::from_secs(30);
/// A function this far away is not where the address belongs.
const LONGEST: u64 = 1 << 20;

/// The kernel's functions.
#[derive(Debug)]
pub struct Kallsyms {
    file: File,
    read: Option<Instant>,
    table: Table,
}

/// A kernel function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelSymbol {
    pub(crate) function: String,
    /// `[kernel]`, or the module.
    pub(crate) module: Arc<str>,
}

/// Sorted by address. Names lie one after another in `names`: a kernel has 100,000 of them.
#[derive(Debug, Default)]
struct Table {
    symbols: Vec<Symbol>,
    names: String,
    modules: Vec<Arc<str>>,
}

#[derive(Clone, Copy, Debug)]
struct Symbol {
    address: u64,
    name: u32,
    len: u16,
    module: u16,
}

impl Kallsyms {
    /// Opens the file; it is read when the first address is looked up. Call it with the privileges
    /// that the addresses need.
    ///
    /// # Errors
    /// If the kernel was built without the file.
    pub fn open() -> io::Result<Self> {
        let file = File::open("/proc/kallsyms")?;
        Ok(Kallsyms { file, read: None, table: Table::default() })
    }

    /// The function that an address lies in.
    pub(crate) fn find(&mut self, address: u64) -> Option<KernelSymbol> {
        if self.read.is_none() {
            self.read_file();
        }
        let found = self.table.find(address);
        if found.is_none() && self.read.is_some_and(|read| read.elapsed() >= READ_AGAIN) {
            self.read_file();
            return self.table.find(address);
        }
        found
    }

    fn read_file(&mut self) {
        self.read = Some(Instant::now());
        let table = self.file.seek(SeekFrom::Start(0)).and_then(|_| Table::read(&self.file));
        match table {
            Ok(table) if table.symbols.is_empty() => {
                tracing::warn!(
                    "kernel functions have no names: /proc/kallsyms hides its addresses"
                );
            }
            Ok(table) => self.table = table,
            Err(error) => tracing::warn!("kernel functions have no names: /proc/kallsyms: {error}"),
        }
    }
}

impl Table {
    fn read(file: impl Read) -> io::Result<Self> {
        let mut table = Table { modules: vec!["[kernel]".into()], ..Table::default() };
        let mut lines = BufReader::with_capacity(1 << 16, file);
        let mut line = String::new();
        while lines.read_line(&mut line)? > 0 {
            table.add(&line);
            line.clear();
        }
        table.symbols.sort_by_key(|symbol| symbol.address);
        table.symbols.shrink_to_fit();
        table.names.shrink_to_fit();
        Ok(table)
    }

    /// `address type name [module]`. Data and hidden addresses are left out.
    fn add(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_ascii_whitespace();
        let address =
            u64::from_str_radix(words.next()?, 16).ok().filter(|address| *address != 0)?;
        let kind = words.next()?;
        let name = words.next()?;
        if !matches!(kind, "t" | "T" | "w" | "W") {
            return None;
        }
        let module = match words.next() {
            None => 0,
            Some(module) => self.module(module.trim_matches(['[', ']']))?,
        };
        let symbol = Symbol {
            address,
            name: u32::try_from(self.names.len()).ok()?,
            len: u16::try_from(name.len()).ok()?,
            module,
        };
        self.names.push_str(name);
        self.symbols.push(symbol);
        Some(())
    }

    /// Symbols of a module follow each other, so the search from the end is short.
    fn module(&mut self, name: &str) -> Option<u16> {
        let known = self.modules.iter().rposition(|module| **module == *name);
        let index = known.unwrap_or_else(|| {
            self.modules.push(name.into());
            self.modules.len() - 1
        });
        u16::try_from(index).ok()
    }

    fn find(&self, address: u64) -> Option<KernelSymbol> {
        let after = self.symbols.partition_point(|symbol| symbol.address <= address);
        let until = self.symbols.get(..after)?;
        let start = until.last()?.address;
        if address - start >= LONGEST {
            return None;
        }
        // Of several names for one place the first is the function's; the others are aliases.
        let symbol = until.iter().rev().take_while(|symbol| symbol.address == start).last()?;
        let start = symbol.name as usize;
        Some(KernelSymbol {
            function: self.names.get(start..start + usize::from(symbol.len))?.to_owned(),
            module: Arc::clone(self.modules.get(usize::from(symbol.module))?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
ffffffff81000000 T _text
ffffffff81000000 T startup_64
ffffffff81000100 t do_work
ffffffff81000180 d some_data
ffffffffc0000000 t helper\t[tcp_bbr]
ffffffffc0001000 t bpf_prog_12ab_probe\t[bpf]
0000000000000000 T hidden
";

    fn function(table: &Table, address: u64) -> Option<(String, String)> {
        table.find(address).map(|found| (found.function, found.module.to_string()))
    }

    #[test]
    fn functions_and_modules() {
        let table = Table::read(TEXT.as_bytes()).unwrap();
        let pair = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(function(&table, 0xffff_ffff_8100_0050), pair("_text", "[kernel]"));
        assert_eq!(function(&table, 0xffff_ffff_8100_01ff), pair("do_work", "[kernel]"));
        assert_eq!(function(&table, 0xffff_ffff_c000_0001), pair("helper", "tcp_bbr"));
        assert_eq!(function(&table, 0xffff_ffff_c000_1004), pair("bpf_prog_12ab_probe", "bpf"));
        assert_eq!(function(&table, 0xffff_ffff_d000_0000), None);
        assert_eq!(function(&table, 0x1000), None);
    }

    #[test]
    fn this_kernel() {
        let mut kallsyms = Kallsyms::open().unwrap();
        let text = std::fs::read_to_string("/proc/kallsyms").unwrap();
        let line = text.lines().find(|line| line.ends_with(" T schedule")).unwrap();
        let address = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
        if address == 0 {
            eprintln!("skipped: addresses are hidden from this user");
            return;
        }
        assert_eq!(kallsyms.find(address + 4).unwrap().function, "schedule");
    }
}
