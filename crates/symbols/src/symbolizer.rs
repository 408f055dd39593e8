//! From a stack of addresses to a stack of names.

use std::num::NonZeroUsize;
use std::rc::Rc;

use lru::LruCache;
use underspan_model::{Frame, FrameKind, Stack, StackEnd};
use underspan_trackers::stack::{Ends, PythonFrame, RawStack};

use crate::binaries::Binaries;
use crate::interleave::{NativeFrame, PythonCall, Truncated, interleave};
use crate::kallsyms::Kallsyms;
use crate::process::{Incarnation, Place, Process};
use crate::python::Python;
use crate::vdso::Vdso;
use crate::{JIT, VDSO};

/// Processes that are remembered, some 10 kB each.
const PROCESSES: NonZeroUsize = NonZeroUsize::new(512).unwrap();
/// In `stacks.truncated`: native and Python frames could not be matched with each other.
const INTERLEAVE: &str = "interleave";

/// Names stacks. Of what it has read it keeps, within bounds: names of 128 binaries and 512 processes (8 MB of
/// native ones, 5 MB of Python's), the kernel's symbols (5 MB), and, of binaries with look-ups in the last
/// seconds, what was parsed of their symbols and DWARF: 24 MB, or 48 MB while that costs less than reading them
/// again and again. Bounds in bytes hold if [`Counting`](crate::Counting) is the program's allocator.
pub struct Symbolizer {
    kernel: Option<Kallsyms>,
    vdso: Vdso,
    binaries: Binaries,
    processes: LruCache<Incarnation, Process>,
    python: Python,
}

impl Symbolizer {
    /// Without `kernel`, kernel frames are bare addresses.
    pub fn new(kernel: Option<Kallsyms>) -> Self {
        Symbolizer {
            kernel,
            vdso: Vdso::read(),
            binaries: Binaries::new(),
            processes: LruCache::new(PROCESSES),
            python: Python::new(),
        }
    }

    /// Reads what will be needed when the process is gone: where its files are mapped. Takes some
    /// 300 µs the first time.
    pub fn learn(&mut self, process: Incarnation) {
        self.processes.get_or_insert_mut(process, || Process::new(process));
    }

    /// `child` was forked from `parent`, and both run the same program.
    pub fn forked(&mut self, parent: Incarnation, child: Incarnation) {
        if let Some(known) = self.processes.get(&parent) {
            let forked = known.forked(child);
            self.processes.put(child, forked);
        }
        self.python.forked(parent, child);
    }

    /// The process ended or begins another program. What is needed to name the stacks that it left
    /// is kept as long as there is room.
    pub fn ended(&mut self, process: Incarnation) {
        self.python.forget(process.pid);
    }

    /// Reads the code objects of a stack's Python frames, before they can vanish.
    pub fn read_python(&mut self, process: Incarnation, stack: &RawStack) {
        for frame in &stack.python {
            self.python.name(process, frame);
        }
    }

    /// Gives back memory that only look-ups in files need. Call it every second or so: it takes some
    /// 100 µs.
    pub fn rest(&mut self) {
        self.binaries.rest();
    }

    /// The stack with names. Takes some 20 µs where all was seen before.
    pub fn name(&mut self, process: Incarnation, stack: &RawStack) -> Stack {
        let python: Vec<_> =
            stack.python.iter().map(|frame| self.python_call(process, frame)).collect();
        let native = self.native(process, &stack.native);
        let evaluators = native.iter().any(|frame| frame.evaluator);
        let truncated = Truncated {
            native: stack.ends.native.is_truncated() || native.is_empty(),
            python: stack.ends.python.is_truncated(),
        };
        let no_python = python.is_empty();
        let both = interleave(&native, python, truncated);
        let mut frames = both.frames;
        let kernel = stack.kernel.iter().enumerate().rev();
        frames.extend(kernel.map(|(index, address)| self.kernel(code(index, *address))));

        let mut ends = stack.ends;
        if no_python && !evaluators && ends.native == StackEnd::Complete {
            // A thread that Python knows nothing of: there is nothing to miss.
            ends.python = StackEnd::Absent;
        }
        Stack { frames, truncated: reasons(ends, both.mismatch) }
    }

    fn native(&mut self, process: Incarnation, addresses: &[u64]) -> Vec<NativeFrame> {
        if addresses.is_empty() {
            return Vec::new();
        }
        let mut known = self.processes.pop(&process).unwrap_or_else(|| Process::new(process));
        let name =
            |(index, address): (usize, &u64)| self.native_frame(&mut known, code(index, *address));
        let frames = addresses.iter().enumerate().map(name).collect();
        self.processes.put(process, known);
        frames
    }

    fn native_frame(&mut self, process: &mut Process, address: u64) -> NativeFrame {
        match process.find(address) {
            None => bare(address, ""),
            Some(Place::Vdso(offset)) => match self.vdso.find(offset) {
                Some(name) => single(name, VDSO),
                None => bare(offset, VDSO),
            },
            Some(Place::Anonymous) => match process.jit(address) {
                Some(name) => single(name, JIT),
                None => bare(address, JIT),
            },
            Some(Place::File { offset, id, module, ways }) => {
                let binary = id.and_then(|id| self.binaries.get(id, &ways));
                let Some(binary) = binary else { return bare(offset, module) };
                let named = self.binaries.name(&binary, offset, module);
                NativeFrame {
                    frames: named.frames,
                    evaluator: named.evaluator,
                    interpreter: binary.borrow().is_interpreter(),
                    known: named.known,
                }
            }
        }
    }

    fn kernel(&mut self, address: u64) -> Frame {
        let found = self.kernel.as_mut().and_then(|kernel| kernel.find(address));
        let (function, module) = match found {
            Some(symbol) => (symbol.function, symbol.module.to_string()),
            None => (format!("{address:#x}"), "[kernel]".to_owned()),
        };
        Frame { kind: FrameKind::Kernel, function, file: String::new(), line: 0, module }
    }

    fn python_call(&mut self, process: Incarnation, frame: &PythonFrame) -> PythonCall {
        let (function, file, line) = match self.python.name(process, frame) {
            Some(name) => (name.function.to_string(), name.file.to_string(), name.line),
            None => (format!("{:#x}", frame.code), String::new(), 0),
        };
        let module = String::new();
        PythonCall {
            frame: Frame { kind: FrameKind::Python, function, file, line, module },
            entry: frame.entry,
        }
    }
}

/// An address in the instruction that runs or calls. All but the innermost are return addresses,
/// and the instruction that they return to may be another function's, or another line's.
fn code(index: usize, address: u64) -> u64 {
    if index == 0 { address } else { address.wrapping_sub(1) }
}

fn single(function: &str, module: &str) -> NativeFrame {
    let frame = Frame {
        kind: FrameKind::Native,
        function: function.to_owned(),
        file: String::new(),
        line: 0,
        module: module.to_owned(),
    };
    NativeFrame { frames: Rc::new([frame]), evaluator: false, interpreter: false, known: true }
}

fn bare(address: u64, module: &str) -> NativeFrame {
    NativeFrame { known: false, ..single(&format!("{address:#x}"), module) }
}

/// Why outer frames are missing, each reason once.
fn reasons(ends: Ends, mismatch: bool) -> String {
    let mut reasons: Vec<_> = [ends.kernel, ends.native, ends.python]
        .into_iter()
        .filter(|end| end.is_truncated())
        .map(StackEnd::name)
        .collect();
    reasons.dedup();
    reasons.extend(mismatch.then_some(INTERLEAVE));
    reasons.join(", ")
}
