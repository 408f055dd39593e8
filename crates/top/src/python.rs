//! The Python frames of a thread, read from outside while it runs on.

use underspan_cpython::code::{CodeReader, Location};
use underspan_cpython::{EntryMark, FrameFacts, Instruction, Interpreter, pthread_tid};
use underspan_remote::{Memory, ReadError};

/// Deeper stacks are cut.
const MOST_FRAMES: usize = 512;
/// More thread states than any process has.
const MOST_THREADS: usize = 65_536;
/// A thread that runs moves on while it is read.
const ATTEMPTS: usize = 3;

/// A frame as it is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RawFrame {
    code: u64,
    lasti: u32,
}

/// The thread's frames, innermost first; empty if it runs no Python code. What cannot be named any
/// more, since the thread has moved on, is left out.
///
/// # Errors
/// In words, why they cannot be read.
pub(crate) fn stack(
    interpreter: &Interpreter,
    reader: &mut CodeReader,
    tid: u32,
) -> Result<Vec<Location>, String> {
    let facts = interpreter.frames.as_ref().map_err(Clone::clone)?;
    let memory = Memory::new(interpreter.pid);
    let mut frames = Vec::new();
    for _ in 0..ATTEMPTS {
        frames = walk(facts, &memory, interpreter.pid, tid).map_err(|error| error.to_string())?;
        let again = walk(facts, &memory, interpreter.pid, tid);
        if again.is_ok_and(|again| again == frames) {
            break;
        }
    }
    let named = frames.iter().filter_map(|frame| {
        let check = reader.check(frame.code).ok()?;
        reader.locate(frame.code, check, frame.lasti).ok()
    });
    Ok(named.collect())
}

fn walk(
    facts: &FrameFacts,
    memory: &Memory,
    pid: i32,
    tid: u32,
) -> Result<Vec<RawFrame>, ReadError> {
    let Some(tstate) = thread_state(facts, memory, pid, tid)? else { return Ok(Vec::new()) };
    let layout = &facts.layout;
    let mut frame = memory.u64(tstate + u64::from(layout.tstate_frame))?;
    if let Some(offset) = layout.cframe_frame.filter(|_| frame != 0) {
        frame = memory.u64(frame + u64::from(offset))?;
    }
    let mut frames = Vec::new();
    for _ in 0..2 * MOST_FRAMES {
        if frame == 0 || frames.len() >= MOST_FRAMES {
            break;
        }
        let shim = match layout.entry {
            EntryMark::Shim(offset) => {
                memory.block::<1>(frame + u64::from(offset))?[0] >= EntryMark::SHIM
            }
            _ => false,
        };
        if !shim {
            frames.push(raw_frame(facts, memory, frame)?);
        }
        frame = memory.u64(frame + u64::from(layout.previous))?;
    }
    Ok(frames)
}

fn raw_frame(facts: &FrameFacts, memory: &Memory, frame: u64) -> Result<RawFrame, ReadError> {
    // From 3.14 on the low bits are tags.
    let code = memory.u64(frame + u64::from(facts.layout.code))? & !7;
    let lasti = match facts.layout.instruction {
        Instruction::Index { offset, unit } => {
            i64::from(memory.i32(frame + u64::from(offset))?) * i64::from(unit)
        }
        Instruction::Address { offset, start } => {
            let at = memory.u64(frame + u64::from(offset))?;
            at.wrapping_sub(code.wrapping_add(u64::from(start))) as i64
        }
    };
    Ok(RawFrame { code, lasti: u32::try_from(lasti.max(0)).unwrap_or(0) })
}

/// The state of the thread with this id, if Python knows it.
fn thread_state(
    facts: &FrameFacts,
    memory: &Memory,
    pid: i32,
    tid: u32,
) -> Result<Option<u64>, ReadError> {
    let list = &facts.threads;
    let mut interpreter = memory.u64(list.interpreters)?;
    let mut left = MOST_THREADS;
    while interpreter != 0 && left > 0 {
        let mut tstate = memory.u64(interpreter + u64::from(list.interp_threads))?;
        while tstate != 0 && left > 0 {
            left -= 1;
            let pthread = memory.u64(tstate + u64::from(list.tstate_thread_id))?;
            if pthread_tid(pid, pthread) == Some(tid) {
                return Ok(Some(tstate));
            }
            tstate = memory.u64(tstate + u64::from(list.tstate_next))?;
        }
        left = left.saturating_sub(1);
        interpreter = memory.u64(interpreter + u64::from(list.interp_next))?;
    }
    Ok(None)
}
