//! Waits become samples: the weights are the time that was waited, and each has its own stack.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use object::{Object as _, ObjectSymbol as _};
use underspan_model::{StackEnd, State};
use underspan_trackers::{Attach, HookStatus};

use crate::machine::taken;
use crate::sums::{cpus, pin};
use crate::support::Row;
use crate::watcher::Watcher;
use crate::workload::{Workload, eventually};

const PERIOD: u64 = 10_000_000;

fn weights(rows: &[Row]) -> BTreeMap<String, u64> {
    let mut weights = BTreeMap::new();
    for row in rows {
        *weights.entry(row.text("state").to_owned()).or_default() += row.u64("weight_ns");
    }
    weights
}

/// For how long a thread was in calls that sleep, by its own clock.
struct Slept<const N: usize> {
    calls: [u64; N],
    /// On a CPU, and waiting for one: by the kernel's account.
    awake: u64,
    /// On a CPU, which the kernel leaves out of that, at most.
    taken: u64,
}

impl<const N: usize> Slept<N> {
    /// The ledger has what they took but for the time awake, which may have been in either.
    #[track_caller]
    fn assert_in(&self, ledger: &Row, states: [State; N]) {
        let waited = states.map(|state| ledger.u64(&underspan_model::column(state)));
        let calls = self.calls.iter().sum::<u64>();
        let asleep = calls.saturating_sub(self.awake);
        let pairs = waited.iter().zip(self.calls).map(|(waited, call)| (*waited, call, call));
        for (waited, most, call) in pairs.chain([(waited.iter().sum(), asleep, calls)]) {
            let least = asleep.saturating_sub(calls - call + self.taken);
            let expected = waited.clamp(least, most.max(least));
            let what = format!("{waited} ns waited, expected {least} to {most} ns of {call} ns");
            eprintln!("{what}");
            assert!(waited.abs_diff(expected) <= call / 20, "{what}");
        }
    }
}

/// Plays a role that ends by itself; its thread's samples, its ledger, and what it says of its calls.
fn play<const N: usize>(
    watcher: &mut Watcher,
    workload: &mut Workload,
    role: &str,
) -> (Vec<Row>, Row, Slept<N>) {
    let before = taken();
    let tid = workload.start(role);
    let mut micros = || u64::from(workload.answer()) * 1_000;
    let calls = [(); N].map(|()| micros());
    let slept = Slept { calls, awake: micros(), taken: taken() - before };
    eventually(role, || workload.stat_state(tid).is_none().then_some(()));
    // The last ledger is written when the thread ends, whole: nothing read it before.
    let of_thread = |row: &Row| row.u64("tid") == u64::from(tid);
    let ledger = watcher.row("thread_states", of_thread);
    (watcher.rows_of("off_cpu", tid), ledger, slept)
}

/// Weights differ from the ledger by what is still carried: less than a period.
#[track_caller]
fn assert_weights(rows: &[Row], ledger: &Row, state: State) {
    let weight = weights(rows).get(state.name()).copied().unwrap_or(0);
    let waited = ledger.u64(&underspan_model::column(state));
    let off = weight.abs_diff(waited);
    assert!(off <= PERIOD, "{}: {weight} ns sampled, {waited} ns in the ledger", state.name());
}

#[test]
fn waits_shorter_than_the_period_add_up() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    // 400 sleeps of 3 ms and 400 polls of 2 ms, by turns.
    let (rows, ledger, slept) = play(&mut watcher, &mut workload, "many-short");
    slept.assert_in(&ledger, [State::Sleep, State::PollWait]);
    assert_weights(&rows, &ledger, State::Sleep);
    assert_weights(&rows, &ledger, State::PollWait);
    // The thread sleeps in two places by turns, and each sample tells of the right one.
    for (state, function) in [("sleep", "hrtimer_nanosleep"), ("poll_wait", "do_sys_poll")] {
        let function = kernel_function(function);
        let of: Vec<_> = rows.iter().filter(|row| row.text("state") == state).collect();
        let stacks: Vec<_> = of.iter().filter_map(|row| watcher.stack_of(row)).collect();
        let missed = of.len() - stacks.len();
        assert!(missed as u64 <= watcher.untold(), "{missed} of {} are missing", of.len());
        for stack in stacks {
            let there = stack.kernel.iter().any(|frame| function.contains(frame));
            assert!(there, "{state}: {stack:x?} is not in {function:x?}");
        }
    }
    // Others may have had the CPU for longer.
    for row in rows.iter().filter(|row| row.u64("duration_ns") < PERIOD) {
        assert!(row.u64("weight_ns").is_multiple_of(PERIOD), "{row:?}");
    }
    watcher.assert_nothing_lost();
}

