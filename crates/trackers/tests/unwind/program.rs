//! Programs that know their own stacks.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/unwind/programs").join(name)
}

/// Where programs are put.
pub(crate) fn output(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unwind");
    fs::create_dir_all(&folder).expect("a folder");
    folder.join(name)
}

fn run(command: &mut Command) {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// A C program or library without frame pointers.
pub(crate) fn c(name: &str, from: &str, flags: &[&str]) -> PathBuf {
    let output = output(name);
    run(Command::new(std::env::var("CC").unwrap_or_else(|_| "gcc".to_owned()))
        .args(["-O2", "-fomit-frame-pointer", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .args(["-Wno-clobbered", "-Wno-infinite-recursion"])
        .args(flags)
        .arg(source(from))
        .arg("-o")
        .arg(&output)
        .args(["-ldl", "-lrt"]));
    output
}

pub(crate) fn rust() -> PathBuf {
    let output = output("rust-trees");
    run(Command::new("rustc")
        .args(["-O", "--edition=2021", "-Cforce-frame-pointers=no"])
        .arg(source("rust.rs"))
        .arg("-o")
        .arg(&output));
    output
}

/// `None`: there is no Go compiler here.
pub(crate) fn go() -> Option<PathBuf> {
    Command::new("go").arg("version").output().ok()?;
    let output = output("go-trees");
    run(Command::new("go")
        .env("CGO_ENABLED", "1")
        .args(["build", "-o"])
        .arg(&output)
        .arg(source("go.go")));
    Some(output)
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

    /// Lets it play its role. The thread that sleeps, and what it says of its stack.
    pub(crate) fn play(&mut self) -> (u32, Vec<u64>) {
        writeln!(self.child.stdin.as_mut().expect("it is piped"), "go").expect("it reads");
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
