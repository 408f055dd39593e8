//! What is read from outside, against what each interpreter says of itself.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use common::{Program, interpreters};
use underspan_cpython::{Inspector, Libc, pthread_tid, thread_names};

const COLLECTING: &str = "
import gc
gc.disable()
def told(phase, info):
    say(phase)
    sys.stdin.readline()
say('ready')
for line in lines():
    if line.startswith('stats'):
        say(*[s[k] for s in gc.get_stats() for k in ('collections', 'collected', 'uncollectable')])
    elif line.startswith('freeze'):
        gc.freeze()
        say(gc.get_freeze_count())
    else:
        gc.callbacks.append(told)
        for _ in range(100):
            ring = []
            ring.append(ring)
        del ring
        gc.collect(int(line))
        gc.callbacks.clear()
        say('done')
";

fn flat(interpreter: &underspan_cpython::Interpreter) -> Vec<i64> {
    let stats = interpreter.generation_stats().unwrap();
    stats.iter().flat_map(|g| [g.collections, g.collected, g.uncollectable]).collect()
}

/// A 4-byte word of the process.
fn flag(pid: i32, address: u64) -> i32 {
    use std::os::unix::fs::FileExt;
    let mut word = [0; 4];
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    memory.read_exact_at(&mut word, address).unwrap();
    i32::from_ne_bytes(word)
}

#[test]
fn version_and_collector_are_the_ones_python_tells() {
    for python in interpreters() {
        let mut program = Program::start(&python, COLLECTING);
        program.hear();
        let interpreter = Inspector::new().inspect(program.pid()).unwrap();
        let version = interpreter.version;
        assert_eq!((version.major, version.minor, version.micro), python.version);
        assert_eq!(interpreter.libc, Libc::Glibc);
        let (pid, collecting) = (program.pid(), interpreter.gc.collecting);
        for generation in [0, 0, 0, 1, 1, 2] {
            let before = flat(&interpreter);
            assert_eq!(before, program.numbers("stats"), "{python:?}");
            assert_eq!(flag(pid, collecting), 0, "{python:?}");
            assert_eq!(program.ask(&generation.to_string()), "start");
            assert_eq!(flag(pid, collecting), 1, "{python:?}");
            // A collection is counted while the flag still stands.
            assert_eq!(program.ask(""), "stop");
            assert_eq!(flag(pid, collecting), 1, "{python:?}");
            let during = flat(&interpreter);
            assert_eq!(program.ask(""), "done");
            let after = flat(&interpreter);
            assert_eq!(during, after, "{python:?}");
            assert_eq!(flag(pid, collecting), 0, "{python:?}");
            let changed: Vec<_> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
            let collections = [changed[0], changed[3], changed[6]];
            let mut expected = [0; 3];
            expected[generation] = 1;
            assert_eq!(collections, expected, "{python:?}");
            assert!(changed[3 * generation + 1] >= 100, "{python:?}: {changed:?}");
        }
        // Frozen objects change the structure that the self-check looks at.
        assert!(program.numbers("freeze")[0] > 0);
        Inspector::new().inspect(pid).unwrap();
    }
}

const NAMED: &str = "
import threading, time
names = ['worker-a', 'läuft', '漢字', 'e🐍', 'x' * 300, '']
class Mine(threading.Thread):
    def __init__(self, name):
        super().__init__(name=name, daemon=True)
        for i in range(40):
            setattr(self, f'attribute_{i}', i)
    def run(self):
        time.sleep(1000)
def sleep():
    time.sleep(1000)
threads = [threading.Thread(target=sleep, name=name, daemon=True) for name in names] + [Mine('mine')]
for t in threads: t.start()
vars(threads[0])  # gives the thread a dict of its own
say('ready')
for line in lines():
    for t in threading.enumerate():
        say(t.native_id, t.ident, t.name)
    say('end')
";

