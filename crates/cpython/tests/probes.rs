//! The collector's probe points, proved by the kernel: a uprobe at each, and as many hits as
//! collections. Needs root and tracefs; says so and stops where they are missing.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Program, interpreters};
use underspan_cpython::{GcRung, Inspector};

const TRACEFS: &str = "/sys/kernel/tracing";

/// A uprobe that counts, removed when dropped.
struct Probe {
    name: String,
}

impl Probe {
    /// `place` is `OFFSET` or `OFFSET(SEMAPHORE)`.
    fn new(index: usize, binary: &Path, place: &str) -> Probe {
        let name = format!("underspan_test_{}/at_{index}", std::process::id());
        let command = format!("p:{name} {}:{place}\n", binary.display());
        append("uprobe_events", &command).unwrap_or_else(|error| panic!("{command}: {error}"));
        fs::write(format!("{TRACEFS}/events/{name}/enable"), "1").unwrap();
        Probe { name }
    }

    fn hits(&self) -> usize {
        let profile = fs::read_to_string(format!("{TRACEFS}/uprobe_profile")).unwrap();
        let (_, event) = self.name.split_once('/').unwrap();
        let line = profile.lines().find(|line| line.split_whitespace().any(|word| word == event));
        line.unwrap().split_whitespace().last().unwrap().parse().unwrap()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = fs::write(format!("{TRACEFS}/events/{}/enable", self.name), "0");
        let _ = append("uprobe_events", &format!("-:{}\n", self.name));
    }
}

fn append(file: &str, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    fs::OpenOptions::new()
        .append(true)
        .open(format!("{TRACEFS}/{file}"))?
        .write_all(text.as_bytes())
}

const COLLECT: &str = "
import gc
gc.disable()
say('ready')
for line in lines():
    for _ in range(7):
        gc.collect(1)
    say('done')
";

#[test]
fn every_rung_sees_every_collection() {
    if append("uprobe_events", "").is_err() {
        eprintln!("skipped: needs root and {TRACEFS}");
        return;
    }
    let mut next = 0;
    let mut probed = 0;
    for python in interpreters() {
        // A copy of its own: other processes that collect must not be counted.
        let folder = tempfile::tempdir().unwrap();
        let (command, _) = common::from_copy(&python, folder.path());
        let mut program = Program::run(command, COLLECT);
        program.hear();
        let interpreter = Inspector::new().inspect(program.pid()).unwrap();
        // tracefs keeps a path's inode, and refuses to go through /proc.
        let binary = PathBuf::from(&interpreter.binary.mapped_path);
        assert!(matches!(interpreter.gc.rungs.last(), Some(GcRung::Watchpoint { .. })));
        for rung in &interpreter.gc.rungs {
            let groups: Vec<Vec<String>> = match rung {
                GcRung::Usdt { start, done, .. } => [start, done]
                    .map(|probe| {
                        let place = |at: &underspan_cpython::UsdtLocation| match at.semaphore_offset
                        {
                            0 => format!("{:#x}", at.file_offset),
                            semaphore => format!("{:#x}({semaphore:#x})", at.file_offset),
                        };
                        probe.locations.iter().map(place).collect()
                    })
                    .into(),
                GcRung::Symbol { functions, .. } => {
                    let place =
                        |at: &underspan_cpython::GcFunction| format!("{:#x}", at.entry_offset());
                    vec![functions.iter().map(place).collect()]
                }
                GcRung::Watchpoint { .. } => continue,
            };
            for places in groups {
                let attach = |place: &String| {
                    next += 1;
                    Probe::new(next, &binary, place)
                };
                let probes: Vec<_> = places.iter().map(attach).collect();
                assert_eq!(program.ask("collect"), "done");
                let hits: usize = probes.iter().map(Probe::hits).sum();
                assert_eq!(hits, 7, "{python:?}: {places:?}");
                probed += 1;
            }
        }
        eprintln!("{}: {:?}", interpreter.version, interpreter.gc.missing);
    }
    eprintln!("{probed} sets of probe points");
}
