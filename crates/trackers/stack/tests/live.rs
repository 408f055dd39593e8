//! The walker on living interpreters, against what each says of its own threads.

use std::path::Path;

use underspan_cpython::Inspector;
use underspan_cpython::code::{CodeNames, CodeReader};
use underspan_model::StackEnd;

use super::recording::{Living, Recording, Thread};
use super::walker::walk;
use crate::record::PYTHON_FRAMES;
use crate::stack::{PythonFrame, PythonLayout};

#[path = "../../../cpython/tests/common/mod.rs"]
mod common;

use common::trees::{self, Frame, Told};
use common::{Program, Python, interpreters};

/// In 3.8 to 3.10 each frame has an evaluator of its own; then only those that C code called.
fn must_be_entry(python: &Python, told: &[Frame], index: usize) -> Option<bool> {
    let (name, caller) = (&told[index].name, told.get(index + 1));
    if python.version.1 < 11 || name.starts_with("c_") || caller.is_none() {
        return Some(true);
    }
    // Calls with *arguments go through C before 3.12.
    let stars = caller.is_some_and(|caller| ["run", "p_star"].contains(&&*caller.name));
    (name.starts_with("p_") && !stars).then_some(false)
}

fn compare(python: &Python, told: &Told, frames: &[PythonFrame], reader: &CodeReader) {
    assert_eq!(frames.len(), told.frames.len().min(PYTHON_FRAMES as usize));
    for (index, (found, frame)) in frames.iter().zip(&told.frames).enumerate() {
        let place = format!("{python:?} {} {index}: {frame:?}, {found:?}", told.thread);
        assert_eq!((found.code, found.lasti), (frame.code, frame.lasti), "{place}");
        assert_eq!(found.check, reader.check(frame.code).unwrap(), "{place}");
        if let Some(entry) = must_be_entry(python, &told.frames, index) {
            assert_eq!(found.entry, entry, "{place}");
        }
    }
}

#[test]
fn frames_of_living_interpreters_are_those_they_tell() {
    for python in interpreters() {
        let mut program = Program::start(&python, &trees::program());
        let told = trees::hear(&mut program);
        let interpreter = Inspector::new().inspect(program.pid()).unwrap();
        let layout = PythonLayout::from(interpreter.frames.as_ref().unwrap()).0;
        let reader = CodeReader::new(&interpreter).unwrap();
        let mut memory = Living::new(program.pid());
        let mut threads = Vec::new();
        // All but the first stand still.
        for told in &told[1..] {
            if told.frames.len() > PYTHON_FRAMES as usize {
                continue;
            }
            let walked = walk(&mut memory, &layout, told.pthread, 0);
            assert_eq!(walked.end, StackEnd::Complete, "{python:?} {}", told.thread);
            compare(&python, told, &walked.frames, &reader);
            // The thread's state is where it was, and need not be searched for.
            let again = walk(&mut memory, &layout, told.pthread, walked.tstate);
            assert_eq!(walked, again, "{python:?} {}", told.thread);
            let elsewhere = walk(&mut memory, &layout, told.pthread, threads_state(&threads));
            assert_eq!(walked, elsewhere, "{python:?} {}", told.thread);
            threads.push(Thread { name: told.thread.clone(), pthread: told.pthread, walk: walked });
        }
        assert!(threads.len() > 20);
        let recorded = std::mem::take(&mut memory.read);

        let deep = told.iter().find(|told| told.frames.len() > PYTHON_FRAMES as usize).unwrap();
        let walked = walk(&mut memory, &layout, deep.pthread, 0);
        assert_eq!(walked.end, StackEnd::TooDeep, "{python:?}");
        compare(&python, deep, &walked.frames, &reader);
        let walked = walk(&mut memory, &layout, 0x1234_5670, 0);
        assert_eq!((walked.end, walked.frames.len()), (StackEnd::Absent, 0), "{python:?}");

        if std::env::var_os("UNDERSPAN_RECORD").is_some() {
            let version = python.version;
            let name = format!("python-{}.{}.{}.gz", version.0, version.1, version.2);
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("stack/tests/recordings");
            Recording { layout, threads, memory: recorded }.save(&folder.join(name));
        }
    }
}

/// Another thread's state.
fn threads_state(threads: &[Thread]) -> u64 {
    threads.first().map_or(0, |thread| thread.walk.tstate)
}

const SUBINTERPRETER: &str = r"
import threading, time
try:
    import _interpreters as interpreters
except ImportError:
    try: import _xxsubinterpreters as interpreters
    except ImportError: interpreters = None
def outer():
    id = interpreters.create()
    interpreters.run_string(id, '''
def inner():
    import time
    time.sleep(1000)
inner()
''')
if interpreters:
    threading.Thread(target=outer, daemon=True).start()
    time.sleep(1)
say(threading.enumerate()[-1].ident if interpreters else 0)
sys.stdin.readline()
";

/// A thread that runs a subinterpreter has frames in both.
#[test]
fn frames_of_a_subinterpreter_are_further_in() {
    for python in interpreters() {
        let mut program = Program::start(&python, SUBINTERPRETER);
        let pthread: u64 = program.hear().parse().unwrap();
        if pthread == 0 {
            continue;
        }
        let interpreter = Inspector::new().inspect(program.pid()).unwrap();
        let layout = PythonLayout::from(interpreter.frames.as_ref().unwrap()).0;
        let walked = walk(&mut Living::new(program.pid()), &layout, pthread, 0);
        assert_eq!(walked.end, StackEnd::Complete, "{python:?}");
        let mut names = CodeNames::new();
        let functions: Vec<_> = walked
            .frames
            .iter()
            .map(|f| names.locate(program.pid(), f.code, f.check, f.lasti).unwrap().function)
            .map(|function| function.rsplit('.').next().unwrap_or_default().to_owned())
            .collect();
        let expected = ["inner", "<module>", "outer", "run", "_bootstrap_inner", "_bootstrap"];
        assert_eq!(functions, expected, "{python:?}");
        assert!(walked.frames[1].entry && !walked.frames[2].entry || python.version.1 < 12);
    }
}
