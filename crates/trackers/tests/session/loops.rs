//! Event loops of asyncio (over epoll, poll and select) and of Node stall for known reasons and known
//! times: one row for each, and none for what is no stall.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};
use underspan_cpython::Inspector;
use underspan_model::{State, column};
use underspan_trackers::event_loop::FUNCTIONS;
use underspan_trackers::stack::{PythonLayout, RawStack};
use underspan_trackers::{Options, ProcessConfig};

use crate::python_stacks::common::{Program, Python, interpreters};
use crate::support::Row;
use crate::watcher::Watcher;
use crate::workload::eventually;

const MS: u64 = 1_000_000;

/// Turns of a loop until it is known as one, then stalls. Each says its kind and when it began and ended.
const BODY: &str = "
import asyncio, os, select, selectors, socket, threading, time

lock, holds, wanted = threading.Lock(), threading.Event(), threading.Event()

def hold():
    with lock:
        holds.set()
        wanted.wait()
        time.sleep(0.2)

def sleeps(seconds=0.15):
    time.sleep(seconds)

def computes():
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        pass

def waits_for_a_lock():
    wanted.set()
    with lock:
        pass

def short():
    sleeps(0.05)

def answers():
    # A library that waits for each answer with an epoll instance of its own, whose number is the same.
    end, other = os.pipe()
    for turn in range(24):
        os.write(other, b'x')
        with select.epoll() as answer:
            answer.register(end, select.EPOLLIN)
            answer.poll(1)
        os.read(end, 1)
        if turn > 20:
            begin = time.monotonic_ns()
            time.sleep(0.15)
            say('answers', begin, time.monotonic_ns())

def asks_again():
    # One that keeps the instance: a worker that sleeps between its questions. It asks as often as a loop.
    end, other = os.pipe()
    with select.epoll() as answer:
        answer.register(end, select.EPOLLIN)
        for turn in range(20):
            begin = time.monotonic_ns()
            time.sleep(0.12)
            os.write(other, b'x')
            answer.poll(1)
            os.read(end, 1)
            if turn > 16:
                say('asks_again', begin, time.monotonic_ns())

def late():
    # For how long this thread has waited for a CPU, and what was taken from the CPUs.
    with open('/proc/thread-self/schedstat') as file:
        waited = int(file.read().split()[1])
    with open('/proc/stat') as file:
        return waited + sum(map(int, file.readline().split()[6:9])) * 10_000_000

async def stall(work):
    before = late()
    await asyncio.sleep(0.01)
    begin = time.monotonic_ns()
    work()
    end = time.monotonic_ns()
    await asyncio.sleep(0.01)
    say(work.__name__, begin, end, late() - before)

async def main():
    # Nobody knows it as a loop yet, and the stack of that is told.
    sleeps(0.05)
    for _ in range(40):
        await asyncio.sleep(0.02)
    # In the same place twice: the second time its stack is not told again.
    for work in (sleeps, computes, short, sleeps):
        await stall(work)
    holder = threading.Thread(target=hold)
    holder.start()
    holds.wait()
    await stall(waits_for_a_lock)
    holder.join()
    say(holder.native_id)
    for _ in range(3):
        begin = time.monotonic_ns()
        await asyncio.sleep(0.15)
        say('idle', begin, time.monotonic_ns())

def play(loop):
    say('ready')
    sys.stdin.readline()
    loop.run_until_complete(main())
    for worker in answers, asks_again:
        if isinstance(loop._selector, selectors.EpollSelector):
            loop.run_until_complete(loop.run_in_executor(None, worker))
    say('done')
    sys.stdin.readline()

def with_clients(selector):
    # Two clients that say nothing, and the loop's own socket: three descriptors.
    loop = asyncio.SelectorEventLoop(selector)
    for client in clients:
        loop.add_reader(client, client.recv, 1)
    return loop

clients = [*socket.socketpair()]
";

