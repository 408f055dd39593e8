use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::*;

const SOURCE: &str = "\
static int add(int a, int b) { return a * b; }
__attribute__((noinline)) int work(int a) { return add(a, a); }
int main(int argc, char **argv) { (void)argv; return work(argc); }
";

fn run(command: &mut Command) {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A program with debug information, and where in the file its function `work` is.
fn program(folder: &Path) -> (PathBuf, u64) {
    let path = folder.join("program");
    fs::write(folder.join("program.c"), SOURCE).unwrap();
    let mut compiler = Command::new("gcc");
    compiler.args(["-g", "-O2", "-Wl,--build-id", "program.c", "-o", "program"]);
    run(compiler.current_dir(folder));
    let bytes = fs::read(&path).unwrap();
    let elf = object::read::elf::ElfFile64::<object::LittleEndian>::parse(&*bytes).unwrap();
    use object::{Object as _, ObjectSymbol as _};
    let work = elf.symbols().find(|symbol| symbol.name() == Ok("work")).unwrap().address();
    // gcc puts code at the same place in the file.
    (path, work)
}

fn names(path: &Path, debug: &DebugFiles, offset: u64) -> Option<Vec<(String, u32)>> {
    let mut binary = Binary::new(File::open(path).unwrap(), debug, None)?;
    let named = binary.name(offset, "program");
    Some(named.frames.iter().map(|frame| (frame.function.clone(), frame.line)).collect())
}

#[test]
fn a_debug_file_apart_is_found_by_its_build_id() {
    let folder = tempfile::tempdir().unwrap();
    let (path, work) = program(folder.path());
    let expected = vec![("add".to_owned(), 1), ("work".to_owned(), 2)];
    let nowhere = DebugFiles::below(&folder.path().join("nowhere"));
    assert_eq!(names(&path, &nowhere, work), Some(expected.clone()));

    let debug = folder.path().join("debug");
    run(Command::new("objcopy").arg("--only-keep-debug").args([&path, &debug]));
    run(Command::new("strip").arg(&path));
    let bare = vec![(format!("{work:#x}"), 0)];
    assert_eq!(names(&path, &nowhere, work), Some(bare));

    let file = File::open(&path).unwrap();
    let id = Image::parse(&ReadCache::new(&file)).unwrap().build_id().unwrap();
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let place = folder.path().join(&hex[..2]);
    fs::create_dir(&place).unwrap();
    fs::rename(debug, place.join(format!("{}.debug", &hex[2..]))).unwrap();
    assert_eq!(names(&path, &DebugFiles::below(folder.path()), work), Some(expected));
}

#[test]
fn damaged_files_are_bad_news_for_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let (path, work) = program(folder.path());
    let (whole, debug) = (fs::read(&path).unwrap(), DebugFiles::below(folder.path()));
    let damaged = folder.path().join("damaged");
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize
    };
    for round in 0..200 {
        let mut bytes = whole.clone();
        for _ in 0..1 + round {
            let at = random() % bytes.len();
            bytes[at] = random() as u8;
        }
        if round % 3 == 0 {
            bytes.truncate(random() % whole.len());
        }
        fs::write(&damaged, bytes).unwrap();
        if let Some(frames) = names(&damaged, &debug, work) {
            assert!(!frames.is_empty());
        }
    }
}
