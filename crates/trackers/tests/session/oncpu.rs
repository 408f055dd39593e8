//! Samples of running threads: shares and totals that are known, and none of threads that sleep.

use std::time::Duration;

use underspan_model::{Ledger, State};
use underspan_trackers::{Attach, Options};

use crate::watcher::Watcher;
use crate::workload::Workload;

/// Often, so that a short test has little sampling error; and never in step with anything.
const HZ: u32 = 997;
const PERIOD_NS: u64 = 1_000_000_000 / HZ as u64;

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

#[test]
fn counters_are_there_or_said_not_to_be() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let tid = workload.start("burn");
    std::thread::sleep(Duration::from_millis(500));
    watcher.drain();
    let rows = watcher.rows_of("on_cpu", tid);
    assert!(rows.len() > 10, "{} samples", rows.len());
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