#[test]
fn thread_names_and_ids_are_the_ones_python_tells() {
    for python in interpreters() {
        let mut program = Program::start(&python, NAMED);
        program.hear();
        program.tell("names");
        let mut expected = BTreeMap::new();
        let mut line = program.hear();
        while line != "end" {
            let mut parts = line.splitn(3, ' ');
            let tid: u32 = parts.next().unwrap().parse().unwrap();
            let ident: u64 = parts.next().unwrap().parse().unwrap();
            let name: String = parts.next().unwrap_or_default().chars().take(256).collect();
            expected.insert(tid, (ident, name));
            line = program.hear();
        }
        assert_eq!(expected.len(), 8, "{python:?}");
        let interpreter = Inspector::new().inspect(program.pid()).unwrap();
        let names = interpreter.thread_names().unwrap();
        let found: BTreeMap<_, _> =
            names.into_iter().map(|t| (t.tid.unwrap(), (t.pthread_id, t.name))).collect();
        assert_eq!(found, expected, "{python:?}");
        for (&tid, &(ident, _)) in &expected {
            assert_eq!(pthread_tid(program.pid(), ident), Some(tid), "{python:?}");
        }
        assert_eq!(thread_names(program.pid()).unwrap().len(), 8, "{python:?}");
    }
}

#[test]
fn the_holder_of_the_gil_is_the_thread_that_computes() {
    let spin = "
import threading
def spin():
    while True: pass
threading.Thread(target=spin, name='spinner', daemon=True).start()
say(threading.enumerate()[-1].native_id)
sys.stdin.readline()
";
    for python in interpreters() {
        let mut program = Program::start(&python, spin);
        let spinner: u32 = program.hear().parse().unwrap();
        let interpreter = Inspector::new().inspect(program.pid()).unwrap();
        let samples = 200;
        let held = (0..samples)
            .filter(|_| {
                std::thread::sleep(std::time::Duration::from_micros(200));
                matches!(interpreter.gil_holder(), Ok(Some((_, Some(tid)))) if tid == spinner)
            })
            .count();
        assert!(held > samples * 9 / 10, "{python:?}: {held} of {samples}");
        assert!(interpreter.gil_wait_range().unwrap().contains(&(interpreter.gil + 72)));
    }
}

#[test]
fn forked_workers_share_what_is_known_of_their_binary() {
    let fork = "
import os, threading
def work():
    sys.stdin.readline()
pid = os.fork()
if pid == 0:
    threading.current_thread().name = 'worker'
    say('child', os.getpid())
    os.read(0, 1)
    os._exit(0)
os.waitpid(pid, 0)
";
    for python in interpreters() {
        let mut program = Program::start(&python, fork);
        let child: i32 = program.hear().strip_prefix("child ").unwrap().parse().unwrap();
        let mut inspector = Inspector::new();
        let parent = inspector.inspect(program.pid()).unwrap();
        let worker = inspector.inspect(child).unwrap();
        assert_eq!((parent.gil, &parent.gc), (worker.gil, &worker.gc), "{python:?}");
        let names = worker.thread_names().unwrap();
        assert_eq!(names.len(), 1, "{python:?}");
        assert_eq!((names[0].tid, names[0].name.as_str()), (Some(child as u32), "worker"));
        program.tell("");
    }
}

#[test]
fn threads_of_another_pid_namespace_have_our_ids() {
    let body = "import threading, time; print(flush=True)
threading.Thread(target=time.sleep, args=(60,), name='inside', daemon=True).start()
print(threading.active_count(), flush=True); time.sleep(60)";
    for python in interpreters() {
        let mut unshare = Command::new("unshare")
            .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
            .arg(&python.path)
            .args(["-c", body])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(unshare.stdout.take().unwrap());
        let ready = output.lines().nth(1).is_some();
        let parent = unshare.id();
        let children = format!("/proc/{parent}/task/{parent}/children");
        let child = std::fs::read_to_string(children).unwrap_or_default();
        let names = child.trim().parse().map(|pid: i32| (pid, thread_names(pid)));
        unshare.kill().unwrap();
        unshare.wait().unwrap();
        if !ready {
            eprintln!("skipped: no right to make a pid namespace");
            return;
        }
        let (pid, names) = names.unwrap();
        let names = names.unwrap_or_else(|error| panic!("{python:?}: {error}"));
        assert_eq!(names.len(), 2, "{python:?}");
        assert_eq!(names[&(pid as u32)], "MainThread", "{python:?}");
        assert!(names.values().any(|name| name == "inside"), "{python:?}");
    }
}
