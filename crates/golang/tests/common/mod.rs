//! Go programs to look at: built here, started, and ended with the test.

#![allow(dead_code)]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use underspan_golang::{Error, Inspector, Runtime, Sampler};

/// Every `go` to test with: the one on the path, and those in `UNDERSPAN_TEST_GO`, separated by `:`.
pub(crate) fn toolchains() -> Vec<PathBuf> {
    let more = std::env::var("UNDERSPAN_TEST_GO").unwrap_or_default();
    let more = more.split(':').filter(|path| !path.is_empty()).map(PathBuf::from);
    std::iter::once(PathBuf::from("go")).chain(more).collect()
}

/// Ways to build: name and flags.
pub(crate) const BUILDS: [(&str, &[&str]); 4] = [
    ("dwarf", &[]),
    ("symbols", &["-ldflags=-w"]),
    ("stripped", &["-ldflags=-s -w"]),
    ("stripped-pie", &["-ldflags=-s -w", "-buildmode=pie"]),
];

/// Builds `tests/{source}.go`.
pub(crate) fn build(go: &Path, source: &str, flags: &[&str], folder: &Path) -> PathBuf {
    let output = folder.join(source);
    let built = Command::new(go)
        .args(["build", "-o"])
        .arg(&output)
        .args(flags)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{source}.go")))
        .env("GOTOOLCHAIN", "local")
        .env("CGO_ENABLED", "0")
        .output()
        .unwrap_or_else(|error| {
            panic!("{}: {error}; install Go (Debian: golang-go)", go.display())
        });
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    output
}

/// A running program.
pub(crate) struct Program {
    child: Child,
    _input: ChildStdin,
    /// What it said before `ready`.
    pub(crate) said: String,
}

impl Program {
    pub(crate) fn start(path: &Path, args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut child = Command::new(path)
            .args(args)
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if line == "ready" {
                break;
            }
            said.push_str(&line);
            said.push('\n');
        }
        let input = child.stdin.take().unwrap();
        Program { child, _input: input, said }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn inspect(&self) -> Result<Runtime, Error> {
        Inspector::new().inspect(self.pid())
    }

    pub(crate) fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.end();
    }
}

/// Monotonic nanoseconds, on the clock that the runtime uses too.
pub(crate) fn now() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

/// Samples for `rounds` rounds, `pause` apart.
pub(crate) fn sample(
    sampler: &mut Sampler,
    rounds: usize,
    pause: Duration,
) -> Vec<underspan_golang::Sample> {
    let mut samples = Vec::new();
    for _ in 0..=rounds {
        samples.extend(sampler.round(now()).unwrap().samples);
        std::thread::sleep(pause);
    }
    samples
}
