//! What a Python frame runs: file, qualified name and line, from a code object in another process's
//! memory.
//!
//! A frame was recorded a moment ago as the address of its code object, a check of some of its fields
//! and the instruction it was at. The code object is read here, later, and only once; if another object
//! has come to stand at its address meanwhile, the check tells, and nothing is said.

mod lines;
mod names;

use std::collections::HashMap;
use std::sync::Arc;

use crate::frames::{CodeLayout, FrameFacts, LONGEST_TABLE};
use crate::memory::{Memory, word};
use crate::object::{Objects, Problem};
use crate::{InspectError, Interpreter, Version};
use lines::{Format, Lines};

pub use names::CodeNames;

/// Longest file name or qualified name that is kept, in characters.
const LONGEST_NAME: u64 = 4096;
/// Code objects that are kept of one process. A program has some ten thousand.
const KEPT: usize = 65_536;

/// What a frame runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// `co_filename`: as it was compiled, so it may be relative, or `<string>`.
    pub file: Arc<str>,
    /// `co_qualname` from 3.11 on. Before, code objects do not know their qualified name: this is
    /// `co_name`, and [`Location::qualified`] is false.
    pub function: Arc<str>,
    /// Whether `function` is the qualified name.
    pub qualified: bool,
    /// Of the instruction; 0 if nobody wrote it.
    pub line: u32,
    /// Of the function's beginning.
    pub first_line: u32,
}

/// Why a frame has no name.
#[derive(Debug, thiserror::Error)]
pub enum CodeError {
    /// Another object has come to stand at this address, or nothing.
    #[error("the code object has been freed since the frame was recorded")]
    Replaced,
    /// The process's Python frames cannot be read.
    #[error("the Python frames of the process cannot be read: {0}")]
    NoFrames(String),
    /// The process cannot be read.
    #[error(transparent)]
    Inspect(#[from] InspectError),
}

impl From<Problem> for CodeError {
    fn from(problem: Problem) -> Self {
        match problem {
            Problem::Odd(_) => CodeError::Replaced,
            Problem::Error(error) => CodeError::Inspect(error),
        }
    }
}

/// Reads the code objects of one process, each once.
#[derive(Debug)]
pub struct CodeReader {
    objects: Objects,
    object: CodeLayout,
    code_type: u64,
    format: Format,
    kept: HashMap<(u64, u32), Arc<Code>>,
}

/// A code object, as far as it matters.
#[derive(Debug)]
struct Code {
    file: Arc<str>,
    function: Arc<str>,
    qualified: bool,
    first_line: u32,
    lines: Lines,
}

impl CodeReader {
    /// For the process of `interpreter`.
    pub fn new(interpreter: &Interpreter) -> Result<Self, CodeError> {
        let facts = interpreter.frames.as_ref();
        let facts: &FrameFacts = facts.map_err(|why| CodeError::NoFrames(why.clone()))?;
        let memory = Memory::new(interpreter.pid);
        Ok(CodeReader {
            objects: Objects::new(memory, interpreter.version, interpreter.layout),
            object: facts.layout.object,
            code_type: facts.code_type,
            format: format(interpreter.version),
            kept: HashMap::new(),
        })
    }

    /// What the frame runs whose code object stood at `code`, folded to `check`, at the instruction
    /// `lasti`, in bytes.
    pub fn locate(&mut self, code: u64, check: u32, lasti: u32) -> Result<Location, CodeError> {
        let code = match self.kept.get(&(code, check)) {
            Some(known) => Arc::clone(known),
            None => self.keep(code, check)?,
        };
        Ok(Location {
            file: Arc::clone(&code.file),
            function: Arc::clone(&code.function),
            qualified: code.qualified,
            line: code.lines.line(lasti).unwrap_or(code.first_line),
            first_line: code.first_line,
        })
    }

    /// What the walkers fold the code object at `code` to.
    pub fn check(&self, code: u64) -> Result<u32, CodeError> {
        Ok(self.fields(code)?.check())
    }

    fn keep(&mut self, code: u64, check: u32) -> Result<Arc<Code>, CodeError> {
        let read = Arc::new(self.read(code, check)?);
        if self.kept.len() >= KEPT {
            self.kept.clear();
        }
        self.kept.insert((code, check), Arc::clone(&read));
        Ok(read)
    }

    fn read(&mut self, code: u64, check: u32) -> Result<Code, CodeError> {
        let fields = self.fields(code)?;
        if fields.check() != check {
            return Err(CodeError::Replaced);
        }
        let function = fields.qualname.unwrap_or(fields.name);
        let file = self.objects.text(fields.filename, LONGEST_NAME)?;
        let function = self.objects.text(function, LONGEST_NAME)?;
        let table = self.objects.bytes(fields.linetable, LONGEST_TABLE)?;
        // It may have been freed while its parts were read.
        if self.fields(code)? != fields {
            return Err(CodeError::Replaced);
        }
        Ok(Code {
            file: file.into(),
            function: function.into(),
            qualified: fields.qualname.is_some(),
            first_line: fields.firstlineno.max(0) as u32,
            lines: Lines::new(self.format, &table, fields.firstlineno),
        })
    }

    fn fields(&self, code: u64) -> Result<Fields, Problem> {
        let object = &self.object;
        let mut block = [0; 264];
        let last = object.linetable.max(object.qualname.unwrap_or(0)).max(object.name);
        let part = block.get_mut(..usize::from(last) + 8);
        let part = part.ok_or(Problem::Odd("a field that is nowhere"))?;
        self.objects.memory.read(code, part)?;
        let field = |offset: u8| word(part, offset.into());
        if field(8) != self.code_type {
            return Err(Problem::Odd("something else than a code object"));
        }
        let firstlineno = part.get(usize::from(object.firstlineno)..);
        let firstlineno = firstlineno.and_then(|bytes| bytes.first_chunk());
        Ok(Fields {
            firstlineno: i32::from_ne_bytes(firstlineno.copied().unwrap_or_default()),
            filename: field(object.filename),
            name: field(object.name),
            qualname: object.qualname.map(field),
            linetable: field(object.linetable),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fields {
    firstlineno: i32,
    filename: u64,
    name: u64,
    qualname: Option<u64>,
    linetable: u64,
}

impl Fields {
    /// Must agree with `python_code_check()` in the walker.
    fn check(&self) -> u32 {
        const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;
        let fold = |hash: u64, field: u64| (hash ^ field).wrapping_mul(PRIME);
        let hash = fold(u64::from(self.firstlineno as u32), self.filename);
        (fold(fold(hash, self.name), self.linetable) >> 32) as u32
    }
}

fn format(version: Version) -> Format {
    match version.minor_pair() {
        (3, 8 | 9) => Format::Lnotab,
        (3, 10) => Format::Linetable,
        _ => Format::Locations,
    }
}
