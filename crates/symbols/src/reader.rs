//! What reads a binary's symbols and DWARF. It maps whole files, and what it parses of them takes memory of
//! the order of their size: both are given back as soon as there is nothing to look up.

use std::fs;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Sym, Symbolized, Symbolizer};

/// DWARF of larger files is not read: it would take seconds and more memory than the agent may use.
const MAX_DWARF: u64 = 512 << 20;

/// Where a binary's symbols are, the best first.
pub(crate) struct Sources(Vec<Source<'static>>);

impl Sources {
    /// In `apart`, its debug file, and in itself. It stays open: the descriptor outlives the process that
    /// ran the file, and the file's name.
    pub(crate) fn new(file: &File, apart: Option<PathBuf>) -> Self {
        let own = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Sources(apart.into_iter().chain([own]).map(source).collect())
    }

    /// Symbols only. Says whether there was more.
    pub(crate) fn leave_dwarf_out(&mut self) -> bool {
        let mut any = false;
        for source in &mut self.0 {
            if let Source::Elf(elf) = source {
                any |= std::mem::take(&mut elf.debug_syms);
            }
        }
        any
    }
}

fn source(path: PathBuf) -> Source<'static> {
    let mut elf = Elf::new(&path);
    elf.debug_syms = fs::metadata(&path).is_ok_and(|file| file.len() <= MAX_DWARF);
    Source::Elf(elf)
}

/// Whoever maps or unmaps a file has it, and whoever needs one to stay where it is mapped. In the agent
/// nobody ever waits for it: one thread does all that.
static MAPPING: Mutex<()> = Mutex::new(());

/// Files mapped, and what was found in them.
pub(crate) struct Reader {
    /// Always there, until it is dropped.
    symbolizer: Option<Symbolizer>,
}

impl Reader {
    /// Opens nothing yet.
    pub(crate) fn new() -> Self {
        let symbolizer = Symbolizer::builder().enable_auto_reload(false).build();
        Reader { symbolizer: Some(symbolizer) }
    }

    /// The first source's answer that has one. `None`: there is no symbol. A source that cannot be read
    /// is taken out.
    pub(crate) fn find<T>(
        &mut self,
        sources: &mut Sources,
        address: u64,
        module: &str,
        found: impl Fn(&Sym<'_>) -> T,
    ) -> Option<T> {
        let mut panicked = None;
        let symbolizer = self.symbolizer.as_ref()?;
        let held = MAPPING.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = sources.0.iter().enumerate().find_map(|(index, source)| {
            // Files come from containers, too, and can be anything: a bug that one of them meets in
            // the reader must not take all the others' names.
            let look = || symbolizer.symbolize_single(source, Input::VirtOffset(address));
            match catch_unwind(AssertUnwindSafe(look)) {
                Ok(Ok(Symbolized::Sym(symbol))) => Some(found(&symbol)),
                Ok(Ok(Symbolized::Unknown(_))) => None,
                Ok(Err(error)) => {
                    tracing::debug!(module, "no symbol: {error}");
                    None
                }
                Err(_) => {
                    panicked = Some(index);
                    None
                }
            }
        });
        drop(held);
        if let Some(index) = panicked {
            tracing::warn!(module, "its symbols cannot be read: the file is damaged");
            sources.0.remove(index);
            *self = Reader::new();
        }
        answer
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _held = MAPPING.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.symbolizer.take());
    }
}

/// Lets go of the pages of these files. They stay in the page cache, and come back when they are read again:
/// a look-up needs few of them, opening touches most.
pub(crate) fn let_go<'s>(sources: impl Iterator<Item = &'s Sources>) {
    let _held = MAPPING.lock().unwrap_or_else(PoisonError::into_inner);
    let files: Vec<_> = sources.flat_map(|sources| &sources.0).filter_map(file).collect();
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else { return };
    for range in maps.lines().filter_map(|line| whole(line, &files)) {
        // SAFETY: a whole file, mapped shared and read-only by a symbolizer, and none unmaps one
        // meanwhile. Nothing in it was ever changed, so nothing is lost.
        unsafe {
            libc::madvise(range.start as *mut _, range.len(), libc::MADV_DONTNEED);
        }
    }
}

/// Gives freed memory back: by default glibc keeps what lies below something that is still in use.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: touches only what nobody uses.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// A source's path as the kernel tells it, and its length.
fn file(source: &Source<'_>) -> Option<(PathBuf, usize)> {
    let Source::Elf(Elf { path, .. }) = source else { return None };
    let len = usize::try_from(fs::metadata(path).ok()?.len()).ok()?;
    // Not fs::canonicalize(): a deleted file has a name, too.
    let path =
        if path.starts_with("/proc/self/fd") { fs::read_link(path) } else { path.canonicalize() };
    Some((path.ok()?, len))
}

/// The range of a line of `/proc/self/maps`, if it is one of the files as a whole and shared, as nobody but
/// symbolizers maps them: `start-end perms offset dev inode path`.
fn whole(line: &str, files: &[(PathBuf, usize)]) -> Option<Range<usize>> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let hex = |digits| usize::from_str_radix(digits, 16).ok();
    let (start, end) = (hex(start)?, hex(end)?);
    let rest = rest.strip_prefix("r--s 00000000 ")?;
    let path = Path::new(&rest[rest.find('/')?..]);
    let is_whole = |len: usize| len <= end - start && end - start - len < (1 << 16);
    files.iter().any(|(file, len)| file == path && is_whole(*len)).then_some(start..end)
}
