//! Callers of a goroutine that does not run, found the way Go's own traceback does: the function table
//! says for every pc how far above the stack pointer the return address is. That is exact also where
//! a frame pointer is not set up yet, or was never saved (system calls before Go 1.21).

use std::collections::HashMap;

use underspan_remote::word;

use crate::functions::{FrameSize, Functions};

/// Deepest stack that is recorded.
pub(crate) const MAX_FRAMES: usize = 256;
/// Frame sizes that are remembered.
const REMEMBERED: usize = 1 << 15;

/// Why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StackEnd {
    /// At the function that the goroutine was started with.
    Complete,
    /// The goroutine runs: its stack changes while one reads.
    Running,
    /// There are more frames than are recorded.
    TooDeep,
    /// An address in no Go function: C code, a plugin.
    NoTable,
    /// The stack could not be read.
    Unreadable,
}

/// Part of a goroutine's stack, from its stack pointer upwards.
pub(crate) struct Part<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) sp: u64,
    /// Where the stack ends; may be beyond `bytes`.
    pub(crate) high: u64,
}

/// How a walk went.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Walk {
    Done(Vec<u64>, StackEnd),
    /// More of the stack is needed.
    Short,
}

/// Frame sizes by pc, as they were looked up.
#[derive(Debug, Default)]
pub(crate) struct Unwinder {
    sizes: HashMap<u64, Option<FrameSize>>,
}

impl Unwinder {
    /// Addresses of code, innermost first; in the process they are `bias` above those in the file.
    pub(crate) fn walk(
        &mut self,
        functions: &Functions,
        bias: u64,
        mut pc: u64,
        part: &Part<'_>,
    ) -> Walk {
        let mut frames = Vec::with_capacity(16);
        let mut offset = 0u64;
        loop {
            let Some(size) = self.size(functions, pc.wrapping_sub(bias)) else {
                return Walk::Done(frames, StackEnd::NoTable);
            };
            frames.push(pc);
            if size.outermost {
                return Walk::Done(frames, StackEnd::Complete);
            }
            if frames.len() == MAX_FRAMES {
                return Walk::Done(frames, StackEnd::TooDeep);
            }
            offset = offset.saturating_add(size.bytes);
            if part.sp.saturating_add(offset).saturating_add(8) > part.high {
                return Walk::Done(frames, StackEnd::Unreadable);
            }
            if offset + 8 > part.bytes.len() as u64 {
                return Walk::Short;
            }
            pc = word(part.bytes, offset as usize);
            offset += 8;
        }
    }

    fn size(&mut self, functions: &Functions, address: u64) -> Option<FrameSize> {
        if self.sizes.len() >= REMEMBERED {
            self.sizes.clear();
        }
        *self.sizes.entry(address).or_insert_with(|| functions.frame_size(address))
    }
}
