//! One executable or library: from its addresses to functions.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use blazesym::symbolize::{CodeInfo, Sym};
use lru::LruCache;
use object::ReadCache;
use underspan_model::{Frame, FrameKind};

use crate::debug_file::DebugFiles;
use crate::evaluator;
use crate::function_name::plain;
use crate::gopclntab::GoTable;
use crate::image::{Image, Segment, virtual_address};
use crate::reader::{Reader, Sources};

/// Addresses remembered per binary.
const ADDRESSES: usize = 4096;

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
    sources: Sources,
    /// While names are looked up.
    reader: Option<Reader>,
    named: LruCache<u64, Named>,
    named_bytes: usize,
}

impl Named {
    /// Bytes that it takes, with what remembering it takes.
    pub(crate) fn bytes(&self) -> usize {
        let text = |frame: &Frame| frame.function.len() + frame.file.len() + frame.module.len();
        let frames = self.frames.iter().map(|frame| size_of::<Frame>() + text(frame));
        2 * size_of::<Self>() + frames.sum::<usize>()
    }
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
        Some(Binary {
            segments,
            build_id,
            evaluator,
            go,
            sources: Sources::new(&file, apart),
            reader: None,
            // Not `new`: it would take all the room at once.
            named: LruCache::unbounded(),
            named_bytes: 0,
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

    /// The name of the instruction at an offset in the file, if nothing needs to be read for it.
    pub(crate) fn known(&mut self, offset: u64, module: &str) -> Option<Named> {
        match virtual_address(&self.segments, offset) {
            Some(address) => self.named.get(&address).cloned(),
            None => Some(unknown(offset, module)),
        }
    }

    /// Names the instruction at an offset in the file. What that opens stays open, for the next one.
    pub(crate) fn name(&mut self, offset: u64, module: &str) -> Named {
        if let Some(named) = self.known(offset, module) {
            return named;
        }
        let address = virtual_address(&self.segments, offset).unwrap_or(offset);
        let named = self.look_up(address, module);
        if self.named.len() >= ADDRESSES
            && let Some((_, oldest)) = self.named.pop_lru()
        {
            self.named_bytes -= oldest.bytes();
        }
        self.named_bytes += named.bytes();
        self.named.put(address, named.clone());
        named
    }

    /// Where its symbols are.
    pub(crate) fn sources(&self) -> &Sources {
        &self.sources
    }

    /// Lets go of all that only look-ups need.
    pub(crate) fn close(&mut self) {
        self.reader = None;
    }

    /// Lets go of it, and reads no more than symbols from now on: functions, but no lines, and none that
    /// were inlined. Says whether there was more.
    pub(crate) fn leave_dwarf_out(&mut self, module: &str) -> bool {
        let any = self.sources.leave_dwarf_out();
        if any {
            tracing::warn!(
                module,
                "its DWARF is too large: its functions have no lines from now on"
            );
            self.reader = None;
        }
        any
    }

    /// Whether its symbols are being read.
    #[cfg(test)]
    pub(crate) fn is_open(&self) -> bool {
        self.reader.is_some()
    }

    /// Bytes of the names that are remembered.
    pub(crate) fn named_bytes(&self) -> usize {
        self.named_bytes
    }

    /// Forgets them.
    pub(crate) fn forget_names(&mut self) {
        self.named = LruCache::unbounded();
        self.named_bytes = 0;
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
        let reader = self.reader.get_or_insert_with(Reader::new);
        reader.find(&mut self.sources, address, module, |symbol| frames(symbol, module))
    }
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
