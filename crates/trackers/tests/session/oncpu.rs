//! Samples of running threads: shares and totals that are known, and none of threads that sleep.

use std::collections::BTreeMap;
use std::time::Duration;

use object::{Object as _, ObjectSymbol as _};
use underspan_cpython::Inspector;
use underspan_cpython::code::CodeReader;
use underspan_model::{Ledger, State};
use underspan_trackers::stack::{PythonLayout, RawStack};
use underspan_trackers::{Attach, Options, ProcessConfig};

use crate::python_stacks::common::{Program, interpreters};
use crate::watcher::Watcher;
use crate::workload::{Workload, binary, eventually};

/// Often, so that a short test has little sampling error; and never in step with anything.
const HZ: u32 = 997;
const PERIOD_NS: u64 = 1_000_000_000 / HZ as u64;

/// Names of the workload's functions by address: it is not relocated.
struct Functions(BTreeMap<u64, (u64, String)>);

impl Functions {
    fn read() -> Self {
        let bytes = std::fs::read(binary()).expect("it was just built");
        let file = object::File::parse(bytes.as_slice()).expect("an ELF file");
        let functions = file.symbols().filter(|symbol| symbol.size() > 0).filter_map(|symbol| {
            let end = symbol.address() + symbol.size();
            Some((symbol.address(), (end, symbol.name().ok()?.to_owned())))
        });
        Functions(functions.collect())
    }

    fn name(&self, address: u64) -> &str {
        let found = self.0.range(..=address).next_back();
        found.filter(|(_, (end, _))| address < *end).map_or("", |(_, (_, name))| name)
    }
}

fn on_cpu(ledger: &Ledger) -> u64 {
    ledger[State::Running] + ledger[State::GcRun]
}

/// What a thread's samples stand for together.
fn sampled(watcher: &Watcher, tid: u32) -> u64 {
    watcher.rows_of("on_cpu", tid).iter().map(|row| row.u64("duration_ns")).sum()
}

#[test]
fn samples_add_up_to_the_ledger_and_sleepers_have_none() {
    let agrees = |attempt: u32| {
        let outcome = std::panic::catch_unwind(add_up);
        if outcome.is_err() {
            eprintln!("play {attempt} of 3 did not agree");
        }
        outcome.is_ok()
    };
    assert!((1..=3).any(agrees), "no play agreed");
}

fn add_up() {
    let mut watcher = Watcher::with(Options { on_cpu_hz: HZ, ..Options::default() });
    let mut workload = Workload::new();
    let burning: Vec<_> = (0..2).map(|_| workload.start("burn")).collect();
    let asleep: Vec<_> =
        ["sleep", "lock", "epoll"].map(|role| workload.start_and_block(role)).to_vec();
    watcher.watch(workload.pid);
    let first = burning.iter().map(|tid| watcher.ledger(workload.pid, *tid)).collect::<Vec<_>>();
    watcher.drain();
    watcher.rows.clear();

    for _ in 0..40 {
        std::thread::sleep(Duration::from_millis(100));
        watcher.drain();
    }
    let last = burning.iter().map(|tid| watcher.ledger(workload.pid, *tid)).collect::<Vec<_>>();
    watcher.drain();

    let ran: u64 = last.iter().zip(&first).map(|(last, first)| on_cpu(last) - on_cpu(first)).sum();
    let sampled: u64 = burning.iter().map(|tid| sampled(&watcher, *tid)).sum();
    let error = sampled.abs_diff(ran) as f64 / ran as f64;
    eprintln!("{ran} ns on a CPU, samples of {sampled} ns: {:.2} % off", error * 100.0);
    assert!(error < 0.02, "{ran} ns on a CPU, samples of {sampled} ns");
    for tid in asleep {
        assert!(watcher.rows_of("on_cpu", tid).is_empty(), "thread {tid} only slept");
    }
    for row in watcher.rows.iter().filter(|row| row.table == "on_cpu") {
        assert_eq!(row.u64("pid"), u64::from(workload.pid), "only who is watched");
        assert_eq!(row.text("state"), "running");
        let weight = row.u64("duration_ns");
        assert!(weight > 0 && weight.is_multiple_of(PERIOD_NS), "{weight} ns");
    }
    watcher.assert_nothing_lost();
}

/// Weight of a thread's samples by where they are, after so many tenths of a second.
fn weights(
    watcher: &mut Watcher,
    tid: u32,
    tenths: u32,
    mut place: impl FnMut(&RawStack) -> String,
) -> BTreeMap<String, u64> {
    for _ in 0..tenths {
        std::thread::sleep(Duration::from_millis(100));
        watcher.drain();
    }
    let mut weights = BTreeMap::new();
    for row in watcher.rows_of("on_cpu", tid) {
        let id = row.u64("stack_id");
        let place = if id == 0 { String::new() } else { place(watcher.stack(id)) };
        *weights.entry(place).or_default() += row.u64("duration_ns");
    }
    weights
}

