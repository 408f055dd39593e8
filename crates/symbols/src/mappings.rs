//! A process's executable mappings, from `/proc/PID/maps`.

use std::fs;
use std::io;
use std::sync::Arc;

/// What is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mapped {
    /// A file: its path as the process sees it, without the ` (deleted)` that the kernel appends.
    File(Arc<str>),
    /// The kernel's library in every process.
    Vdso,
    /// Memory without a file: what a JIT compiler made.
    Anonymous,
}

/// One executable mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Of its first byte in the file.
    pub(crate) offset: u64,
    pub(crate) mapped: Mapped,
}

/// All of them, in address order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mappings(Vec<Mapping>);

impl Mappings {
    /// Reads them. Takes some 100 µs for a process with a hundred libraries.
    pub(crate) fn read(pid: u32) -> io::Result<Self> {
        let text = fs::read(format!("/proc/{pid}/maps"))?;
        Ok(Mappings::parse(&String::from_utf8_lossy(&text)))
    }

    fn parse(text: &str) -> Self {
        Mappings(text.lines().filter_map(parse_line).collect())
    }

    /// The mapping that the address lies in.
    pub(crate) fn find(&self, address: u64) -> Option<&Mapping> {
        let after = self.0.partition_point(|mapping| mapping.start <= address);
        self.0.get(after.checked_sub(1)?).filter(|mapping| address < mapping.end)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Mapping> {
        self.0.iter()
    }
}

/// `start-end perms offset dev inode path`
fn parse_line(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        let (word, tail) = rest.trim_start().split_once(' ')?;
        rest = tail;
        Some(word)
    };
    let (start, end) = field()?.split_once('-')?;
    let executable = field()?.as_bytes().get(2) == Some(&b'x');
    let offset = field()?;
    let _device = field()?;
    let _inode = field()?;
    let path = rest.trim_start();
    let mapped = match path {
        "[vdso]" => Mapped::Vdso,
        _ if path.starts_with('/') && !is_memory(path) => {
            Mapped::File(path.strip_suffix(" (deleted)").unwrap_or(path).into())
        }
        "[vsyscall]" => return None,
        _ => Mapped::Anonymous,
    };
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    let mapping = Mapping { start: hex(start)?, end: hex(end)?, offset: hex(offset)?, mapped };
    executable.then_some(mapping)
}

/// JIT compilers that map their code twice (.NET, LuaJIT, ...) do so through files without a place.
fn is_memory(path: &str) -> bool {
    ["/memfd:", "/dev/zero", "/SYSV"].iter().any(|prefix| path.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
5600-5700 r--p 00000000 fe:00 12 /usr/bin/a b
5700-5900 r-xp 00000100 fe:00 12 /usr/bin/a b
5900-5a00 r-xp 00000000 fe:00 13 /usr/lib/x.so (deleted)
7000-7100 rwxp 00000000 00:00 0 
7100-7200 rw-p 00000000 00:00 0 [heap]
7200-7300 rwxs 00000000 00:01 9 /memfd:doublemapper (deleted)
7f00-7f10 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    #[test]
    fn executable_mappings_only() {
        let mappings = Mappings::parse(MAPS);
        assert_eq!(mappings.iter().count(), 5);
        assert_eq!(mappings.find(0x5650), None);
        let mapping = mappings.find(0x5700).unwrap();
        assert_eq!(
            (mapping.offset, &mapping.mapped),
            (0x100, &Mapped::File("/usr/bin/a b".into()))
        );
        assert_eq!(mappings.find(0x59ff).unwrap().mapped, Mapped::File("/usr/lib/x.so".into()));
        assert_eq!(mappings.find(0x5a00), None);
        assert_eq!(mappings.find(0x7000).unwrap().mapped, Mapped::Anonymous);
        assert_eq!(mappings.find(0x7250).unwrap().mapped, Mapped::Anonymous);
        assert_eq!(mappings.find(0x7f08).unwrap().mapped, Mapped::Vdso);
        assert_eq!(mappings.find(0), None);
    }

    #[test]
    fn our_own() {
        let here = our_own as *const () as u64;
        let mappings = Mappings::read(std::process::id()).unwrap();
        let exe = std::env::current_exe().unwrap();
        let path: Arc<str> = exe.to_str().unwrap().into();
        assert_eq!(mappings.find(here).unwrap().mapped, Mapped::File(path));
    }
}
