//! Puts Python's frames where the native frames of CPython's evaluator are.
//!
//! Each time the evaluator is entered it runs one Python function up to CPython 3.10, and from 3.11 on
//! as many as call each other without C in between. The Python frame for which it was entered is
//! marked: so each native frame of the evaluator stands for the Python frames up to and including
//! the next marked one, counted from the innermost.
//!
//! ```text
//!  native, innermost first      Python, innermost first       together, outermost first
//!  clock_nanosleep                                             main
//!  time_sleep                                                  <module>
//!  _PyEval_EvalFrameDefault ◀── key        (entry)             builtin_sorted
//!  list_sort                                                   list_sort
//!  builtin_sorted                                              key
//!  _PyEval_EvalFrameDefault ◀── run                            time_sleep
//!  main                         <module>   (entry)             clock_nanosleep
//! ```

use std::rc::Rc;

use underspan_model::Frame;

use crate::JIT;
use crate::plumbing::{is_cpython, passes_calls_on, starts};

/// What is at one native address.
#[derive(Clone, Debug)]
pub(crate) struct NativeFrame {
    /// The innermost first: functions that were inlined, then the one they were inlined into.
    pub(crate) frames: Rc<[Frame]>,
    /// It is CPython's evaluator.
    pub(crate) evaluator: bool,
    /// It lies in the binary that CPython is in.
    pub(crate) interpreter: bool,
    /// A symbol was found.
    pub(crate) known: bool,
}

/// A Python function that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PythonCall {
    /// Its name and place.
    pub(crate) frame: Frame,
    /// The evaluator was entered for it.
    pub(crate) entry: bool,
}

/// Which of the two lack outer frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Truncated {
    pub(crate) native: bool,
    pub(crate) python: bool,
}

/// Both together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interleaved {
    /// The outermost first.
    pub(crate) frames: Vec<Frame>,
    /// Their counts disagree: the Python frames are all there and in order, but may be at the wrong
    /// native ones.
    pub(crate) mismatch: bool,
}

/// Where a native frame stands among the Python ones. Says what may be left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Called by the innermost Python function.
    Inside,
    /// Between two Python functions.
    Between,
    /// Calls the outermost Python function.
    Outside,
}

/// Puts both together. Both are innermost first.
pub(crate) fn interleave(
    native: &[NativeFrame],
    python: Vec<PythonCall>,
    truncated: Truncated,
) -> Interleaved {
    let mut groups = Groups(python.into_iter().peekable());
    if groups.is_empty() {
        return Interleaved { frames: outermost_first(native), mismatch: false };
    }
    // One that was just entered, or is being left, has no Python frame: it can only be the innermost.
    let evaluators = native.iter().filter(|frame| frame.evaluator).count();
    let idle_first =
        native.first().is_some_and(|frame| frame.evaluator) && groups.count() + 1 == evaluators;

    let mut out = Vec::new();
    let mut run: Vec<&NativeFrame> = Vec::new();
    let mut place = Place::Inside;
    let mut unmatched = 0;
    // Where Python frames go for which there was no evaluator: outside the last that there was.
    let mut last_python = None;
    for (index, frame) in native.iter().enumerate() {
        let group = if frame.evaluator && !(index == 0 && idle_first) {
            groups.next_group()
        } else {
            Vec::new()
        };
        if group.is_empty() {
            unmatched += usize::from(frame.evaluator && !(index == 0 && idle_first));
            run.push(frame);
            continue;
        }
        keep(&mut out, &run, place);
        run.clear();
        place = Place::Between;
        out.extend(group);
        last_python = Some(out.len());
    }
    let left: Vec<_> = groups.rest();
    let mismatch = (unmatched > 0 && !truncated.python) || (!left.is_empty() && !truncated.native);
    match last_python {
        // The native walk did not get as far out as these are; or nobody knows, and it is marked.
        Some(at) if !truncated.native => {
            keep(&mut out, &run, Place::Outside);
            out.splice(at..at, left);
        }
        _ => {
            let place = if left.is_empty() { Place::Outside } else { place };
            keep(&mut out, &run, place);
            out.extend(left);
        }
    }
    out.reverse();
    Interleaved { frames: out, mismatch }
}

/// Python frames, taken one evaluator's at a time.
struct Groups(std::iter::Peekable<std::vec::IntoIter<PythonCall>>);

impl Groups {
    fn is_empty(&mut self) -> bool {
        self.0.peek().is_none()
    }

    fn count(&self) -> usize {
        let calls: Vec<bool> = self.0.clone().map(|call| call.entry).collect();
        calls.split_inclusive(|entry| *entry).count()
    }

    fn next_group(&mut self) -> Vec<Frame> {
        let mut group = Vec::new();
        for call in self.0.by_ref() {
            group.push(call.frame);
            if call.entry {
                break;
            }
        }
        group
    }

    fn rest(self) -> Vec<Frame> {
        self.0.map(|call| call.frame).collect()
    }
}

/// Appends native frames, innermost first, without those that only connect.
fn keep(out: &mut Vec<Frame>, run: &[&NativeFrame], place: Place) {
    for native in run {
        for frame in native.frames.iter() {
            let innermost = out.is_empty();
            if innermost || !is_plumbing(native, &frame.function, &frame.module, place) {
                out.push(frame.clone());
            }
        }
    }
}

fn is_plumbing(native: &NativeFrame, function: &str, module: &str, place: Place) -> bool {
    // With `-X perf` each Python function has a piece of machine code, to be seen by other tools.
    if module == JIT && function.starts_with("py::") {
        return true;
    }
    if !native.interpreter || native.evaluator {
        return false;
    }
    if !native.known {
        // Stripped: called by Python it may be what the program waits in; between, it connects.
        return place != Place::Inside && is_cpython(module);
    }
    passes_calls_on(function) || (place != Place::Inside && starts(function))
}

fn outermost_first(native: &[NativeFrame]) -> Vec<Frame> {
    native.iter().rev().flat_map(|frame| frame.frames.iter().rev()).cloned().collect()
}

#[cfg(test)]
#[path = "interleave/tests.rs"]
mod tests;
