//! Samples, from records to rows; and what is said of machines without counters.

mod ticks;

use super::OnCpuTracker;
use super::clock::{cpu_list, period_ns};
use super::counters::Counters;
use crate::record::{DecodeError, bytes_of, event_header, event_kind, python_frame, stack_event};
use crate::tests::support::{FakeContext, Row, decode};
use crate::{Rows, Tracker as _};
use underspan_model::State;

/// Two kernel frames, three native ones and a Python one.
fn sample() -> stack_event {
    stack_event {
        h: event_header {
            kind: event_kind::EVENT_ON_CPU,
            tgid: 5_000,
            tid: 5_007,
            time: 20_000,
            ..event_header::default()
        },
        cycles: 30_000_000,
        instructions: 45_000_000,
        cache_misses: 1_200,
        branch_misses: 0,
        weight: 10_101_010,
        kernel_frames: 2,
        native_frames: 3,
        python_frames: 1,
        state: State::Running.index() as u8,
        ..stack_event::default()
    }
}

fn record(sample: &stack_event) -> Vec<u8> {
    let mut bytes = bytes_of(sample).to_vec();
    for address in 1..=u64::from(sample.kernel_frames + sample.native_frames) {
        bytes.extend_from_slice(bytes_of(&(address << 12)));
    }
    for code in 1..=u64::from(sample.python_frames) {
        bytes.extend_from_slice(bytes_of(&python_frame { code, ..python_frame::default() }));
    }
    bytes
}

fn event(bytes: &[u8]) -> Result<(Vec<Row>, FakeContext), DecodeError> {
    let mut context = FakeContext::new().know(5_000, 5_007, "worker");
    let mut rows = Rows::default();
    OnCpuTracker.decoder().event(bytes, &mut context, &mut rows)?;
    Ok((decode(&mut rows), context))
}

#[track_caller]
fn row(sample: &stack_event) -> Row {
    let (rows, _) = event(&record(sample)).unwrap();
    let [row] = <[Row; 1]>::try_from(rows).unwrap();
    row
}

#[test]
fn every_column_has_its_value() {
    let (rows, context) = event(&record(&sample())).unwrap();
    let [row] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!(row.table, "on_cpu");
    assert_eq!(row.text("host"), FakeContext::HOST);
    assert_eq!((row.u64("pid"), row.u64("tid")), (5_000, 5_007));
    assert_eq!((row.u64("ns_pid"), row.u64("ns_tid")), (4_000, 4_007));
    assert_eq!(row.text("thread"), "worker");
    assert_eq!(row.u64("start_time"), FakeContext::OFFSET + 20_000);
    assert_eq!(row.u64("duration_ns"), 10_101_010);
    assert_eq!(row.text("state"), "running");
    assert_eq!(row.u64("stack_id"), 1);
    assert_eq!(row.nullable("cycles"), Some(30_000_000));
    assert_eq!(row.nullable("instructions"), Some(45_000_000));
    assert_eq!(row.nullable("cache_misses"), Some(1_200));
    assert_eq!(row.nullable("branch_misses"), Some(0));

    let [stack] = context.stacks.as_slice() else { panic!("{:?}", context.stacks) };
    assert_eq!(stack.pid, 5_000);
    assert_eq!((stack.kernel.as_slice(), stack.native.len()), (&[1 << 12, 2 << 12][..], 3));
    assert_eq!(stack.python.len(), 1);
}

#[test]
fn what_was_not_counted_is_null_and_never_zero() {
    let none = u64::MAX;
    let row = row(&stack_event {
        cycles: none,
        instructions: none,
        cache_misses: none,
        branch_misses: none,
        ..sample()
    });
    for column in ["cycles", "instructions", "cache_misses", "branch_misses"] {
        assert_eq!(row.nullable(column), None, "{column}");
    }
}

#[test]
fn one_field_changes_its_own_columns() {
    let before = row(&sample());
    let changed = |change: fn(&mut stack_event)| {
        let mut sample = sample();
        change(&mut sample);
        row(&sample)
    };
    let states = changed(|sample| sample.state = State::GcRun.index() as u8);
    assert_eq!(before.differences(&states), ["state"]);
    assert_eq!(states.text("state"), "gc_run");
    let weight = changed(|sample| sample.weight = 20_202_020);
    assert_eq!(before.differences(&weight), ["duration_ns"]);
    let misses = changed(|sample| sample.cache_misses = u64::MAX);
    assert_eq!(before.differences(&misses), ["cache_misses"]);
}

#[test]
fn a_blocked_thread_cannot_be_sampled() {
    for state in [State::LockWait.index() as u8, u8::MAX] {
        let wrong = stack_event { state, ..sample() };
        let refused = event(&record(&wrong)).map(|_| ()).unwrap_err();
        assert!(matches!(refused, DecodeError::Value { field: "state", .. }), "{refused}");
    }
}

#[test]
fn a_cut_record_is_refused_and_others_are_left_alone() {
    let whole = record(&sample());
    for len in [whole.len() - 1, size_of::<stack_event>(), size_of::<stack_event>() - 1, 4] {
        let refused = event(&whole[..len]).map(|_| ()).unwrap_err();
        assert!(matches!(refused, DecodeError::Short { .. }), "{len} bytes: {refused}");
    }
    let mut other = sample();
    other.h.kind = event_kind::EVENT_STACK;
    assert!(event(&record(&other)).unwrap().0.is_empty());
}

#[test]
fn a_second_has_as_many_samples_as_asked_for() {
    assert_eq!(period_ns(99), 10_101_010);
    assert_eq!(period_ns(1), 1_000_000_000);
    assert_eq!(period_ns(0), 1_000_000_000, "never a division by zero");
}

#[test]
fn cpus_are_listed_as_the_kernel_does() {
    assert_eq!(cpu_list("0\n"), Some(vec![0]));
    assert_eq!(cpu_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
    for nonsense in ["", "a-b", "1-", "0-4294967295"] {
        assert_eq!(cpu_list(nonsense), None, "{nonsense:?}");
    }
}

#[test]
fn counters_that_stay_zero_are_no_pmu() {
    let stuck = Counters::judge([Some(0), Some(0), Some(0), Some(0)]).unwrap_err();
    assert_eq!(stuck, "unavailable: no PMU (its counters stay 0)");
    assert!(Counters::judge([Some(5), None, Some(5), Some(5)]).is_err());

    let partly = Counters::judge([Some(9), Some(9), None, Some(0)]).unwrap();
    assert_eq!(partly.missing(), ["cache misses", "branch misses"]);
    let all = Counters::judge([Some(9), Some(9), Some(9), Some(9)]).unwrap();
    assert!(all.missing().is_empty());
}
