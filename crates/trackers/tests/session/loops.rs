//! Event loops of asyncio stall for known reasons and known times: one row for each, and none for what
//! is no stall.

use std::path::PathBuf;

use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};
use underspan_cpython::Inspector;
use underspan_model::{State, column};
use underspan_trackers::stack::PythonLayout;
use underspan_trackers::{Options, ProcessConfig};

use crate::python_stacks::common::{Program, interpreters};
use crate::support::Row;
use crate::watcher::Watcher;
use crate::workload::eventually;

const MS: u64 = 1_000_000;

/// Turns of a loop until it is known as one, then stalls. Each says its kind and when it began and ended.
const BODY: &str = "
import asyncio, os, select, threading, time

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
    await asyncio.get_running_loop().run_in_executor(None, answers)
    await asyncio.get_running_loop().run_in_executor(None, asks_again)

say('ready')
sys.stdin.readline()
asyncio.run(main())
say('done')
sys.stdin.readline()
";

/// The process's libc, and where in it `epoll_wait` begins.
fn epoll_wait(pid: i32) -> (PathBuf, u64) {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let line = maps.lines().find(|line| line.contains("/libc.so.6")).expect("glibc is mapped");
    let path = PathBuf::from(line.split_whitespace().last().unwrap());
    let bytes = std::fs::read(&path).unwrap();
    let file = object::File::parse(bytes.as_slice()).unwrap();
    let symbol = file.dynamic_symbols().find(|symbol| symbol.name() == Ok("epoll_wait")).unwrap();
    let offset = file.segments().find_map(|segment| {
        let into = symbol.address().checked_sub(segment.address())?;
        (into < segment.size()).then(|| segment.file_range().0 + into)
    });
    (path, offset.expect("the function is in a segment"))
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
        let mut watcher = Watcher::with(Options { on_cpu_hz: 99, ..Options::default() });
        let mut program = Program::start(&python, BODY);
        program.hear();
        let pid = program.pid();
        let interpreter = Inspector::new().inspect(pid).unwrap();
        let python_layout = PythonLayout::from(interpreter.frames.as_ref().unwrap());
        let config = ProcessConfig { python: python_layout, ..ProcessConfig::default() };
        watcher.session.watch(pid as u32, config).unwrap();
        let (path, offset) = epoll_wait(pid);
        watcher.session.attach_loops(pid as u32, &path, &[("loop_epoll", offset)]).unwrap();

        program.tell("");
        let (mut stalls, mut no_stalls) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            stalls.push(heard(&program.hear()));
            watcher.drain();
        }
        let holder: u64 = program.hear().parse().unwrap();
        for _ in 0..9 {
            no_stalls.push(heard(&program.hear()));
        }
        program.hear();

        let wanted = stalls.iter().filter(|stall| stall.kind != "short").count();
        let rows = eventually("the rows of its stalls", || {
            watcher.drain();
            watcher.read_ledgers();
            let rows = watcher.rows_of("loop_stall", pid as u32);
            // An iteration that only a busy machine made long is a stall too.
            let of = |stall: &Stall| rows.iter().filter(|row| covers(row, stall)).count() == 1;
            let found = stalls.iter().filter(|stall| stall.kind != "short" && of(stall)).count();
            (found == wanted).then_some(rows)
        });
        for stall in &stalls {
            check(&watcher, &rows, stall, holder, &format!("{python:?} {}", stall.kind));
        }
        // Of no thread at all.
        let rows = watcher.rows_in("loop_stall", pid as u32);
        for pause in &no_stalls {
            let row = rows.iter().find(|row| overlap(row, pause) * 2 > pause.end - pause.begin);
            assert!(row.is_none(), "{python:?} {}: {row:?}", pause.kind);
        }
        watcher.assert_nothing_lost();
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

fn check(watcher: &Watcher, rows: &[Row], stall: &Stall, holder: u64, about: &str) {
    let injected = stall.end - stall.begin;
    let row = rows.iter().find(|row| covers(row, stall));
    let (state, culprit) = match stall.kind.as_str() {
        "sleeps" => (State::Sleep, 0),
        "computes" => (State::Running, 0),
        "waits_for_a_lock" => (State::LockWait, holder),
        _ => {
            // Unless the machine made it one.
            assert!(row.is_none() || injected + stall.late > 90 * MS, "{about}: {row:?}");
            return;
        }
    };
    let row = row.unwrap_or_else(|| panic!("{about}: {rows:?}"));
    assert_eq!(row.text("kind"), "epoll", "{about}");
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
    assert!(stack.python.len() >= 8, "{about}: {stack:?}");
}