/// The same in JavaScript. It lets go of nothing but the wait for events between its stalls.
const SCRIPT: &str = "
const fs = require('fs'), { Worker } = require('worker_threads');
const say = (...words) => fs.writeSync(1, words.join(' ') + '\\n');
const clock = () => process.hrtime.bigint();
const asleep = (ms) => new Promise((done) => setTimeout(done, ms));
const shared = new Int32Array(new SharedArrayBuffer(8));

// Waits until the loop is about to wait for it, and keeps it waiting.
const worker = new Worker(`
    const fs = require('fs'), { parentPort, workerData: shared } = require('worker_threads');
    parentPort.postMessage(fs.readlinkSync('/proc/thread-self').split('/').pop());
    Atomics.wait(shared, 0, 0);
    Atomics.wait(shared, 1, 0, 200);
    Atomics.store(shared, 1, 1);
    Atomics.notify(shared, 1);
`, { eval: true, workerData: shared });

function computes() {
    for (const end = clock() + 200_000_000n; clock() < end;);
}

// Nothing ends it but its time limit.
const waits = (ms) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);

function waits_in_vain() { waits(150); }

function short() { waits(50); }

function waits_for_a_lock() {
    Atomics.store(shared, 0, 1);
    Atomics.notify(shared, 0);
    Atomics.wait(shared, 1, 0);
}

function late() {
    const waited = fs.readFileSync('/proc/thread-self/schedstat', 'utf8').split(' ')[1];
    const taken = fs.readFileSync('/proc/stat', 'utf8').split('\\n', 1)[0].split(/ +/).slice(6, 9);
    return Number(waited) + taken.reduce((sum, ticks) => sum + Number(ticks), 0) * 10_000_000;
}

async function stall(work) {
    const before = late();
    await asleep(10);
    const begin = clock();
    work();
    const end = clock();
    await asleep(10);
    say(work.name, begin, end, late() - before);
}

async function main(holder) {
    for (let turn = 0; turn < 40; turn++) await asleep(20);
    for (const work of [waits_in_vain, computes, short, waits_in_vain, waits_for_a_lock])
        await stall(work);
    say(holder);
    for (let turn = 0; turn < 3; turn++) {
        const begin = clock();
        await asleep(150);
        say('idle', begin, clock());
    }
    say('done');
}

worker.once('message', (holder) => {
    process.stdin.once('data', () => main(holder));
    say('ready');
});
";

