//! Programs that know their own stacks.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};
use underspan_trackers::ProbedBinary;

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/unwind/programs").join(name)
}

/// Where programs are put.
pub(crate) fn output(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unwind");
    fs::create_dir_all(&folder).expect("a folder");
    folder.join(name)
}

/// They are there already: a machine without compilers runs what another has built (tests/kernels).
fn are_built() -> bool {
    std::env::var_os("UNDERSPAN_TEST_PROGRAMS_BUILT").is_some()
}

fn run(command: &mut Command) {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// A C program or library without frame pointers. Built once: other tests run it, or copy it, meanwhile.
pub(crate) fn c(name: &str, from: &str, flags: &[&str]) -> PathBuf {
    static BUILT: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let finished = output(name);
    if built.contains(name) || are_built() {
        return finished;
    }
    // Another run of these tests may be using the last one.
    let output = output(&format!("{name}.{}", std::process::id()));
    run(Command::new(std::env::var("CC").unwrap_or_else(|_| "gcc".to_owned()))
        .args(["-O2", "-fomit-frame-pointer", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .args(["-Wno-clobbered", "-Wno-infinite-recursion"])
        .args(flags)
        .arg(source(from))
        .arg("-o")
        .arg(&output)
        .args(["-ldl", "-lrt"]));
    fs::rename(&output, &finished).expect("it was just built");
    built.insert(name.to_owned());
    finished
}

pub(crate) fn rust() -> PathBuf {
    let output = output("rust-trees");
    if are_built() {
        return output;
    }
    run(Command::new("rustc")
        .args(["-O", "--edition=2021", "-Cforce-frame-pointers=no"])
        .arg(source("rust.rs"))
        .arg("-o")
        .arg(&output));
    output
}

/// `None`: there is no Go compiler here.
pub(crate) fn go() -> Option<PathBuf> {
    let output = output("go-trees");
    if are_built() {
        return output.exists().then_some(output);
    }
    Command::new("go").arg("version").output().ok()?;
    run(Command::new("go")
        .env("CGO_ENABLED", "1")
        .args(["build", "-o"])
        .arg(&output)
        .arg(source("go.go")));
    Some(output)
}

/// Where functions are in a file.
pub(crate) fn offsets(binary: &Path, functions: &[&str]) -> Vec<u64> {
    let bytes = fs::read(binary).expect("it was just built");
    let file = object::File::parse(bytes.as_slice()).expect("an ELF file");
    let offset = |function: &&str| {
        let symbol = file.symbols().find(|symbol| symbol.name() == Ok(function));
        let address = symbol.expect("it has that function").address();
        let within = |segment: &object::Segment<'_, '_>| {
            (segment.address()..segment.address() + segment.size()).contains(&address)
        };
        let segment = file.segments().find(within).expect("it is mapped");
        address - segment.address() + segment.file_range().0
    };
    functions.iter().map(offset).collect()
}

/// As what probes are attached to.
pub(crate) fn probed(binary: &Path) -> ProbedBinary {
    let meta = fs::metadata(binary).expect("it was just built");
    ProbedBinary { path: binary.to_owned(), dev: meta.dev(), inode: meta.ino() }
}

/// A running one. It ends when this is dropped.
pub(crate) struct Program {
    pub(crate) pid: u32,
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts it, up to where it waits to be told to begin.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut program = Program { pid: child.id(), child, output };
        assert_eq!(program.line(), "ready");
        program
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the program speaks");
        line.trim().to_owned()
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().expect("it is piped"), "{line}").expect("it reads");
    }

    /// Lets it play its role. The thread that sleeps, and what it says of its stack.
    pub(crate) fn play(&mut self) -> (u32, Vec<u64>) {
        self.tell("go");
        let line = self.line();
        let mut words = line.split_whitespace();
        let tid = words.next().and_then(|word| word.parse().ok());
        let addresses = words.map(|word| u64::from_str_radix(word, 16).expect("hex")).collect();
        (tid.unwrap_or_else(|| panic!("it said {line:?}")), addresses)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