/// Seven tenths are in the one function, three in the other, and hardly any elsewhere.
#[track_caller]
fn assert_shares(what: &str, weights: &BTreeMap<String, u64>, long: &str, short: &str) {
    let of = |name: &str| weights.get(name).copied().unwrap_or_default() as f64;
    let total = weights.values().sum::<u64>() as f64;
    let known = of(long) + of(short);
    assert!(known > 0.97 * total, "{what}: {weights:?}");
    let (share, samples) = (of(long) / known, known / PERIOD_NS as f64);
    eprintln!("{what}: {long} has {:.1} % of {samples} samples", share * 100.0);
    // Four standard deviations of so many samples, and what two counted loops differ by.
    let error = 4.0 * (0.7 * 0.3 / samples).sqrt() + 0.01;
    assert!((share - 0.7).abs() < error, "{what}: {share} of {samples}, not 0.7 ± {error}");
}

#[test]
fn shares_of_native_functions_are_as_they_are() {
    let functions = Functions::read();
    let mut watcher = Watcher::with(Options { on_cpu_hz: HZ, ..Options::default() });
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let tid = workload.start("burn");
    let weights = weights(&mut watcher, tid, 30, |stack| {
        functions.name(stack.native.first().copied().unwrap_or_default()).to_owned()
    });
    assert_shares("C", &weights, "burn_long", "burn_short");
}

#[test]
fn shares_of_python_functions_are_as_they_are() {
    // Never in step with a clock: turns of 4 ms have three samples in the one and one in the other.
    const BODY: &str = "
import random
def burn_long(times):
    x = 1
    for _ in range(7 * times):
        x = x * 3 & 0xffff
def burn_short(times):
    x = 1
    for _ in range(3 * times):
        x = x * 3 & 0xffff
say('ready')
while True:
    times = random.randint(2000, 20000)
    burn_long(times)
    burn_short(times)
";
    for python in interpreters() {
        let mut watcher = Watcher::with(Options { on_cpu_hz: HZ, ..Options::default() });
        let mut program = Program::start(&python, BODY);
        program.hear();
        let pid = program.pid();
        let interpreter = Inspector::new().inspect(pid).unwrap();
        let python_layout = PythonLayout::from(interpreter.frames.as_ref().unwrap());
        let config = ProcessConfig { python: python_layout, ..ProcessConfig::default() };
        watcher.session.watch(pid as u32, config).unwrap();
        let mut code = CodeReader::new(&interpreter).unwrap();
        let weights = weights(&mut watcher, pid as u32, 20, |stack| {
            let Some(frame) = stack.python.first() else { return String::new() };
            let location = code.locate(frame.code, frame.check, frame.lasti);
            location.map_or_else(|error| error.to_string(), |at| at.function.to_string())
        });
        let what = format!("Python {}", interpreter.version);
        assert_shares(&what, &weights, "burn_long", "burn_short");
    }
}

#[test]
fn counters_are_there_or_said_not_to_be() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let tid = workload.start("burn");
    let rows = eventually("ten samples", || {
        watcher.drain();
        let rows = watcher.rows_of("on_cpu", tid);
        (rows.len() > 10).then_some(rows)
    });
    let counted = |column: &str| rows.iter().filter(|row| row.nullable(column).is_some()).count();
    let hook = watcher
        .session
        .hooks()
        .iter()
        .find(|hook| hook.failed.iter().any(|(way, _)| *way == Attach::HardwareCounters));
    match hook {
        Some(hook) => {
            assert_eq!(hook.outcome, None);
            let (_, why) = &hook.failed[0];
            assert!(why.starts_with("unavailable: no PMU"), "{why}");
            for column in ["cycles", "instructions", "cache_misses", "branch_misses"] {
                assert_eq!(counted(column), 0, "{column}");
            }
        }
        None => {
            assert!(counted("cycles") > rows.len() / 2);
            assert!(rows.iter().all(|row| row.nullable("cycles") != Some(0)));
        }
    }
}

#[test]
fn without_a_rate_there_are_no_samples() {
    let mut watcher = Watcher::with(Options { on_cpu_hz: 0, ..Options::default() });
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let tid = workload.start("burn");
    std::thread::sleep(Duration::from_millis(300));
    watcher.drain();
    assert!(watcher.rows_of("on_cpu", tid).is_empty());
    let off = watcher.session.hooks().iter().find(|hook| {
        hook.failed.iter().any(|(way, why)| *way == Attach::CpuClock && why.contains("off"))
    });
    assert!(off.is_some_and(|hook| hook.outcome.is_none()));
}
