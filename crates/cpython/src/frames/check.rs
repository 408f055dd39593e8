//! The self-check of the frames: every thread's are walked, and must be frames of Python code.

use std::collections::HashSet;

use super::{EntryMark, FrameFacts, FrameLayout, Instruction, ThreadList};
use crate::check::{Addresses, CHECKED, thread_states};
use crate::layout::Layout;
use crate::memory::{Memory, after, word};
use crate::object::{Objects, Problem};
use crate::{InspectError, Version};

/// Frames of one thread that are walked: more say no more.
const DEEP: usize = 1024;
/// Characters of names that are read: that they can be read is enough.
const LONGEST_TEXT: u64 = 16;
/// No table of lines is this long, in bytes.
pub(crate) const LONGEST_TABLE: u64 = 16 << 20;
/// What follows `f_lasti` in a frame object, in 3.8 to 3.10.
const AFTER_LASTI: u64 = 264;
/// Parts are read up to here.
const FRAME_BYTES: usize = 256;

/// The frames of this process's threads, or in words why they cannot be read.
pub(crate) fn check(
    memory: Memory,
    version: Version,
    layout: &Layout,
    at: Addresses,
) -> Result<FrameFacts, String> {
    let odd = |problem| match problem {
        Problem::Odd(what) => what.to_owned(),
        Problem::Error(error) => InspectError::to_string(&error),
    };
    let threads = ThreadList::new(layout, at).ok_or("offsets that are too large")?;
    let states = thread_states(memory, layout, at.main, CHECKED).map_err(|e| e.to_string())?;
    let mut walk = Walk {
        objects: Objects::new(memory, version, *layout),
        layout: layout.frames,
        code_type: 0,
        known: HashSet::new(),
    };
    let (mut walked, mut failed, mut why) = (0, 0, None);
    for state in states {
        match walk.thread(state.address) {
            Ok(0) => {}
            Ok(_) => walked += 1,
            Err(problem) => {
                failed += 1;
                why = Some(odd(problem));
            }
        }
    }
    // One or the other thread may have moved on while it was walked; most wait.
    if walked > failed {
        return Ok(FrameFacts { threads, layout: layout.frames, code_type: walk.code_type });
    }
    Err(why.unwrap_or_else(|| "no thread is running Python code".to_owned()))
}

struct Walk {
    objects: Objects,
    layout: FrameLayout,
    code_type: u64,
    /// Code objects that were found in order.
    known: HashSet<u64>,
}

impl Walk {
    /// How many frames of Python code a thread has.
    fn thread(&mut self, tstate: u64) -> Result<usize, Problem> {
        let memory = self.objects.memory;
        let mut frame = memory.u64(after(tstate, self.layout.tstate_frame.into()))?;
        if let Some(offset) = self.layout.cframe_frame
            && frame != 0
        {
            frame = memory.u64(after(frame, offset.into()))?;
        }
        let (mut frames, mut outermost_is_entry) = (0, true);
        while frame != 0 {
            if frames == DEEP {
                return Ok(frames);
            }
            let block = memory.bytes(frame, self.frame_bytes())?;
            let field = |offset: u8| word(&block, offset.into());
            let byte = |offset: u8| block.get(usize::from(offset)).copied().unwrap_or(u8::MAX);
            let is_shim = match self.layout.entry {
                EntryMark::Every => {
                    self.is_frame_object(word(&block, 8))?;
                    false
                }
                EntryMark::Flag(offset) => {
                    let flag = byte(offset);
                    outermost_is_entry = flag == 1;
                    if flag > 1 {
                        return Err(Problem::Odd("a frame's is_entry that is no truth value"));
                    }
                    false
                }
                EntryMark::Shim(offset) => {
                    let owner = byte(offset);
                    outermost_is_entry = owner >= EntryMark::SHIM;
                    if owner > EntryMark::SHIM + 1 {
                        return Err(Problem::Odd("a frame's owner that is none"));
                    }
                    outermost_is_entry
                }
            };
            if !is_shim {
                let code = field(self.layout.code) & !7;
                self.code(code)?;
                self.instruction(code, field(self.layout.instruction_offset()))?;
                frames += 1;
            }
            let previous = field(self.layout.previous);
            if previous == frame {
                return Err(Problem::Odd("a frame that called itself"));
            }
            frame = previous;
        }
        if !outermost_is_entry {
            return Err(Problem::Odd("an outermost frame that nothing entered"));
        }
        Ok(frames)
    }

    /// Up to the last field.
    fn frame_bytes(&self) -> usize {
        let layout = &self.layout;
        let mark = layout.entry.offset().map_or(0, |offset| offset & !7);
        let last = layout.previous.max(layout.code).max(layout.instruction_offset()).max(mark);
        (usize::from(last) + 8).clamp(16, FRAME_BYTES)
    }

    fn is_frame_object(&mut self, class: u64) -> Result<(), Problem> {
        let size = u64::from(self.layout.instruction_offset()) + AFTER_LASTI;
        if !self.objects.class_is(class, "frame", size)? {
            return Err(Problem::Odd("something else than a frame"));
        }
        Ok(())
    }

    fn code(&mut self, code: u64) -> Result<(), Problem> {
        if self.known.contains(&code) {
            return Ok(());
        }
        let object = self.layout.object;
        let memory = self.objects.memory;
        let class = memory.u64(after(code, 8))?;
        if !self.objects.class_is(class, "code", object.basicsize.into())? {
            return Err(Problem::Odd("something else than a code object"));
        }
        self.code_type = class;
        for offset in [object.filename, object.name].into_iter().chain(object.qualname) {
            let text = memory.u64(after(code, offset.into()))?;
            self.objects.text(text, LONGEST_TEXT)?;
        }
        let table = memory.u64(after(code, object.linetable.into()))?;
        self.objects.bytes(table, LONGEST_TABLE)?;
        if memory.i32(after(code, object.firstlineno.into()))? < 0 {
            return Err(Problem::Odd("a line before the first"));
        }
        self.known.insert(code);
        Ok(())
    }

    /// The instruction must be one of the code object's, or the place before the first.
    fn instruction(&mut self, code: u64, at: u64) -> Result<(), Problem> {
        let memory = self.objects.memory;
        let (index, count) = match self.layout.instruction {
            Instruction::Index { unit, .. } => {
                // Instructions are two bytes; they are a `bytes` of their own.
                const CO_CODE: u64 = 48;
                let bytes = memory.u64(after(code, CO_CODE))?;
                let size = memory.u64(after(bytes, 16))? as i64;
                (i64::from(at as u32 as i32), size / i64::from(unit))
            }
            Instruction::Address { start, .. } => {
                let units = memory.u64(after(code, 16))? as i64;
                let bytes = (at as i64).wrapping_sub(code as i64).wrapping_sub(start.into());
                if bytes % 2 != 0 {
                    return Err(Problem::Odd("an instruction at an odd address"));
                }
                (bytes / 2, units)
            }
        };
        if (-1..count).contains(&index) {
            return Ok(());
        }
        Err(Problem::Odd("an instruction outside its code object"))
    }
}
