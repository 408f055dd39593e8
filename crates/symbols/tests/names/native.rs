//! C, C++, Rust and Go; files that are deleted, apart, or in another mount namespace; JIT compilers.

use std::fs;
use std::path::Path;
use std::process::Command;

use underspan_model::{Frame, FrameKind, Stack};
use underspan_symbols::{Kallsyms, Symbolizer};
use underspan_trackers::stack::RawStack;

use crate::program::{Program, run, source};

fn c(folder: &Path, flags: &[&str]) -> std::path::PathBuf {
    let output = folder.join("stack");
    assert!(run(Command::new("gcc").args(flags).arg(source("stack.c")).arg("-o").arg(&output)));
    output
}

fn named(program: &mut Program) -> Stack {
    let stack = program.stack();
    Symbolizer::new(None).name(program.process(), &stack)
}

fn functions(stack: &Stack) -> Vec<&str> {
    stack.frames.iter().map(|frame| frame.function.as_str()).collect()
}

/// The frames from `main` on.
fn from_main(stack: &Stack) -> &[Frame] {
    let main = stack.frames.iter().position(|frame| frame.function == "main").unwrap();
    &stack.frames[main..]
}

fn check_c(stack: &Stack) {
    let frames = from_main(stack);
    let functions: Vec<_> = frames.iter().map(|frame| frame.function.as_str()).collect();
    assert_eq!(functions, ["main", "middle", "innermost", "inlined"]);
    let lines: Vec<_> = frames.iter().map(|frame| frame.line).collect();
    assert_eq!(lines, [51, 32, 26, 18]);
    for frame in frames {
        assert_eq!((frame.kind, frame.module.as_str()), (FrameKind::Native, "stack"));
        assert!(frame.file.ends_with("programs/stack.c"), "{}", frame.file);
    }
}

#[test]
fn c_with_inlined_functions_and_lines() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(&mut Command::new(c(folder.path(), &["-g", "-O2"])));
    check_c(&named(&mut program));
}

#[test]
fn c_without_debug_information_has_its_functions() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(&mut Command::new(c(folder.path(), &["-O2"])));
    let stack = named(&mut program);
    let functions: Vec<_> = from_main(&stack).iter().map(|frame| frame.function.as_str()).collect();
    assert_eq!(functions, ["main", "middle", "innermost"]);
}

#[test]
fn stripped_functions_are_addresses_in_their_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = c(folder.path(), &["-O2", "-s", "-pie"]);
    let text = |stack: &Stack| {
        let own = stack.frames.iter().filter(|frame| frame.module == "stack");
        own.map(|frame| frame.function.clone()).collect::<Vec<_>>()
    };
    let first = text(&named(&mut Program::start(&mut Command::new(&path))));
    let second = text(&named(&mut Program::start(&mut Command::new(&path))));
    assert!(first.len() >= 3 && first.iter().all(|name| name.starts_with("0x")), "{first:?}");
    assert_eq!(first, second, "wherever it is loaded");
}

#[test]
fn a_deleted_file_is_read_through_its_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = c(folder.path(), &["-g", "-O2"]);
    let mut program = Program::start(&mut Command::new(&path));
    let stack = program.stack();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another file by now").unwrap();
    check_c(&Symbolizer::new(None).name(program.process(), &stack));
}

#[test]
fn another_mount_namespace_is_no_obstacle() {
    let folder = tempfile::tempdir().unwrap();
    let path = c(folder.path(), &["-g", "-O2"]);
    let inside = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs none "$2" && cp "$1" "$2/stack" && exec "$2/stack""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "-"]).args([&path, inside.path()]);
    let mut program = Program::start(&mut command);
    let stack = program.stack();
    assert!(!inside.path().join("stack").exists());
    check_c(&Symbolizer::new(None).name(program.process(), &stack));
}

#[test]
fn a_process_that_is_gone_was_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(&mut Command::new(c(folder.path(), &["-g", "-O2"])));
    let (stack, process) = (program.stack(), program.process());
    let mut symbolizer = Symbolizer::new(None);
    symbolizer.learn(process);
    drop(program);
    symbolizer.ended(process);
    check_c(&symbolizer.name(process, &stack));

    let stranger = Symbolizer::new(None).name(process, &stack);
    assert_eq!(stranger.frames.len(), stack.native.len());
    assert!(functions(&stranger).iter().all(|name| name.starts_with("0x")), "{stranger:?}");
}

