//! What processes run, and their threads' Python frames, read from outside.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use underspan_cpython::code::CodeReader;
use underspan_cpython::{InspectError, Inspector, Interpreter};
use underspan_model::StackEnd;
use underspan_trackers::ThreadSnapshot;
use underspan_trackers::stack::PythonFrame;

/// Processes of which it is remembered what they run.
const PROCESSES: usize = 256;
/// A Python that could not be read is looked at again after this long.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// What processes run.
pub(super) struct Pythons {
    inspector: Inspector,
    known: HashMap<u32, Python>,
}

enum Python {
    Known(Box<(Interpreter, CodeReader)>),
    /// There is none.
    None,
    /// There is one that cannot be read, until then at least.
    Refused(Instant),
}

impl Pythons {
    pub(super) fn new() -> Self {
        Pythons { inspector: Inspector::new(), known: HashMap::new() }
    }

    pub(super) fn forget(&mut self, pid: u32) {
        self.known.remove(&pid);
    }

    /// The thread's Python frames, innermost first.
    pub(super) fn frames(&mut self, thread: &ThreadSnapshot) -> (Vec<PythonFrame>, StackEnd) {
        let refused = (Vec::new(), StackEnd::Unreadable);
        let (interpreter, reader) = match self.of(thread.pid) {
            Python::Known(known) => &**known,
            Python::None => return (Vec::new(), StackEnd::Absent),
            Python::Refused(_) => return refused,
        };
        let Ok(facts) = &interpreter.frames else { return refused };
        let found = facts.read_frames(interpreter.pid, |pthread| pthread == thread.pthread);
        let found = match found {
            Ok(Some(found)) => found,
            // A thread of a library's own.
            Ok(None) => return (Vec::new(), StackEnd::Absent),
            Err(error) => {
                tracing::debug!(thread.pid, thread.tid, "its Python frames: {error}");
                return refused;
            }
        };
        let mut frames = Vec::with_capacity(found.frames.len());
        for frame in &found.frames {
            // No code object stands there: the thread has moved on.
            let Ok(check) = reader.check(frame.code) else {
                return (frames, StackEnd::Inconsistent);
            };
            let &underspan_cpython::RawFrame { code, lasti, entry } = frame;
            frames.push(PythonFrame { code, check, lasti, entry });
        }
        let end = match (frames.is_empty(), found.is_cut) {
            (true, _) => StackEnd::Absent,
            (_, true) => StackEnd::TooDeep,
            _ => StackEnd::Complete,
        };
        (frames, end)
    }

    fn of(&mut self, pid: u32) -> &Python {
        let now = Instant::now();
        if matches!(self.known.get(&pid), Some(Python::Refused(until)) if *until <= now) {
            self.known.remove(&pid);
        }
        if self.known.len() >= PROCESSES && !self.known.contains_key(&pid) {
            self.known.clear();
        }
        let Pythons { inspector, known } = self;
        known.entry(pid).or_insert_with(|| {
            let Ok(id) = i32::try_from(pid) else { return Python::None };
            let found = match inspector.inspect(id) {
                Ok(interpreter) => CodeReader::new(&interpreter)
                    .map(|reader| Python::Known(Box::new((interpreter, reader))))
                    .map_err(|error| error.to_string()),
                Err(InspectError::NotPython) => Ok(Python::None),
                Err(error) => Err(error.to_string()),
            };
            found.unwrap_or_else(|why| {
                tracing::debug!(pid, "waits that go on have no Python frames: {why}");
                Python::Refused(now + LOOK_AGAIN)
            })
        })
    }
}
