//! Interpreters to test against, and Python programs that answer questions about themselves.

#![allow(clippy::unwrap_used)]
#![allow(dead_code)] // Each test file uses its own part.

pub(crate) mod trees;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Every CPython 3.8 to 3.14 on this machine: pyenv's, the system's, those on `PATH`, and those
/// that `UNDERSPAN_TEST_PYTHONS` names (separated by colons). At least one.
pub(crate) fn interpreters() -> Vec<Python> {
    let mut found = BTreeMap::new();
    for path in candidates() {
        let Ok(real) = path.canonicalize() else { continue };
        if found.contains_key(&real) {
            continue;
        }
        if let Some(version) = version(&real) {
            found.insert(real, version);
        }
    }
    let found: Vec<_> = found.into_iter().map(|(path, version)| Python { path, version }).collect();
    assert!(!found.is_empty(), "no CPython 3.8 to 3.14 found: install one to test against");
    for python in &found {
        eprintln!("interpreter: {} {:?}", python.path.display(), python.version);
    }
    found
}

/// CPython before 3.8 on this machine, if any.
pub(crate) fn old_interpreters() -> Vec<PathBuf> {
    let ask = "import sys; sys.exit(not sys.version_info < (3, 8))";
    let is_old = |path: &PathBuf| {
        path.exists() && Command::new(path).args(["-c", ask]).status().is_ok_and(|s| s.success())
    };
    candidates().into_iter().filter(is_old).collect()
}

#[derive(Clone, Debug)]
pub(crate) struct Python {
    pub(crate) path: PathBuf,
    pub(crate) version: (u8, u8, u8),
}

fn candidates() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let home = std::env::var("HOME").unwrap_or_default();
    let pyenv = std::env::var("PYENV_ROOT").unwrap_or(format!("{home}/.pyenv"));
    for version in Path::new(&pyenv).join("versions").read_dir().into_iter().flatten().flatten() {
        found.push(version.path().join("bin/python"));
    }
    for name in std::env::var("UNDERSPAN_TEST_PYTHONS").unwrap_or_default().split(':') {
        found.push(name.into());
    }
    let path = std::env::var("PATH").unwrap_or_default();
    for folder in path.split(':').chain(["/usr/bin", "/usr/local/bin"]) {
        // pyenv's shims are shell scripts.
        if !folder.contains("shims") {
            found.extend((8..=14).map(|minor| format!("{folder}/python3.{minor}").into()));
            found.push(format!("{folder}/python3").into());
        }
    }
    found
}

fn version(path: &Path) -> Option<(u8, u8, u8)> {
    let ask = "import sys; print(sys.implementation.name, *sys.version_info[:3])";
    let output = Command::new(path).args(["-I", "-S", "-c", ask]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let numbers = text.trim().strip_prefix("cpython ")?;
    let mut numbers = numbers.split(' ').map(|number| number.parse::<u8>());
    let version = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
    ((3, 8)..=(3, 14)).contains(&(version.0, version.1)).then_some(version)
}

/// A command that runs `python` from a copy of the file its interpreter is in, and that copy.
pub(crate) fn from_copy(python: &Python, folder: &Path) -> (Command, PathBuf) {
    let mut program = Program::start(python, "say('ready')\nsys.stdin.readline()\n");
    program.hear();
    let binary = underspan_cpython::inspect(program.pid()).unwrap().binary;
    let copy = folder.join(binary.mapped_path.rsplit('/').next().unwrap());
    std::fs::copy(&binary.path, &copy).unwrap();
    let is_executable = binary.kind == underspan_cpython::BinaryKind::Executable;
    let mut command = Command::new(if is_executable { &copy } else { &python.path });
    let home = python.path.parent().and_then(Path::parent).unwrap();
    command.env("PYTHONHOME", home).env("LD_LIBRARY_PATH", folder);
    (command, copy)
}

/// A Python program that runs until it is dropped. It is sent a line and answers with a line.
pub(crate) struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Runs `body`, in which `lines()` yields the questions and `say(…)` answers.
    pub(crate) fn start(python: &Python, body: &str) -> Program {
        Self::run(Command::new(&python.path), body)
    }

    /// The same with a command that starts Python.
    pub(crate) fn run(mut command: Command, body: &str) -> Program {
        let prelude = "import sys\n\
                       say = lambda *a: print(*a, flush=True)\n\
                       lines = lambda: iter(sys.stdin.readline, '')\n";
        let mut child = command
            .args(["-X", "utf8", "-c", &format!("{prelude}{body}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Program { child, input, output }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the program has ended");
        line.trim_end().to_owned()
    }

    pub(crate) fn tell(&mut self, question: &str) {
        writeln!(self.input, "{question}").unwrap();
    }

    pub(crate) fn ask(&mut self, question: &str) -> String {
        self.tell(question);
        self.hear()
    }

    pub(crate) fn numbers(&mut self, question: &str) -> Vec<i64> {
        self.ask(question).split_whitespace().map(|number| number.parse().unwrap()).collect()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
