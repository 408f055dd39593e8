//! Where a thread's frames are, and the code objects they run: from `_Py_DebugOffsets` where it has
//! them (3.13 on), else from a table read off the headers of each release.

use crate::memory::word;

/// Where a walker from outside finds Python's frames. Offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLayout {
    /// Of `PyThreadState`: the innermost frame, or the cframe that has it.
    pub tstate_frame: u16,
    /// 3.11 and 3.12 have a cframe in between: where it has the innermost frame.
    pub cframe_frame: Option<u8>,
    /// Of a frame: the one that called it.
    pub previous: u8,
    /// Of a frame: its code object. From 3.14 the pointer's low bits are tags.
    pub code: u8,
    /// Of a frame: the instruction it is at.
    pub instruction: Instruction,
    /// How a frame tells that the native evaluator was entered for it.
    pub entry: EntryMark,
    /// Of a frame: two words that are the same whenever this function runs, and others for most other
    /// functions: its globals and, from 3.11, the function object. Nothing is read through them.
    pub tags: [u8; 2],
    /// The code object.
    pub object: CodeLayout,
}

/// How a frame tells the instruction that it is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// An `int` that counts instructions of so many bytes; -1 before the first.
    Index {
        /// In the frame.
        offset: u8,
        /// 1 in 3.8 and 3.9, 2 in 3.10.
        unit: u8,
    },
    /// An address; before the first instruction until it starts (3.11 on).
    Address {
        /// In the frame.
        offset: u8,
        /// Where a code object's instructions begin.
        start: u16,
    },
}

/// How a frame tells that the native evaluator was entered for it. Frames further in, up to the next
/// such, share its native frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryMark {
    /// Each has an evaluator of its own (3.8 to 3.10).
    Every,
    /// A byte at this offset is 1 (3.11).
    Flag(u8),
    /// The frame that called it is a shim (3.12 on): the owner, at this offset, is
    /// [`EntryMark::SHIM`] or more, and it runs no Python code.
    Shim(u8),
}

impl EntryMark {
    /// Owners of shims: `FRAME_OWNED_BY_CSTACK` and, from 3.14, `FRAME_OWNED_BY_INTERPRETER`.
    pub const SHIM: u8 = 3;

    /// Where the mark is, if there is one.
    pub const fn offset(self) -> Option<u8> {
        match self {
            EntryMark::Every => None,
            EntryMark::Flag(offset) | EntryMark::Shim(offset) => Some(offset),
        }
    }
}

/// Fields of a code object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeLayout {
    /// An `int`.
    pub firstlineno: u8,
    /// A `str`.
    pub filename: u8,
    /// A `str`.
    pub name: u8,
    /// A `str`, from 3.11.
    pub qualname: Option<u8>,
    /// `bytes` that map instructions to lines: `co_lnotab` in 3.8 and 3.9, then `co_linetable`.
    pub linetable: u8,
    /// Of the type `code`: size of a code object without its instructions.
    pub basicsize: u16,
}

impl FrameLayout {
    /// Offset of the instruction in a frame.
    pub const fn instruction_offset(&self) -> u8 {
        match self.instruction {
            Instruction::Index { offset, .. } | Instruction::Address { offset, .. } => offset,
        }
    }
}

/// What 3.9 shares with 3.8; 3.10 differs in `f_lasti`.
pub(crate) const V3_8: FrameLayout = FrameLayout {
    tstate_frame: 24,
    cframe_frame: None,
    previous: 24,
    code: 32,
    instruction: Instruction::Index { offset: 104, unit: 1 },
    entry: EntryMark::Every,
    tags: [40, 48],
    object: CodeLayout {
        firstlineno: 40,
        filename: 104,
        name: 112,
        qualname: None,
        linetable: 120,
        basicsize: 176,
    },
};

pub(crate) const V3_10: FrameLayout =
    FrameLayout { instruction: Instruction::Index { offset: 96, unit: 2 }, ..V3_8 };

pub(crate) const V3_11: FrameLayout = FrameLayout {
    tstate_frame: 56,
    cframe_frame: Some(8),
    previous: 48,
    code: 32,
    instruction: Instruction::Address { offset: 56, start: 184 },
    entry: EntryMark::Flag(68),
    tags: [0, 8],
    object: CodeLayout {
        firstlineno: 72,
        filename: 112,
        name: 120,
        qualname: Some(128),
        linetable: 136,
        basicsize: 184,
    },
};

pub(crate) const V3_12: FrameLayout = FrameLayout {
    cframe_frame: Some(0),
    previous: 8,
    code: 0,
    instruction: Instruction::Address { offset: 56, start: 192 },
    entry: EntryMark::Shim(70),
    tags: [16, 24],
    object: CodeLayout { firstlineno: 68, basicsize: 192, ..V3_11.object },
    ..V3_11
};

/// First words of parts of `_Py_DebugOffsets`, counted in 8 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameWords {
    pub(crate) thread: usize,
    pub(crate) frame: usize,
    pub(crate) code: usize,
}

/// As published by 3.13 and 3.14. `Err` names the offset that cannot be.
pub(crate) fn published(
    head: &[u8],
    words: FrameWords,
) -> Result<FrameLayout, (&'static str, u64)> {
    let at = |index: usize| word(head, index * 8);
    let within = |name, index: usize, size: u64, align: u64| {
        let offset = at(index);
        let fits = offset % align == 0 && offset < size.min(248);
        u8::try_from(offset).ok().filter(|_| fits).ok_or((name, offset))
    };
    let (frame, code) = (words.frame, words.code);
    let (frame_size, code_size) = (at(frame), at(code));
    let start = at(code + 9);
    let wrong_start = ("code.co_code_adaptive", start);
    // The size is that of the structure with room for one instruction, rounded up.
    if start % 8 != 0 || !(start + 2..=start + 8).contains(&code_size) {
        return Err(wrong_start);
    }
    let start = u16::try_from(start).map_err(|_| wrong_start)?;
    Ok(FrameLayout {
        tstate_frame: within("tstate.current_frame", words.thread + 4, at(words.thread), 8)?.into(),
        cframe_frame: None,
        previous: within("frame.previous", frame + 1, frame_size, 8)?,
        code: within("frame.executable", frame + 2, frame_size, 8)?,
        instruction: Instruction::Address {
            offset: within("frame.instr_ptr", frame + 3, frame_size, 8)?,
            start,
        },
        entry: EntryMark::Shim(within("frame.owner", frame + 5, frame_size, 1)?),
        tags: V3_12.tags,
        object: CodeLayout {
            filename: within("code.filename", code + 1, start.into(), 8)?,
            name: within("code.name", code + 2, start.into(), 8)?,
            qualname: Some(within("code.qualname", code + 3, start.into(), 8)?),
            linetable: within("code.linetable", code + 4, start.into(), 8)?,
            firstlineno: within("code.firstlineno", code + 5, start.into(), 4)?,
            basicsize: start,
        },
    })
}
