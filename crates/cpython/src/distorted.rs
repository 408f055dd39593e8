//! The self-check against offsets that are wrong.

use std::time::{Duration, Instant};

use crate::layout::{GilAt, Layout};
use crate::{EntryMark, InspectError, Inspector, Instruction};

#[path = "../tests/common/mod.rs"]
mod common;

/// With one thread only, the list's head and other pointers to that thread are the same.
const TWO_THREADS: &str = "
import threading
threading.Thread(target=sys.stdin.read, daemon=True).start()
say('ready')
threading.Event().wait()
";

/// Changes one offset.
type Distortion = fn(&mut Layout);

/// Every offset that is handed out or followed, wrong by a word.
const WRONG: [(&str, Distortion); 12] = [
    ("head", |layout| layout.interpreters_head += 8),
    ("gil after", |layout| layout.gil = shifted(layout.gil, 8)),
    ("gil before", |layout| layout.gil = shifted(layout.gil, -8)),
    ("collecting after", |layout| layout.gc_collecting += 8),
    ("stats after", |layout| layout.gc_stats += 8),
    ("stats before", |layout| layout.gc_stats -= 8),
    ("threads", |layout| layout.interp_threads += 8),
    ("interp", |layout| layout.tstate_interp += 8),
    ("prev", |layout| layout.tstate_prev += 16),
    ("thread id", |layout| layout.tstate_thread_id += 8),
    ("thread id before", |layout| layout.tstate_thread_id -= 8),
    ("native id", |layout| {
        // Before 3.11 there is none: the pthread id must not pass for one.
        layout.tstate_native_id = Some(layout.tstate_native_id.map_or(176, |id| id + 8));
    }),
];

/// Every offset on the way to a frame and to what it runs, wrong by a word, or by a byte.
const WRONG_FRAMES: [(&str, Distortion); 17] = [
    ("frame after", |layout| layout.frames.tstate_frame += 8),
    ("frame before", |layout| layout.frames.tstate_frame -= 8),
    ("cframe", |layout| match &mut layout.frames.cframe_frame {
        Some(offset) => *offset ^= 8,
        none => *none = Some(0),
    }),
    ("previous after", |layout| layout.frames.previous += 8),
    ("previous before", |layout| layout.frames.previous -= 8),
    ("code after", |layout| layout.frames.code += 8),
    ("instruction after", |layout| layout.frames.instruction = moved(layout, 8)),
    ("instruction before", |layout| layout.frames.instruction = moved(layout, -8)),
    ("entry after", |layout| layout.frames.entry = marked(layout, 1)),
    ("entry before", |layout| layout.frames.entry = marked(layout, -1)),
    ("file before", |layout| layout.frames.object.filename -= 8),
    ("name after", |layout| layout.frames.object.name += 32),
    ("qualname", |layout| layout.frames.object.qualname = Some(136)),
    ("lines after", |layout| layout.frames.object.linetable += 8),
    ("lines before", |layout| layout.frames.object.linetable -= 8),
    ("size after", |layout| layout.frames.object.basicsize += 8),
    ("size before", |layout| layout.frames.object.basicsize -= 8),
];

fn moved(layout: &Layout, by: i8) -> Instruction {
    let mut instruction = layout.frames.instruction;
    let (Instruction::Index { offset, .. } | Instruction::Address { offset, .. }) =
        &mut instruction;
    *offset = offset.wrapping_add_signed(by);
    instruction
}

/// Before 3.11 there is no mark: some byte must not pass for one.
fn marked(layout: &Layout, by: i8) -> EntryMark {
    match layout.frames.entry {
        EntryMark::Every => EntryMark::Shim(16),
        EntryMark::Flag(offset) => EntryMark::Flag(offset.wrapping_add_signed(by)),
        EntryMark::Shim(offset) => EntryMark::Shim(offset.wrapping_add_signed(by)),
    }
}

#[test]
fn frames_at_wrong_offsets_are_refused_never_used() {
    for python in common::interpreters() {
        let mut program = common::Program::start(&python, TWO_THREADS);
        program.hear();
        let mut inspector = Inspector::new();
        inspector.inspect(program.pid()).unwrap().frames.unwrap();
        for (what, distort) in WRONG_FRAMES {
            inspector.distort = Some(distort);
            let found = inspector.inspect(program.pid()).unwrap();
            let why = found.frames.expect_err(&format!("{python:?}: {what}"));
            eprintln!("{python:?}: {what}: {why}");
        }
    }
}

fn shifted(gil: GilAt, by: i64) -> GilAt {
    match gil {
        GilAt::Runtime(offset) => GilAt::Runtime(offset.wrapping_add_signed(by)),
        GilAt::Interpreter(offset) => GilAt::Interpreter(offset.wrapping_add_signed(by)),
    }
}

#[test]
fn wrong_offsets_are_refused_never_used() {
    for python in common::interpreters() {
        let mut program = common::Program::start(&python, TWO_THREADS);
        program.hear();
        let mut inspector = Inspector::new();
        inspector.inspect(program.pid()).unwrap();
        for (what, distort) in WRONG {
            inspector.distort = Some(distort);
            let error = inspector.inspect(program.pid()).expect_err(&format!("{python:?}: {what}"));
            assert!(
                matches!(error, InspectError::SelfCheck { .. } | InspectError::NotReady(_)),
                "{python:?}: {what}: {error}"
            );
        }
    }
}

/// Reads dicts where there are none: whatever is found there, it ends, and soon.
#[test]
fn thread_names_end_whatever_memory_holds() {
    for python in common::interpreters() {
        let mut program = common::Program::start(&python, TWO_THREADS);
        program.hear();
        let sound = Inspector::new().inspect(program.pid()).unwrap();
        let names = sound.thread_names().unwrap();
        assert_eq!(names.len(), 2, "{python:?}");
        for offset in (0..4096).step_by(8) {
            let start = Instant::now();
            let mut modules = sound.clone();
            modules.layout.interp_modules = offset;
            // Not every offset misses: some lead to sys.modules by another way.
            if let Ok(found) = modules.thread_names() {
                assert!(found.is_empty() || found == names, "{python:?} {offset}: {found:?}");
            }
            let mut values = sound.clone();
            values.layout.type_cached_keys = offset;
            let _ = values.thread_names();
            assert!(start.elapsed() < Duration::from_secs(2), "{python:?} {offset}");
        }
    }
}
