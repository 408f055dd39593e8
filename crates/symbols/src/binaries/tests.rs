use std::path::PathBuf;
use std::process::Command;

use object::{Object as _, ObjectSymbol as _};

use super::*;

/// Functions of a program, one a line.
const FUNCTIONS: u32 = 300;

/// A program with debug information, and where in its file its functions are.
struct Program {
    path: PathBuf,
    functions: Vec<u64>,
    binary: Shared,
}

/// Its functions `PREFIX_N` are at line N.
fn program(folder: &Path, prefix: &str) -> Program {
    let line = |n: u32| format!("int {prefix}_{n}(int a) {{ return a * {n} + {n}; }}\n");
    let source: String = (1..=FUNCTIONS).map(line).collect();
    let (path, text) = (folder.join(prefix), folder.join(format!("{prefix}.c")));
    fs::write(&text, source + "int main(void) { return 0; }\n").unwrap();
    let mut compiler = Command::new("gcc");
    let done = compiler.args(["-g", "-Wl,--build-id"]).arg(text).arg("-o").arg(&path).status();
    assert!(done.unwrap().success());
    let bytes = fs::read(&path).unwrap();
    let elf = object::read::elf::ElfFile64::<object::LittleEndian>::parse(&*bytes).unwrap();
    let at = |name: String| {
        let mut symbols = elf.symbols();
        // gcc puts code at the same place in the file.
        symbols.find(|symbol| symbol.name() == Ok(&*name)).unwrap().address()
    };
    let functions = (1..=FUNCTIONS).map(|n| at(format!("{prefix}_{n}"))).collect();
    let path = path.canonicalize().unwrap();
    let nowhere = DebugFiles::below(&folder.join("nowhere"));
    let binary = Binary::new(File::open(&path).unwrap(), &nowhere, None).unwrap();
    Program { path, functions, binary: Rc::new(RefCell::new(binary)) }
}

fn binaries(programs: &[Program], bounds: Bounds) -> Binaries {
    let mut binaries = Binaries { bounds, ..Binaries::new() };
    for program in programs {
        let id = FileId::of(&program.path).unwrap();
        binaries.by_file.put(id, Some(Rc::clone(&program.binary)));
    }
    binaries
}

/// Function and line of the function with this number.
fn name(binaries: &mut Binaries, program: &Program, number: u32) -> (String, u32) {
    let offset = program.functions[number as usize - 1];
    let named = binaries.name(&program.binary, offset, "program");
    let [frame] = &*named.frames else { panic!("{named:?}") };
    (frame.function.clone(), frame.line)
}

/// Bytes of this process's memory that are the file's, and still there.
fn resident(path: &Path) -> u64 {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    let mut kb = 0;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("Rss:") if inside => kb += words.next().unwrap().parse::<u64>().unwrap(),
            Some(first) if !first.ends_with(':') => inside = line.ends_with(path.to_str().unwrap()),
            _ => {}
        }
    }
    kb << 10
}

#[test]
fn pages_of_files_go_between_look_ups_and_names_stay_right() {
    let folder = tempfile::tempdir().unwrap();
    let programs = ["a"].map(|prefix| program(folder.path(), prefix));
    let [program] = &programs;
    let mut binaries = binaries(&programs, BOUNDS);
    assert_eq!(resident(&program.path), 0);
    assert_eq!(name(&mut binaries, program, 1), ("a_1".into(), 1));
    assert!(resident(&program.path) > 0);
    binaries.rest();
    assert_eq!(resident(&program.path), 0);
    // What was looked up before needs no file.
    assert_eq!(name(&mut binaries, program, 1), ("a_1".into(), 1));
    assert_eq!(resident(&program.path), 0);
    // They come back as they were; and when all of it was let go of.
    assert_eq!(name(&mut binaries, program, 2), ("a_2".into(), 2));
    assert!(resident(&program.path) > 0);
    binaries.close(|_| true);
    assert_eq!((resident(&program.path), binaries.read.len()), (0, 0));
    assert_eq!(name(&mut binaries, program, 3), ("a_3".into(), 3));
}

#[test]
fn what_was_read_is_kept_within_its_bound() {
    let folder = tempfile::tempdir().unwrap();
    let programs = ["a", "b", "c"].map(|prefix| program(folder.path(), prefix));
    let mut unbounded = binaries(&programs, BOUNDS);
    for program in &programs {
        name(&mut unbounded, program, 1);
    }
    let sizes: Vec<_> = unbounded.read.iter().map(|reading| reading.bytes).collect();
    // Of its 300 functions, each with a symbol and a line.
    assert!(sizes.iter().all(|bytes| *bytes > 300 * 16), "{sizes:?}");
    unbounded.close(|_| true);

    let most = sizes[0] * 5 / 2;
    let bounds = Bounds { read: 0, read_at_most: most, ..BOUNDS };
    let mut binaries = binaries(&programs, bounds);
    for number in 2..20 {
        for (program, prefix) in programs.iter().zip(["a", "b", "c"]) {
            let expected = (format!("{prefix}_{number}"), number);
            assert_eq!(name(&mut binaries, program, number), expected);
            let kept: usize = binaries.read.iter().map(|reading| reading.bytes).sum();
            assert!(kept <= most, "{kept} bytes of {} files", binaries.read.len());
        }
    }
}

#[test]
fn where_dwarf_is_too_large_functions_have_no_lines() {
    let folder = tempfile::tempdir().unwrap();
    let programs = ["a"].map(|prefix| program(folder.path(), prefix));
    let [program] = &programs;
    let mut binaries = binaries(&programs, Bounds { dwarf: 1000, ..BOUNDS });
    assert_eq!(name(&mut binaries, program, 1), ("a_1".into(), 1));
    assert_eq!(name(&mut binaries, program, 2), ("a_2".into(), 0));
    // Symbols alone are not closed again and again.
    assert!(program.binary.borrow().is_open());
}

#[test]
fn names_are_kept_within_their_bound() {
    let folder = tempfile::tempdir().unwrap();
    let programs = ["a", "b"].map(|prefix| program(folder.path(), prefix));
    let bounds = Bounds { named: 20_000, ..BOUNDS };
    let mut binaries = binaries(&programs, bounds);
    let mut most = 0;
    for number in 1..=FUNCTIONS {
        for (program, prefix) in programs.iter().zip(["a", "b"]) {
            let expected = (format!("{prefix}_{number}"), number);
            assert_eq!(name(&mut binaries, program, number), expected);
        }
        let kept = programs.iter().map(|program| program.binary.borrow().named_bytes()).sum();
        most = most.max(kept);
    }
    assert!((bounds.named / 2..=bounds.named).contains(&most), "{most}");
}