#[test]
fn a_wait_as_long_as_the_period_stands_for_itself() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    // 20 sleeps of 25 ms.
    let (rows, ledger, slept) = play(&mut watcher, &mut workload, "some-long");
    slept.assert_in(&ledger, [State::Sleep]);
    assert_weights(&rows, &ledger, State::Sleep);
    let sleeps: Vec<_> = rows.iter().filter(|row| row.text("state") == "sleep").collect();
    assert_eq!(sleeps.len(), 20);
    for row in &sleeps {
        assert_eq!(row.u64("weight_ns"), row.u64("duration_ns"));
    }
    let missed = sleeps.iter().filter(|row| row.u64("stack_id") == 0).count();
    assert!(missed as u64 <= watcher.untold(), "{missed} stacks are missing");
    watcher.assert_nothing_lost();
}

#[test]
fn a_lock_names_who_released_it_and_where() {
    let mut watcher = Watcher::new();
    watcher.session.start_unwinding().expect("unwinding starts");
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let first = workload.start("dig-5");
    unwinds(&mut watcher, first);
    let holder = u64::from(workload.start("release-lock"));
    let waiter = u64::from(workload.start("wait-for-lock"));
    let row =
        watcher.row("off_cpu", |row| row.u64("tid") == waiter && row.text("state") == "lock_wait");
    assert!(row.u64("duration_ns") > 20_000_000, "{row:?}");
    assert_eq!((row.u64("holder_tid"), row.text("holder_reason")), (holder, "released_it"));
    assert_eq!(row.u64("waker_tid"), holder);
    for (id, of) in [("stack_id", "do_wait_for_lock"), ("waker_stack_id", "do_release_lock")] {
        let (stack, of) = (watcher.stack(row.u64(id)), function(of));
        assert!(stack.native.iter().any(|frame| of.contains(frame)), "{id}: {stack:?}");
    }
    assert_eq!(row.text("lock_kind"), "futex");
    assert_eq!(row.u64("lock_addr"), u64::from(workload.ask("lock-address")));
    watcher.assert_nothing_lost();
}

#[test]
fn a_wait_for_the_gil_is_one_sample_and_names_its_holder() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    let gil = workload.addresses().gil;
    let config = underspan_trackers::ProcessConfig { gil, ..Default::default() };
    watcher.session.watch(workload.pid, config).expect("the process can be watched");
    let holder = u64::from(workload.start_and_block("hold"));
    let before = taken();
    let waiter = workload.start("gil-slices");
    let row = watcher.row("off_cpu", |row| {
        row.u64("tid") == u64::from(waiter) && row.text("state") == "gil_wait"
    });
    let waited = row.u64("duration_ns");
    let late = workload.schedstat(waiter)[1] + taken() - before;
    assert!((45_000_000..90_000_000 + late).contains(&waited), "{row:?}");
    // Between its sleeps it ran for some microseconds, when it had a CPU.
    assert!(waited - row.u64("weight_ns") < 2_000_000 + late, "{row:?}: {late}");
    assert_eq!((row.u64("holder_tid"), row.text("holder_reason")), (holder, "gil_state"));
    assert_eq!((row.u64("lock_addr"), row.text("lock_kind")), (gil, "gil"));
    assert_ne!(row.u64("stack_id"), 0);
    watcher.assert_nothing_lost();
}

/// Waits until a thread's native stacks are whole: unwind tables are read when they are asked for first.
#[track_caller]
fn unwinds(watcher: &mut Watcher, tid: u32) {
    eventually("a whole stack", || {
        watcher.drain();
        let rows = watcher.rows_of("off_cpu", tid);
        let mut stacks = rows.iter().filter_map(|row| watcher.stack_of(row));
        stacks.any(|stack| stack.ends.native == StackEnd::Complete).then_some(())
    });
}

/// Where a function of the kernel is: up to the next symbol.
pub(crate) fn kernel_function(name: &str) -> Range<u64> {
    let symbols = std::fs::read_to_string("/proc/kallsyms").expect("it can be read");
    let mut addresses = Vec::new();
    let mut start = None;
    for line in symbols.lines() {
        let mut words = line.split(' ');
        let address = words.next().map(|word| u64::from_str_radix(word, 16).expect("an address"));
        addresses.extend(address);
        if words.nth(1) == Some(name) {
            start = address;
        }
    }
    let start = start.unwrap_or_else(|| panic!("the kernel has no {name}"));
    let end = addresses.into_iter().filter(|address| *address > start).min().expect("a symbol");
    start..end
}

/// Where a function of the workload is.
fn function(name: &str) -> Range<u64> {
    let bytes = std::fs::read(crate::workload::binary()).expect("it was compiled");
    let file = object::File::parse(bytes.as_slice()).expect("an ELF file");
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name)).expect("a function");
    symbol.address()..symbol.address() + symbol.size()
}

