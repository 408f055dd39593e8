//! One executable or library: from its addresses to functions.

use std::fs::File;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};
use lru::LruCache;
use object::ReadCache;
use underspan_model::{Frame, FrameKind};

use crate::debug_file::DebugFiles;
use crate::evaluator;
use crate::function_name::plain;
use crate::gopclntab::GoTable;
use crate::image::{Image, Segment, virtual_address};

/// Addresses remembered per binary.
const ADDRESSES: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// DWARF of larger files is not read: it would take seconds and more memory than the agent may use.
const MAX_DWARF: u64 = 512 << 20;

/// What is at an address.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    /// The innermost first: functions that were inlined, then the one they were inlined into.
    pub(crate) frames: Rc<[Frame]>,
    /// It lies in CPython's evaluator.
    pub(crate) evaluator: bool,
    /// A symbol was found.
    pub(crate) known: bool,
}

/// An open binary.
pub(crate) struct Binary {
    file: File,
    segments: Vec<Segment>,
    build_id: Option<Vec<u8>>,
    evaluator: Vec<Range<u64>>,
    go: Option<GoTable>,
    symbolizer: Symbolizer,
    /// Where symbols are looked for, the best first.
    sources: Vec<Source<'static>>,
    named: LruCache<u64, Named>,
}

impl Binary {
    /// `None` for what is no 64-bit ELF file. `root` is the root directory of a process that runs it,
    /// where its debug file may be.
    pub(crate) fn new(file: File, debug: &DebugFiles, root: Option<&Path>) -> Option<Self> {
        let cache = ReadCache::new(&file);
        let image = Image::parse(&cache)?;
        let build_id = image.build_id();
        let apart = build_id.as_deref().and_then(|id| debug.find(id, root));
        let go = GoTable::read(&file, &image);
        let (segments, evaluator) = (image.segments(), evaluator::ranges(&image));
        // The descriptor outlives the process that ran the file, and the file's name.
        let own = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let sources = apart.into_iter().chain([own]).map(source).collect();
        Some(Binary {
            segments,
            build_id,
            evaluator,
            go,
            symbolizer: Symbolizer::builder().enable_auto_reload(false).build(),
            sources,
            named: LruCache::new(ADDRESSES),
            file,
        })
    }

    pub(crate) fn build_id(&self) -> Option<&[u8]> {
        self.build_id.as_deref()
    }

    /// Whether CPython is in it.
    pub(crate) fn is_interpreter(&self) -> bool {
        !self.evaluator.is_empty()
    }

    /// Names the instruction at an offset in the file.
    pub(crate) fn name(&mut self, offset: u64, module: &str) -> Named {
        let Some(address) = virtual_address(&self.segments, offset) else {
            return unknown(offset, module);
        };
        if let Some(named) = self.named.get(&address) {
            return named.clone();
        }
        let named = self.look_up(address, module);
        self.named.put(address, named.clone());
        named
    }

    fn look_up(&mut self, address: u64, module: &str) -> Named {
        let evaluator = self.evaluator.iter().any(|range| range.contains(&address));
        let frames = self.symbol(address, module).or_else(|| {
            let name = self.go.as_ref()?.find(&self.file, address)?;
            Some(vec![frame(&name, None, module)])
        });
        match frames {
            Some(frames) => Named { frames: frames.into(), evaluator, known: true },
            None if evaluator => {
                let frames = [frame(evaluator::NAME, None, module)];
                Named { frames: frames.into(), evaluator, known: true }
            }
            None => unknown(address, module),
        }
    }

    fn symbol(&mut self, address: u64, module: &str) -> Option<Vec<Frame>> {
        let Binary { symbolizer, sources, .. } = self;
        let mut panicked = None;
        let found = sources.iter().enumerate().find_map(|(index, source)| {
            // Files come from containers, too, and can be anything: a bug that one of them meets in
            // the reader must not take all the others' names.
            let look = || symbolizer.symbolize_single(source, Input::VirtOffset(address));
            match catch_unwind(AssertUnwindSafe(look)) {
                Ok(Ok(Symbolized::Sym(symbol))) => Some(frames(&symbol, module)),
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
        if let Some(index) = panicked {
            tracing::warn!(module, "its symbols cannot be read: the file is damaged");
            sources.remove(index);
            *symbolizer = Symbolizer::builder().enable_auto_reload(false).build();
        }
        found
    }
}

fn source(path: PathBuf) -> Source<'static> {
    let mut elf = Elf::new(&path);
    elf.debug_syms = std::fs::metadata(&path).is_ok_and(|file| file.len() <= MAX_DWARF);
    Source::Elf(elf)
}

fn frames(symbol: &Sym<'_>, module: &str) -> Vec<Frame> {
    let inlined = symbol.inlined.iter().rev();
    let inlined = inlined.map(|inner| frame(&inner.name, inner.code_info.as_ref(), module));
    inlined.chain([frame(&symbol.name, symbol.code_info.as_deref(), module)]).collect()
}

fn frame(name: &str, code: Option<&CodeInfo<'_>>, module: &str) -> Frame {
    Frame {
        kind: FrameKind::Native,
        function: plain(name).to_owned(),
        file: code.map(|code| code.to_path().display().to_string()).unwrap_or_default(),
        line: code.and_then(|code| code.line).unwrap_or(0),
        module: module.to_owned(),
    }
}

/// The address is the file's own, so that it is the same in every process.
fn unknown(address: u64, module: &str) -> Named {
    let frame = frame(&format!("{address:#x}"), None, module);
    Named { frames: [frame].into(), evaluator: false, known: false }
}

#[cfg(test)]
mod tests;
