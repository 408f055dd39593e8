//! Where a thread is now.

use std::collections::HashMap;
use std::fs;

use underspan_agent::monotonic_ns;
use underspan_cpython::code::{CodeReader, Location};
use underspan_cpython::{InspectError, Inspector, Interpreter};
use underspan_model::{Frame, FrameKind, Stack, State, idle};
use underspan_symbols::{Incarnation, Kallsyms, Symbolizer};
use underspan_trackers::Sample;

use crate::python;

/// A thread's stack in its parts. Frames are innermost first.
#[derive(Clone, Debug)]
pub(crate) struct Current {
    /// Python's frames, or why there are none.
    pub(crate) python: Result<Vec<String>, String>,
    /// The kernel's functions, or why there are none.
    pub(crate) kernel: Result<Vec<String>, String>,
    /// The stack that was taken last, all kinds together.
    pub(crate) sampled: Option<Sampled>,
}

/// A stack that was taken while the thread ran, or when it had waited.
#[derive(Clone, Debug)]
pub(crate) struct Sampled {
    /// How long ago.
    pub(crate) age_ns: u64,
    /// It was running.
    pub(crate) on_cpu: bool,
    pub(crate) frames: Vec<String>,
    pub(crate) truncated: String,
}

/// Reads stacks, and keeps what it read of each process.
pub(crate) struct Stacks {
    inspector: Inspector,
    readers: HashMap<u32, (Interpreter, CodeReader)>,
    symbolizer: Symbolizer,
}

impl Stacks {
    /// Opens the kernel's symbols: do it before privileges are dropped.
    pub(crate) fn new() -> Self {
        Stacks {
            inspector: Inspector::new(),
            readers: HashMap::new(),
            symbolizer: Symbolizer::new(Kallsyms::open().ok()),
        }
    }

    /// Where the thread is now. Takes a millisecond; the first time for a process, up to 100.
    pub(crate) fn read(&mut self, pid: u32, tid: u32, sample: Option<&Sample>) -> Current {
        Current {
            python: self.python(pid, tid),
            kernel: kernel(pid, tid),
            sampled: sample.map(|sample| self.sampled(pid, sample)),
        }
    }

    /// Whether the thread, which is in `state`, waits for something to do, by its Python frames now; `None`:
    /// it has none.
    ///
    /// # Errors
    /// In words, why they cannot be read.
    pub(crate) fn is_idle(
        &mut self,
        pid: u32,
        tid: u32,
        state: State,
        in_request: bool,
    ) -> Result<Option<bool>, String> {
        let frames: Vec<_> = self.frames(pid, tid)?.into_iter().rev().map(frame).collect();
        let known = !frames.is_empty();
        Ok(known.then(|| idle(&frames, state, in_request).is_some()))
    }

    fn python(&mut self, pid: u32, tid: u32) -> Result<Vec<String>, String> {
        let line = |function: &str, file: &str, line: u32| format!("{function} ({file}:{line})");
        let frames = self.frames(pid, tid)?;
        Ok(frames.iter().map(|at| line(&at.function, &at.file, at.line)).collect())
    }

    fn frames(&mut self, pid: u32, tid: u32) -> Result<Vec<Location>, String> {
        if !self.readers.contains_key(&pid) {
            let id = i32::try_from(pid).map_err(|_| "there is no such process".to_owned())?;
            let interpreter = self.inspector.inspect(id).map_err(|error| match error {
                InspectError::NotPython => "the process runs no Python".to_owned(),
                error => error.to_string(),
            })?;
            let reader = CodeReader::new(&interpreter).map_err(|error| error.to_string())?;
            self.readers.insert(pid, (interpreter, reader));
        }
        let Some((interpreter, reader)) = self.readers.get_mut(&pid) else {
            return Ok(Vec::new());
        };
        let frames = python::stack(interpreter, reader, tid);
        if frames.is_err() {
            // It may run another program by now.
            self.readers.remove(&pid);
        }
        frames
    }

    fn sampled(&mut self, pid: u32, sample: &Sample) -> Sampled {
        let stack: Stack = self.symbolizer.name(Incarnation::of(pid, 0), &sample.stack);
        Sampled {
            age_ns: monotonic_ns().unwrap_or(sample.time).saturating_sub(sample.time),
            on_cpu: sample.on_cpu,
            frames: stack.frames.iter().rev().map(line).collect(),
            truncated: stack.truncated,
        }
    }
}

/// A Python frame, as the model has them.
fn frame(at: Location) -> Frame {
    Frame {
        kind: FrameKind::Python,
        function: at.function.to_string(),
        file: at.file.to_string(),
        line: at.line,
        module: String::new(),
    }
}

/// A frame on one line.
fn line(frame: &Frame) -> String {
    let Frame { function, file, module, .. } = frame;
    match frame.kind {
        FrameKind::Python => format!("{function} ({file}:{})", frame.line),
        FrameKind::Native if frame.line != 0 => format!("{function} ({file}:{})", frame.line),
        FrameKind::Native | FrameKind::Kernel => {
            format!("{function} [{}]", module.trim_matches(['[', ']']))
        }
    }
}

/// What `/proc` says. It asks for more than other files there: root, or CAP_SYS_ADMIN.
fn kernel(pid: u32, tid: u32) -> Result<Vec<String>, String> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stack"))
        .map_err(|error| format!("the kernel does not tell ({error})"))?;
    let frames = text.lines().filter_map(|line| {
        let function = line.split_whitespace().nth(1)?;
        Some(function.split('+').next().unwrap_or(function).to_owned())
    });
    Ok(frames.collect())
}