#[test]
fn every_sample_has_its_own_threads_stack_also_when_threads_migrate() {
    check_stacks_of_migrating_threads(Watcher::new(), Workload::new());
}

/// What is remembered of a stack must not be taken for another: three sleeps called by one function, three
/// by its twin, and so on.
#[test]
fn the_same_place_reached_by_another_way_is_another_stack() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.session.start_unwinding().expect("unwinding starts");
    watcher.watch(workload.pid);
    let tid = workload.start("twins");
    unwinds(&mut watcher, tid);
    watcher.rows.clear();
    let twins = [function("left"), function("right")];
    let rows = eventually("as many samples as two seconds have", || {
        watcher.drain();
        let mut rows = watcher.rows_of("off_cpu", tid);
        rows.retain(|row| row.text("state") == "sleep");
        (rows.len() >= 160).then_some(rows)
    });
    let caller = |row: &Row| {
        let stack = watcher.stack_of(row)?;
        let [left, right] =
            twins.each_ref().map(|twin| stack.native.iter().any(|at| twin.contains(at)));
        assert!(left != right, "{row:?}: {stack:x?}");
        Some(right)
    };
    let callers: Vec<_> = rows.iter().map(caller).collect();
    let missed = callers.iter().filter(|caller| caller.is_none()).count();
    assert!(missed as u64 <= watcher.untold(), "{missed} stacks are missing");
    // A sleep of which the CPU was taken until its time was over is none. A stack that was taken for the
    // one before makes four in a row.
    let known: Vec<_> = callers.into_iter().flatten().collect();
    let turns: Vec<_> = known.chunk_by(|one, next| one == next).map(<[bool]>::len).collect();
    assert!(turns.iter().all(|turn| *turn <= 3), "{turns:?}");
    assert!(turns.iter().filter(|turn| **turn == 3).count() * 10 >= turns.len() * 7, "{turns:?}");
    watcher.assert_nothing_lost();
}

#[test]
fn threads_without_restartable_sequences_have_their_stacks_or_say_that_they_were_missed() {
    let watcher = Watcher::new();
    let by_task_work = |hook: &HookStatus| hook.outcome == Some(Attach::TaskWork);
    if watcher.session.hooks().iter().any(by_task_work) {
        return check_stacks_of_migrating_threads(watcher, Workload::without_rseq());
    }
    let (mut watcher, mut workload) = (watcher, Workload::without_rseq());
    watcher.watch(workload.pid);
    let tid = workload.start("some-long");
    let row = watcher.row("off_cpu", |row| row.u64("tid") == u64::from(tid));
    let stack = watcher.stack(row.u64("stack_id"));
    assert!(!stack.kernel.is_empty(), "{stack:?}");
    assert_eq!((stack.native.len(), stack.ends.native), (0, StackEnd::Missed));
}

fn check_stacks_of_migrating_threads(mut watcher: Watcher, mut workload: Workload) {
    watcher.session.start_unwinding().expect("unwinding starts");
    watcher.watch(workload.pid);
    let depths = [5, 40, 120].map(|depth| (workload.start(&format!("dig-{depth}")), depth));
    for (tid, _) in depths {
        unwinds(&mut watcher, tid);
    }
    watcher.rows.clear();

    let cpus = cpus();
    let mut round = 0;
    // On a busy machine a sleep's end waits for a CPU, and there are fewer sleeps in a round.
    eventually("sixty samples of each", || {
        for (index, (tid, _)) in depths.iter().enumerate() {
            pin(*tid, cpus[(round + index) % cpus.len()]);
        }
        std::thread::sleep(Duration::from_millis(20));
        round += 1;
        watcher.drain();
        let slept = |tid: u32| {
            let rows = watcher.rows_of("off_cpu", tid);
            rows.iter().filter(|row| row.text("state") == "sleep").count() >= 60
        };
        (round >= 60 && depths.iter().all(|(tid, _)| slept(*tid))).then_some(())
    });
    let dig = function("dig");
    let mut missed = 0;
    for (tid, depth) in depths {
        let rows = watcher.rows_of("off_cpu", tid);
        let sleeps: Vec<_> = rows.iter().filter(|row| row.text("state") == "sleep").collect();
        for row in sleeps {
            let Some(stack) = watcher.stack_of(row) else {
                missed += 1;
                continue;
            };
            let deep = stack.native.iter().filter(|frame| dig.contains(frame)).count();
            assert_eq!(deep, depth, "{row:?}: {stack:?}");
            assert_eq!(stack.ends.native, StackEnd::Complete, "{stack:?}");
            assert_eq!(stack.ends.kernel, StackEnd::Complete, "{stack:?}");
            assert!(!stack.kernel.is_empty(), "{stack:?}");
        }
    }
    assert!(missed <= watcher.untold(), "{missed} stacks are missing");
    watcher.assert_nothing_lost();
}