#[test]
fn what_a_jit_compiler_made_is_in_its_perf_map() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(&mut Command::new(c(folder.path(), &["-O2"])));
    program.stack();
    let mut stack = program.stack();
    stack.native[0] += 0x3f;
    let named = Symbolizer::new(None).name(program.process(), &stack);
    fs::remove_file(format!("/tmp/perf-{}.map", stack.pid)).unwrap();
    let [frame] = &named.frames[..] else { panic!("{named:?}") };
    assert_eq!(
        (frame.function.as_str(), frame.module.as_str()),
        ("Script:compiled /app/index.js:7", "[jit]")
    );
}

#[test]
fn cpp_is_demangled() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("stack");
    let mut compiler = Command::new("g++");
    assert!(run(compiler.args(["-O2", "-g"]).arg(source("stack.cc")).arg("-o").arg(&output)));
    let stack = named(&mut Program::start(&mut Command::new(output)));
    let function = &from_main(&stack)[1].function;
    assert_eq!(function, "shop::Cart<int>::add(int, char const*)");
}

#[test]
fn rust_is_demangled() {
    let folder = tempfile::tempdir().unwrap();
    for flags in [&["-g"][..], &["-Cstrip=debuginfo"]] {
        let output = folder.path().join("stack");
        let mut compiler = Command::new("rustc");
        compiler.args(["-O", "--edition=2021"]).args(flags).arg(source("stack.rs")).arg("-o");
        if !run(compiler.arg(&output)) {
            return;
        }
        let mut program = Program::start(&mut Command::new(&output));
        let mut raw = program.stack();
        // Function addresses, but all except the first are taken for return addresses.
        raw.native[1] += 1;
        let stack = Symbolizer::new(None).name(program.process(), &raw);
        let functions = functions(&stack);
        assert_eq!(functions[0], "stack::main");
        let total = functions.iter().any(|name| {
            *name == "<stack::shop::Cart<u32> as stack::shop::Total>::total" || *name == "total"
        });
        assert!(total, "{functions:?}");
    }
}

#[test]
fn go_has_names_even_when_stripped() {
    let folder = tempfile::tempdir().unwrap();
    for (flags, strip) in [
        (&[][..], false),
        (&["-ldflags=-s -w"], true),
        (&["-ldflags=-s -w", "-buildmode=pie"], true),
    ] {
        let output = folder.path().join("stack");
        let mut compiler = Command::new("go");
        compiler.arg("build").args(flags).arg("-o").arg(&output).arg(source("stack.go"));
        if !run(compiler.env("CGO_ENABLED", "0")) {
            return;
        }
        if strip {
            assert!(run(Command::new("strip").arg(&output)));
        }
        let stack = named(&mut Program::start(&mut Command::new(&output)));
        let names = functions(&stack);
        assert_eq!(names[0], "runtime.goexit", "{flags:?} {names:?}");
        assert_eq!(names[1], "runtime.main");
        assert!(names.contains(&"main.main") && names.contains(&"main.work"), "{names:?}");
        let method = names.last().unwrap();
        assert!(method.starts_with("main.(*cart[") && method.ends_with(".add"), "{names:?}");
    }
}

#[test]
fn kernel_frames_come_last_and_have_their_module() {
    let text = fs::read_to_string("/proc/kallsyms").unwrap();
    let address = |name: &str| {
        let line = text.lines().find(|line| line.ends_with(&format!(" T {name}"))).unwrap();
        u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
    };
    let kernel = vec![address("schedule") + 8, address("schedule_timeout") + 8];
    if kernel.contains(&8) {
        eprintln!("skipped: the kernel's addresses are hidden from this user");
        return;
    }
    let stack = RawStack { pid: std::process::id(), kernel, ..RawStack::default() };
    let process = underspan_symbols::Incarnation::of(stack.pid, 0);
    let named = Symbolizer::new(Some(Kallsyms::open().unwrap())).name(process, &stack);
    assert_eq!(functions(&named), ["schedule_timeout", "schedule"]);
    assert!(named.frames.iter().all(|frame| frame.module == "[kernel]"));
    let bare = Symbolizer::new(None).name(process, &stack);
    assert_eq!(functions(&bare)[1], format!("{:#x}", stack.kernel[0]));
}