/// The process's libc, and where in it each function begins that asks for events.
fn calls(pid: i32) -> (PathBuf, Vec<(&'static str, u64)>) {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let line = maps.lines().find(|line| line.contains("/libc.so.6")).expect("glibc is mapped");
    let path = PathBuf::from(line.split_whitespace().last().unwrap());
    let bytes = std::fs::read(&path).unwrap();
    let file = object::File::parse(bytes.as_slice()).unwrap();
    let mut calls = BTreeSet::new();
    for symbol in file.dynamic_symbols() {
        let Some((_, program)) = FUNCTIONS.iter().find(|(name, _)| symbol.name() == Ok(*name))
        else {
            continue;
        };
        let offset = file.segments().find_map(|segment| {
            let into = symbol.address().checked_sub(segment.address())?;
            (into < segment.size()).then(|| segment.file_range().0 + into)
        });
        calls.insert((*program, offset.expect("the function is in a segment")));
    }
    (path, calls.into_iter().collect())
}

struct Stall {
    kind: String,
    begin: u64,
    end: u64,
    /// By how much the iteration may be longer. Not said of what is no stall.
    late: u64,
}

#[test]
fn stalls_of_asyncio_have_a_row_each() {
    for python in interpreters() {
        asyncio_over(&python, "epoll", "asyncio.SelectorEventLoop(selectors.EpollSelector())", 9);
    }
}

/// What differs between interpreters is tested over epoll. The oldest sleeps in `select`, too.
#[test]
fn stalls_of_asyncio_over_poll_and_select_have_a_row_each() {
    let all = interpreters();
    let oldest = all.iter().min_by_key(|python| python.version).unwrap();
    let newest = all.iter().max_by_key(|python| python.version).unwrap();
    let both = [Some(oldest), Some(newest).filter(|newest| newest.path != oldest.path)];
    for python in both.into_iter().flatten() {
        asyncio_over(python, "poll", "with_clients(selectors.PollSelector())", 3);
        asyncio_over(python, "select", "with_clients(selectors.SelectSelector())", 3);
    }
}

fn asyncio_over(python: &Python, kind: &'static str, event_loop: &str, no_stalls: usize) {
    let mut watcher = Watcher::with(Options { on_cpu_hz: 99, ..Options::default() });
    let mut program = Program::start(python, &format!("{BODY}\nplay({event_loop})\n"));
    program.hear();
    let pid = program.pid();
    let interpreter = Inspector::new().inspect(pid).unwrap();
    let python_layout = PythonLayout::from(interpreter.frames.as_ref().unwrap());
    let config = ProcessConfig { python: python_layout, ..ProcessConfig::default() };
    watcher.session.watch(pid as u32, config).unwrap();
    probe(&mut watcher, pid);
    program.tell("");
    let about = format!("{python:?} {kind}");
    let frames = |stack: &RawStack| stack.python.len();
    let scene = Scene { pid: pid as u32, kind, no_stalls, frames, least: 8, about };
    scene.judge(&mut watcher, || program.hear());
}

#[test]
fn stalls_of_node_have_a_row_each() {
    let found = nodes();
    if found.is_empty() {
        eprintln!("skipped: there is no Node.js here");
    }
    for path in found {
        eprintln!("Node.js: {}", path.display());
        let mut watcher = Watcher::with(Options { on_cpu_hz: 99, ..Options::default() });
        let mut node = Node::start(&path);
        assert_eq!(node.hear(), "ready");
        let pid = node.child.id();
        watcher.watch(pid);
        probe(&mut watcher, pid as i32);
        writeln!(node.input).unwrap();
        let about = path.display().to_string();
        // What V8 has compiled has no unwind tables: how many of them there are is not told.
        let frames = |stack: &RawStack| stack.native.len();
        let scene = Scene { pid, kind: "epoll", no_stalls: 3, frames, least: 1, about };
        scene.judge(&mut watcher, || node.hear());
    }
}

/// Every Node.js on `PATH`.
fn nodes() -> BTreeSet<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(["/usr/bin", "/usr/local/bin"]);
    let names =
        folders.flat_map(|folder| ["node", "nodejs"].map(|name| Path::new(folder).join(name)));
    // A link, or a program that starts another.
    names
        .filter(|path| {
            Command::new(path).args(["-e", ""]).status().is_ok_and(|done| done.success())
        })
        .filter_map(|path| path.canonicalize().ok())
        .collect()
}

