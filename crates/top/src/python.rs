//! The Python frames of a thread, read from outside while it runs on.

use underspan_cpython::code::{CodeReader, Location};
use underspan_cpython::{Interpreter, pthread_tid};

/// A thread that runs moves on while it is read.
const ATTEMPTS: usize = 3;

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
    let pid = interpreter.pid;
    let read = || facts.read_frames(pid, |pthread| pthread_tid(pid, pthread) == Some(tid));
    let mut found = None;
    for _ in 0..ATTEMPTS {
        found = read().map_err(|error| error.to_string())?;
        if read().is_ok_and(|again| again == found) {
            break;
        }
    }
    let frames = found.map(|found| found.frames).unwrap_or_default();
    let named = frames.iter().filter_map(|frame| {
        let check = reader.check(frame.code).ok()?;
        reader.locate(frame.code, check, frame.lasti).ok()
    });
    Ok(named.collect())
}
