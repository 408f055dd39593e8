//! Python frames of threads that waited, of every interpreter that is found, against what each says of
//! its own threads.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use underspan_cpython::Inspector;
use underspan_model::{StackEnd, State};
use underspan_trackers::ProcessConfig;
use underspan_trackers::stack::PythonLayout;

use crate::support::Row;
use crate::watcher::{Watcher, monotonic};
use crate::workload::eventually;

#[path = "../../../cpython/tests/common/mod.rs"]
pub(crate) mod common;

use common::trees::{self, Told};
use common::{Program, Python, interpreters};

/// What a stack holds at the most.
const DEEPEST: usize = 512;

#[test]
fn a_thread_that_waited_tells_its_frames() {
    for python in interpreters() {
        every_thread_tells(&python);
    }
}

/// Each thread's wait is a sample, and its frames are what the thread itself tells. A wait whose end the
/// kernel did not tell has a sample without frames; there are no more of them than were counted.
fn every_thread_tells(python: &Python) {
    let mut watcher = Watcher::new();
    let body = format!("say('ready'); sys.stdin.readline()\n{}", trees::program());
    let mut program = Program::start(python, &body);
    program.hear();
    let interpreter = Inspector::new().inspect(program.pid()).unwrap();
    let python_layout = PythonLayout::from(interpreter.frames.as_ref().unwrap());
    let config = ProcessConfig { python: python_layout, ..ProcessConfig::default() };
    watcher.session.watch(program.pid() as u32, config).unwrap();
    program.tell("");
    let told = trees::hear(&mut program);
    let told: BTreeMap<u32, Told> = told.into_iter().skip(1).map(|told| (told.tid, told)).collect();
    // Waits of ten milliseconds or longer are samples, each of them; shorter ones may be.
    let waits = |tid: u32| {
        let (state, since) = watcher.session.thread(tid)?.waits()?;
        (state == State::LockWait && since + 50_000_000 < monotonic()).then_some(())
    };
    for tid in told.keys() {
        eventually("a long wait", || waits(*tid));
    }
    // Each release ends the wait of one thread.
    for _ in &told {
        program.tell("release");
        trees::hear(&mut program);
        watcher.drain();
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while samples(&watcher, &told).len() < told.len() && Instant::now() < deadline {
        watcher.drain();
        watcher.read_ledgers();
        std::thread::sleep(Duration::from_millis(20));
    }
    let samples = samples(&watcher, &told);
    let mut missed = 0;
    for (tid, told) in &told {
        let sample =
            samples.get(tid).unwrap_or_else(|| panic!("{python:?} {}: no sample", told.thread));
        let Some(stack) = watcher.stack_of(sample) else {
            missed += 1;
            continue;
        };
        let found: Vec<_> = stack.python.iter().map(|frame| (frame.code, frame.lasti)).collect();
        let expected: Vec<_> =
            told.frames.iter().map(|frame| (frame.code, frame.lasti)).take(DEEPEST).collect();
        assert_eq!(found, expected, "{python:?} {}: {:?}", told.thread, stack.ends);
        let end = if told.frames.len() > DEEPEST { StackEnd::TooDeep } else { StackEnd::Complete };
        assert_eq!(stack.ends.python, end, "{python:?} {}", told.thread);
    }
    assert!(missed <= watcher.untold(), "{python:?}: {missed} stacks are missing");
    watcher.assert_nothing_lost();
}

/// More threads than are looked at one by one; the first stands behind all others.
const CROWD: &str = r"
import threading, time
threading.stack_size(65536)
over = threading.Event()
for _ in range(4500):
    threading.Thread(target=over.wait).start()
say('ready')
sys.stdin.readline()
time.sleep(0.05)
say('slept')
over.set()
";

#[test]
fn the_first_of_thousands_of_threads_tells_its_frames() {
    let all = interpreters();
    for python in [all.first(), all.last()].into_iter().flatten() {
        let mut watcher = Watcher::new();
        let mut program = Program::start(python, CROWD);
        program.hear();
        let interpreter = Inspector::new().inspect(program.pid()).unwrap();
        let python_layout = PythonLayout::from(interpreter.frames.as_ref().unwrap());
        let config = ProcessConfig { python: python_layout, ..ProcessConfig::default() };
        watcher.session.watch(program.pid() as u32, config).unwrap();
        program.tell("");
        program.hear();
        let sample = watcher.row("off_cpu", |row| {
            row.u64("tid") == program.pid() as u64 && row.text("state") == "sleep"
        });
        let Some(stack) = watcher.stack_of(&sample) else {
            assert!(watcher.untold() > 0, "{python:?}: its stack is missing");
            continue;
        };
        assert_eq!(stack.ends.python, StackEnd::Complete, "{python:?}");
        assert_eq!(stack.python.len(), 1, "{python:?}: {:?}", stack.python);
    }
}

/// The sample of each thread's longest wait, once all that can come of it has come.
fn samples(watcher: &Watcher, told: &BTreeMap<u32, Told>) -> BTreeMap<u32, Row> {
    let longest = |tid: &u32| {
        let rows = watcher.rows_of("off_cpu", *tid).into_iter();
        let locks = rows.filter(|row| row.text("state") == "lock_wait");
        locks.max_by_key(|row| row.u64("duration_ns")).map(|row| (*tid, row))
    };
    told.keys().filter_map(longest).collect()
}