/// A program of Node.js. It ends when this is dropped.
struct Node {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Node {
    fn start(path: &Path) -> Self {
        let command = &mut Command::new(path);
        let command = command.args(["-e", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Node { child, input, output }
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the program has ended");
        line.trim_end().to_owned()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As the agent does it, if at other instructions.
fn probe(watcher: &mut Watcher, pid: i32) {
    let (path, calls) = calls(pid);
    let programs: BTreeSet<_> = calls.iter().map(|(program, _)| *program).collect();
    assert_eq!(programs.len(), 3, "{calls:?}");
    watcher.session.attach_loops(pid as u32, &path, &calls).unwrap();
}

/// A program whose loop is its first thread, and what must be told of it.
struct Scene {
    pid: u32,
    kind: &'static str,
    /// As many pauses follow its stalls.
    no_stalls: usize,
    /// Frames of a stack, and how many there must be.
    frames: fn(&RawStack) -> usize,
    least: usize,
    about: String,
}

impl Scene {
    /// What the program says of itself, and the rows.
    fn judge(&self, watcher: &mut Watcher, mut hear: impl FnMut() -> String) {
        let (mut stalls, mut no_stalls) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            stalls.push(heard(&hear()));
            watcher.drain();
        }
        let holder: u64 = hear().parse().unwrap();
        for _ in 0..self.no_stalls {
            no_stalls.push(heard(&hear()));
        }
        assert_eq!(hear(), "done");

        let wanted = stalls.iter().filter(|stall| stall.kind != "short").count();
        let rows = eventually("the rows of its stalls", || {
            watcher.drain();
            watcher.read_ledgers();
            let rows = watcher.rows_of("loop_stall", self.pid);
            // An iteration that only a busy machine made long is a stall too.
            let of = |stall: &Stall| rows.iter().filter(|row| covers(row, stall)).count() == 1;
            let found = stalls.iter().filter(|stall| stall.kind != "short" && of(stall)).count();
            (found == wanted).then_some(rows)
        });
        for stall in &stalls {
            self.check(watcher, &rows, stall, holder);
        }
        // Of no thread at all.
        let rows = watcher.rows_in("loop_stall", self.pid);
        for pause in &no_stalls {
            let row = rows.iter().find(|row| overlap(row, pause) * 2 > pause.end - pause.begin);
            assert!(row.is_none(), "{} {}: {row:?}", self.about, pause.kind);
        }
        watcher.assert_nothing_lost();
    }

    fn check(&self, watcher: &Watcher, rows: &[Row], stall: &Stall, holder: u64) {
        let about = format!("{} {}", self.about, stall.kind);
        let injected = stall.end - stall.begin;
        let row = rows.iter().find(|row| covers(row, stall));
        let (state, culprit) = match stall.kind.as_str() {
            "sleeps" => (State::Sleep, 0),
            "computes" => (State::Running, 0),
            "waits_for_a_lock" => (State::LockWait, holder),
            "waits_in_vain" => (State::LockWait, 0),
            _ => {
                // Unless the machine made it one.
                assert!(row.is_none() || injected + stall.late > 90 * MS, "{about}: {row:?}");
                return;
            }
        };
        let row = row.unwrap_or_else(|| panic!("{about}: {rows:?}"));
        assert_eq!(row.text("kind"), self.kind, "{about}");
        let duration = row.u64("duration_ns");
        let more = duration - injected;
        assert!(
            more <= injected / 20 + stall.late,
            "{about}: {injected}, {} late, {row:?}",
            stall.late
        );
        let sum: u64 = State::ALL.iter().map(|state| row.u64(&column(*state))).sum();
        assert_eq!(sum, duration, "{about}");
        // A busy machine may keep it from its CPU.
        let late = row.u64(&column(State::Runnable));
        let spent = row.u64(&column(state));
        assert!(spent + late >= injected - injected / 50, "{about}: {injected} of {row:?}");
        assert_eq!(row.u64("culprit_tid"), culprit, "{about}: {row:?}");
        let stack = watcher.stack(row.u64("stack_id"));
        assert!((self.frames)(stack) >= self.least, "{about}: {stack:?}");
    }
}

fn heard(line: &str) -> Stall {
    let mut words = line.split(' ');
    let kind = words.next().unwrap().to_owned();
    let mut number = || words.next().map(|word| word.parse().unwrap());
    let (begin, end) = (number().unwrap(), number().unwrap());
    Stall { kind, begin, end, late: number().unwrap_or_default() }
}

fn overlap(row: &Row, stall: &Stall) -> u64 {
    let (start, duration) = (row.u64("start_time"), row.u64("duration_ns"));
    (start + duration).min(stall.end).saturating_sub(start.max(stall.begin))
}

fn covers(row: &Row, stall: &Stall) -> bool {
    let (start, duration) = (row.u64("start_time"), row.u64("duration_ns"));
    start <= stall.begin && stall.end <= start + duration
}
