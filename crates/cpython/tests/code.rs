//! What frames run, against what each interpreter says of its own threads.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::time::{Duration, Instant};

use common::trees::{self, Told};
use common::{Program, Python, interpreters};
use underspan_cpython::code::{CodeError, CodeNames, CodeReader, Location};
use underspan_cpython::{InspectError, Inspector};

fn start(python: &Python) -> (Program, Vec<Told>) {
    let mut program = Program::start(python, &trees::program());
    let told = trees::hear(&mut program);
    (program, told)
}

#[test]
fn names_and_lines_are_the_ones_python_tells() {
    for python in interpreters() {
        let (program, told) = start(&python);
        let interpreter = Inspector::new().inspect(program.pid()).unwrap();
        let reader = CodeReader::new(&interpreter).unwrap();
        let mut names = CodeNames::new();
        let mut frames = 0;
        for Told { thread, frames: told, .. } in &told {
            for told in told {
                let check = reader.check(told.code).unwrap();
                let found = names.locate(program.pid(), told.code, check, told.lasti).unwrap();
                let qualified = python.version.1 >= 11;
                let expected = Location {
                    file: told.file.as_str().into(),
                    function: if qualified { &*told.qualname } else { &*told.name }.into(),
                    qualified,
                    line: told.line,
                    first_line: told.first_line,
                };
                assert_eq!(found, expected, "{python:?} {thread}");
                frames += 1;
            }
        }
        assert!(frames > 900, "{python:?}: {frames} frames");
    }
}

/// Every line of every function of some modules, not only those where threads wait.
const LINES: &str = r"
import asyncio.base_events, argparse, dis, types
def each(code):
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from each(const)
kept = []
for module in asyncio.base_events, argparse, dis:
    with open(module.__file__) as file:
        kept.append(compile(file.read(), module.__file__, 'exec'))
for module in kept:
    for code in each(module):
        if sys.version_info >= (3, 10):
            runs = [(a, z, line) for a, z, line in code.co_lines() if line is not None]
        else:
            starts = list(dis.findlinestarts(code)) + [(len(code.co_code), 0)]
            runs = [(a, z, line) for (a, line), (z, _) in zip(starts, starts[1:])]
        print(id(code), *(number for run in runs for number in run))
say('end')
for line in lines(): pass
";

#[test]
fn every_instruction_has_its_line() {
    for python in interpreters() {
        let mut program = Program::start(&python, LINES);
        let mut told = Vec::new();
        loop {
            let line = program.hear();
            if line == "end" {
                break;
            }
            let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
            told.push(numbers);
        }
        let interpreter = Inspector::new().inspect(program.pid()).unwrap();
        let mut reader = CodeReader::new(&interpreter).unwrap();
        let mut instructions = 0;
        let start = Instant::now();
        for numbers in &told {
            let (code, runs) = (numbers[0], numbers[1..].as_chunks::<3>().0);
            let check = reader.check(code).unwrap();
            for &[from, to, line] in runs {
                for lasti in (from as u32..to as u32).step_by(2) {
                    let found = reader.locate(code, check, lasti).unwrap();
                    assert_eq!(u64::from(found.line), line, "{python:?} {found:?} at {lasti}");
                    instructions += 1;
                }
            }
        }
        assert!(told.len() > 200 && instructions > 10_000, "{python:?}: {instructions}");
        eprintln!("{} code objects, {instructions} lines in {:?}", told.len(), start.elapsed());
    }
}

#[test]
fn code_that_was_freed_has_no_name() {
    let body = "
import gc
def make(text):
    scope = {}
    exec(compile(text, 'made.py', 'exec'), scope)
    return scope['f']
f = make('def f(): pass')
say(id(f.__code__))
for line in lines():
    f = None
    gc.collect()
    kept = [make(chr(10) * n + 'def f(): return 1') for n in range(200)]
    say('freed')
";
    for python in interpreters() {
        let mut program = Program::start(&python, body);
        let code = program.hear().parse().unwrap();
        let interpreter = Inspector::new().inspect(program.pid()).unwrap();
        let reader = CodeReader::new(&interpreter).unwrap();
        let check = reader.check(code).unwrap();
        program.ask("");
        let mut names = CodeNames::new();
        let error = names.locate(program.pid(), code, check, 0).unwrap_err();
        assert!(matches!(error, CodeError::Replaced), "{python:?}: {error}");
        let error = names.locate(program.pid(), 4096, check, 0).unwrap_err();
        assert!(matches!(error, CodeError::Replaced), "{python:?}: {error}");
    }
}

#[test]
fn what_was_read_stays_known_when_the_process_has_ended() {
    for python in interpreters() {
        let (mut program, told) = start(&python);
        let interpreter = Inspector::new().inspect(program.pid()).unwrap();
        let reader = CodeReader::new(&interpreter).unwrap();
        let [one, other] = [&told[1].frames[0], &told[1].frames[1]];
        let checks = [one, other].map(|frame| reader.check(frame.code).unwrap());
        let mut names = CodeNames::new();
        let before = names.locate(program.pid(), one.code, checks[0], one.lasti).unwrap();
        program.kill();
        let after = names.locate(program.pid(), one.code, checks[0], one.lasti).unwrap();
        assert_eq!(before, after, "{python:?}");
        let error = names.locate(program.pid(), other.code, checks[1], other.lasti).unwrap_err();
        assert!(matches!(error, CodeError::Inspect(InspectError::Gone)), "{python:?}: {error}");
    }
}

#[test]
fn a_program_that_executes_another_is_read_anew() {
    let pythons = interpreters();
    for (python, next) in pythons.iter().zip(pythons.iter().cycle().skip(1)) {
        let body = "import os
def f(): pass
say(id(f.__code__))
sys.stdin.readline()
os.execv(sys.argv[1], [sys.argv[1], '-u', '-c', '''
def g(): pass
print(id(g.__code__))
input()
'''])";
        let body = body.replace("sys.argv[1]", &format!("{:?}", next.path.to_str().unwrap()));
        let mut program = Program::start(python, &body);
        let mut names = CodeNames::new();
        for (function, of) in [("f", python), ("g", next)] {
            let code = program.hear().parse().unwrap();
            let interpreter = Inspector::new().inspect(program.pid()).unwrap();
            let check = CodeReader::new(&interpreter).unwrap().check(code).unwrap();
            let found = names.locate(program.pid(), code, check, 0);
            let found = found.unwrap_or_else(|error| panic!("{of:?}: {error}"));
            assert_eq!(&*found.function, function, "{of:?}");
            // The next program is in a process that is known.
            std::thread::sleep(Duration::from_millis(300));
            program.tell("");
        }
    }
}
