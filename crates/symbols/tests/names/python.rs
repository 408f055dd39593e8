//! Python: each interpreter on this machine, stripped ones too.

use std::process::Command;

use underspan_cpython::code::CodeReader;
use underspan_model::{FrameKind, Stack};
use underspan_symbols::{Incarnation, Symbolizer};
use underspan_trackers::stack::{PythonFrame, RawStack};

use crate::program::{Program, addresses, source};

#[path = "../../../cpython/tests/common/mod.rs"]
mod common;

/// What the program printed, as the walkers would record it.
fn raw(line: &str, reader: &CodeReader, process: Incarnation) -> RawStack {
    let (native, python) = line.split_once(" | ").unwrap();
    let frame = |word: &str| {
        let mut fields = word.split(':');
        let mut hex = || u64::from_str_radix(fields.next().unwrap(), 16).unwrap();
        let (code, lasti, entry) = (hex(), hex() as u32, hex() == 1);
        PythonFrame { code, check: reader.check(code).unwrap(), lasti, entry }
    };
    let python = python.split_whitespace().map(frame).collect();
    RawStack { pid: process.pid, native: addresses(native), python, ..RawStack::default() }
}

/// Python's functions, and the C functions between them that are not the interpreter's own plumbing.
fn outline(stack: &Stack) -> Vec<String> {
    let frames = stack.frames.iter().map(|frame| match frame.kind {
        FrameKind::Python => format!("@{}", frame.function.rsplit('.').next().unwrap()),
        _ => frame.function.clone(),
    });
    let wanted = ["builtin_sorted", "list_sort_impl", "list_extend"];
    frames.filter(|name| name.starts_with('@') || wanted.contains(&name.as_str())).collect()
}

#[test]
fn python_frames_are_where_the_evaluator_ran_them() {
    for python in common::interpreters() {
        let mut command = Command::new(&python.path);
        let mut program = Program::start(command.arg(source("stack.py")));
        let lines = [program.line(), program.line(), program.line()];
        let process = program.process();
        let interpreter = underspan_cpython::inspect(process.pid as i32).unwrap();
        let reader = CodeReader::new(&interpreter).unwrap();
        let mut symbolizer = Symbolizer::new(None);
        let mut name = |line: &str| {
            let stack = symbolizer.name(process, &raw(line, &reader, process));
            assert_eq!(stack.truncated, "", "{python:?} {stack:#?}");
            stack
        };
        let [calling, sorting, generating] =
            [&lines[0], &lines[1], &lines[2]].map(|line| name(line));
        let about = |stack: &Stack| format!("{python:?} {:#?}", stack.frames);

        assert_eq!(
            outline(&calling),
            ["@<module>", "@outer", "@calling", "@stack"],
            "{}",
            about(&calling)
        );
        let python_only = |stack: &Stack| -> Vec<String> {
            outline(stack).into_iter().filter(|name| name.starts_with('@')).collect()
        };
        let expected = ["@<module>", "@outer", "@sorting", "@key", "@stack"];
        assert_eq!(python_only(&sorting), expected, "{}", about(&sorting));
        let expected = ["@<module>", "@outer", "@generating", "@numbers", "@stack"];
        assert_eq!(python_only(&generating), expected, "{}", about(&generating));
        if !interpreter.stripped {
            let outline = outline(&sorting);
            let at = |name: &str| outline.iter().position(|found| found == name);
            assert!(at("@sorting") < at("builtin_sorted"), "{}", about(&sorting));
            assert!(at("builtin_sorted") < at("@key"), "{}", about(&sorting));
        }
        let in_stack = calling.frames.iter().rfind(|f| f.kind == FrameKind::Python).unwrap();
        assert!(in_stack.file.ends_with("programs/stack.py"), "{in_stack:?}");
        assert!((14..=26).contains(&in_stack.line), "{in_stack:?}");
        // Nothing of the machinery is left, and the call into C is innermost.
        for stack in [&calling, &sorting, &generating] {
            let evaluators = stack
                .frames
                .iter()
                .filter(|f| f.function.contains("EvalFrame") && f.kind == FrameKind::Native);
            assert_eq!(evaluators.count(), 0, "{}", about(stack));
            assert_eq!(stack.frames.last().unwrap().kind, FrameKind::Native);
        }
        if python.version.1 >= 11 {
            let key = sorting.frames.iter().find(|frame| frame.function.ends_with("key")).unwrap();
            assert_eq!(key.function, "Item.key");
        }
    }
}
