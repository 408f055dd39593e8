//! Programs that print their own stacks.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use underspan_symbols::Incarnation;
use underspan_trackers::stack::RawStack;

pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/names/programs").join(name)
}

/// Runs a command that must succeed. `false`: there is no such command here.
pub(crate) fn run(command: &mut Command) -> bool {
    match command.output() {
        Ok(done) => {
            assert!(
                done.status.success(),
                "{command:?}: {}",
                String::from_utf8_lossy(&done.stderr)
            );
            true
        }
        Err(error) => {
            eprintln!("skipped: {command:?}: {error}");
            false
        }
    }
}

/// A running one. It ends when this is dropped.
pub(crate) struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    pub(crate) fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let output = BufReader::new(child.stdout.take().unwrap());
        Program { child, output }
    }

    pub(crate) fn process(&self) -> Incarnation {
        Incarnation::of(self.child.id(), 0)
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "it ended");
        line
    }

    /// The native stack that it prints.
    pub(crate) fn stack(&mut self) -> RawStack {
        let native = addresses(&self.line());
        RawStack { pid: self.child.id(), native, ..RawStack::default() }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn addresses(text: &str) -> Vec<u64> {
    text.split_whitespace().map(|word| u64::from_str_radix(word, 16).unwrap()).collect()
}
