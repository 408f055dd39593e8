//! The Python frames of a thread, read from outside.

use std::collections::HashMap;

use crate::frames::{EntryMark, FrameFacts, Instruction};
use crate::memory::{Memory, ReadError, after, word};

/// Deeper stacks are cut.
const MOST_FRAMES: usize = 512;
/// More thread states than any process has.
const MOST_THREADS: usize = 65_536;

/// A Python frame as it is in memory, not yet named: see [`code::CodeReader`](crate::code::CodeReader).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawFrame {
    /// Address of its code object.
    pub code: u64,
    /// Byte offset of the instruction in the bytecode; 0 before the first.
    pub lasti: u32,
    /// The native evaluator was entered for this frame.
    pub entry: bool,
}

/// The frames of one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawFrames {
    /// Innermost first.
    pub frames: Vec<RawFrame>,
    /// There are more.
    pub is_cut: bool,
}

impl FrameFacts {
    /// The frames of the thread whose `pthread_self()` `is_thread` likes. `None`:
    /// Python knows no such thread.
    ///
    /// A thread that runs moves on while this reads: it takes two readings that agree, or other
    /// knowledge that the thread slept, to believe one.
    ///
    /// # Errors
    /// If the process's memory is not what it should be, or cannot be read.
    pub fn read_frames(
        &self,
        pid: i32,
        is_thread: impl FnMut(u64) -> bool,
    ) -> Result<Option<RawFrames>, ReadError> {
        let memory = Memory::new(pid);
        let states = self.thread_states(memory, is_thread)?;
        if states.is_empty() {
            return Ok(None);
        }
        let mut walk = Walk::new(self, memory);
        for tstate in states {
            walk.along(tstate)?;
        }
        Ok(Some(walk.found))
    }

    /// A thread that runs a subinterpreter has a state in both, and frames in both: those of the newer
    /// interpreter, which comes first, are the inner ones.
    fn thread_states(
        &self,
        memory: Memory,
        mut is_thread: impl FnMut(u64) -> bool,
    ) -> Result<Vec<u64>, ReadError> {
        let list = &self.threads;
        let mut interpreter = memory.u64(list.interpreters)?;
        let mut found = Vec::new();
        let mut left = MOST_THREADS;
        while interpreter != 0 && left > 0 {
            let mut tstate = memory.u64(after(interpreter, list.interp_threads.into()))?;
            while tstate != 0 && left > 0 {
                left -= 1;
                if is_thread(memory.u64(after(tstate, list.tstate_thread_id.into()))?) {
                    found.push(tstate);
                    break;
                }
                tstate = memory.u64(after(tstate, list.tstate_next.into()))?;
            }
            left = left.saturating_sub(1);
            interpreter = memory.u64(after(interpreter, list.interp_next.into()))?;
        }
        Ok(found)
    }
}

/// A walk along the frames of one thread.
struct Walk<'a> {
    facts: &'a FrameFacts,
    memory: Memory,
    /// Where the fields of a frame begin that are read.
    from: u8,
    /// How many bytes they are.
    len: usize,
    /// Code objects, and whether they are a function's.
    functions: HashMap<u64, bool>,
    found: RawFrames,
}

impl<'a> Walk<'a> {
    fn new(facts: &'a FrameFacts, memory: Memory) -> Self {
        let layout = &facts.layout;
        let mark = layout.entry.offset();
        let at =
            [Some(layout.previous), Some(layout.code), Some(layout.instruction_offset()), mark];
        let (first, last) = at
            .into_iter()
            .flatten()
            .fold((u8::MAX, 0), |(first, last), at| (first.min(at), last.max(at)));
        Walk {
            facts,
            memory,
            from: first,
            len: usize::from(last - first) + 8,
            functions: HashMap::new(),
            found: RawFrames::default(),
        }
    }

    /// From a thread state's innermost frame outwards.
    fn along(&mut self, tstate: u64) -> Result<(), ReadError> {
        let layout = &self.facts.layout;
        let mut frame = self.memory.u64(after(tstate, layout.tstate_frame.into()))?;
        if let Some(offset) = layout.cframe_frame.filter(|_| frame != 0) {
            frame = self.memory.u64(after(frame, offset.into()))?;
        }
        // A shim may stand between any two.
        for _ in 0..2 * MOST_FRAMES {
            if frame == 0 {
                return Ok(());
            }
            frame = self.step(frame)?;
            if self.found.is_cut {
                return Ok(());
            }
        }
        self.found.is_cut = true;
        Ok(())
    }

    /// Takes a frame down, and returns the one that called it.
    fn step(&mut self, frame: u64) -> Result<u64, ReadError> {
        let layout = &self.facts.layout;
        let part = self.memory.bytes(after(frame, self.from.into()), self.len)?;
        let from = self.from;
        let at = |offset: u8| usize::from(offset - from);
        let mark = layout.entry.offset().and_then(|offset| part.get(at(offset)).copied());
        let previous = word(&part, at(layout.previous));
        if matches!(layout.entry, EntryMark::Shim(_)) && mark >= Some(EntryMark::SHIM) {
            if let Some(inner) = self.found.frames.last_mut() {
                inner.entry = true;
            }
            return Ok(previous);
        }
        // From 3.14 on the low bits are tags.
        let code = word(&part, at(layout.code)) & !7;
        if !self.is_function(code)? {
            return Ok(previous);
        }
        if self.found.frames.len() == MOST_FRAMES {
            self.found.is_cut = true;
            return Ok(previous);
        }
        let lasti = match layout.instruction {
            Instruction::Index { offset, unit } => {
                i64::from(word(&part, at(offset)) as u32 as i32) * i64::from(unit)
            }
            Instruction::Address { offset, start } => {
                let now = word(&part, at(offset));
                now.wrapping_sub(code.wrapping_add(u64::from(start))) as i64
            }
        };
        self.found.frames.push(RawFrame {
            code,
            lasti: u32::try_from(lasti.max(0)).unwrap_or(0),
            entry: match layout.entry {
                EntryMark::Every => true,
                EntryMark::Flag(_) => mark == Some(1),
                EntryMark::Shim(_) => false,
            },
        });
        Ok(previous)
    }

    /// The frame that calls `__init__()` is the interpreter's own: it is named so by file and by
    /// function.
    fn is_function(&mut self, code: u64) -> Result<bool, ReadError> {
        if let Some(known) = self.functions.get(&code) {
            return Ok(*known);
        }
        let object = &self.facts.layout.object;
        let filename = self.memory.u64(after(code, object.filename.into()))?;
        let name = self.memory.u64(after(code, object.name.into()))?;
        self.functions.insert(code, filename != name);
        Ok(filename != name)
    }
}
