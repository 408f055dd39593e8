//! Iterations, from records to rows.

use underspan_model::State;

use super::LoopTracker;
use crate::record::{
    bytes_of, event_header, event_kind, gil_event, loop_event, loop_kind, stack_event,
    stack_moment, wait_event,
};
use crate::tests::support::{FakeContext, Row, decode};
use crate::{Rows, Tracker as _};

const MS: u64 = 1_000_000;

fn header(kind: u32, time: u64) -> event_header {
    event_header { kind, tgid: 5_000, tid: 5_001, time, ..event_header::default() }
}

/// An iteration of 300 ms that began at 1 s, mostly in one state.
fn stall(state: State) -> loop_event {
    let mut event = loop_event {
        h: header(event_kind::EVENT_LOOP, 1_000 * MS),
        duration: 300 * MS,
        fd: 5,
        kind: loop_kind::LOOP_EPOLL as u8,
        ..loop_event::default()
    };
    event.ns[state.index()] += 280 * MS;
    event.ns[State::Running.index()] += 20 * MS;
    event
}

/// A stack of one native frame, taken of the loop.
fn stack(time: u64, address: u64) -> Vec<u8> {
    let event = stack_event {
        h: header(event_kind::EVENT_STACK, time),
        native_frames: 1,
        loop_: 1,
        ..stack_event::default()
    };
    [bytes_of(&event), &address.to_ne_bytes()].concat()
}

fn context() -> FakeContext {
    FakeContext::new().know(5_000, 5_001, "loop").know(5_000, 5_002, "holder")
}

#[track_caller]
fn row(records: &[&[u8]]) -> (Row, FakeContext) {
    let (mut context, mut rows) = (context(), Rows::default());
    let mut decoder = LoopTracker.decoder();
    for record in records {
        decoder.event(record, &mut context, &mut rows).unwrap();
    }
    decoder.finish(2_000 * MS, &mut context, &mut rows);
    let [row] = <[Row; 1]>::try_from(decode(&mut rows)).unwrap();
    (row, context)
}

#[test]
fn every_column_has_its_value() {
    let (row, _) = row(&[bytes_of(&stall(State::Sleep))]);
    assert_eq!(row.table, "loop_stall");
    assert_eq!((row.u64("pid"), row.u64("tid")), (5_000, 5_001));
    assert_eq!((row.u64("ns_pid"), row.u64("ns_tid")), (4_000, 4_001));
    assert_eq!(row.u64("start_time"), FakeContext::OFFSET + 1_000 * MS);
    assert_eq!((row.u64("duration_ns"), row.text("kind")), (300 * MS, "epoll"));
    assert_eq!((row.u64("sleep_ns"), row.u64("running_ns")), (280 * MS, 20 * MS));
    assert_eq!((row.u64("culprit_tid"), row.text("culprit")), (0, ""));
    assert_eq!(row.u64("stack_id"), 0);
}

#[test]
fn the_stack_is_where_the_loop_was_longest() {
    // Before the iteration; 100 ms at one place; 180 ms at another, in two pieces; after it.
    let records =
        [stack(900 * MS, 1), stack(1_100 * MS, 2), stack(1_200 * MS, 3), stack(1_280 * MS, 3)];
    let after = stack(1_400 * MS, 4);
    let stall = stall(State::Running);
    let mut all: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
    all.extend([after.as_slice(), bytes_of(&stall)]);
    let (row, context) = row(&all);
    assert_eq!(row.u64("stack_id"), 1);
    assert_eq!(context.stacks[0].native, [3], "only the one that is told gets an id");
}

#[test]
fn stacks_of_other_threads_are_not_the_loops() {
    let mut other: stack_event = stack_event {
        h: header(event_kind::EVENT_STACK, 1_100 * MS),
        native_frames: 1,
        ..stack_event::default()
    };
    other.h.tid = 5_002;
    let other = [bytes_of(&other), &7u64.to_ne_bytes()].concat();
    let stall = stall(State::Running);
    assert_eq!(row(&[&other, bytes_of(&stall)]).0.u64("stack_id"), 0);
}

#[test]
fn the_holder_of_the_gil_is_the_culprit() {
    let wait = gil_event {
        h: header(event_kind::EVENT_GIL, 1_005 * MS),
        duration: 280 * MS,
        holder: 5_002,
        ..gil_event::default()
    };
    let stall_by_gil = stall(State::GilWait);
    let (named, _) = row(&[bytes_of(&wait), bytes_of(&stall_by_gil)]);
    assert_eq!((named.u64("culprit_tid"), named.text("culprit_thread")), (5_002, "holder"));
    assert_eq!(named.text("culprit"), "gil_wait");
    // It slept: whoever had the GIL for a moment meanwhile is not to blame.
    let asleep = stall(State::Sleep);
    assert_eq!(row(&[bytes_of(&wait), bytes_of(&asleep)]).0.u64("culprit_tid"), 0);
    // A tenth of it proves nothing.
    let short = gil_event { duration: 28 * MS, ..wait };
    assert_eq!(row(&[bytes_of(&short), bytes_of(&stall_by_gil)]).0.u64("culprit_tid"), 0);
}

/// The thread sleeps for nothing else until it waits for events, and only then its wait is told.
#[test]
fn the_holder_of_the_gil_is_told_after_the_iteration() {
    let wait = gil_event {
        h: header(event_kind::EVENT_GIL, 1_005 * MS),
        duration: 280 * MS,
        holder: 5_002,
        ..gil_event::default()
    };
    let (mut context, mut rows) = (context(), Rows::default());
    let mut decoder = LoopTracker.decoder();
    let mut others = wait;
    others.h.tid = 5_003;
    for record in [bytes_of(&stall(State::GilWait)), bytes_of(&others)] {
        decoder.event(record, &mut context, &mut rows).unwrap();
    }
    decoder.tick(2_299 * MS, &mut context, &mut rows);
    assert!(decode(&mut rows).is_empty(), "its wait may still be told");
    decoder.event(bytes_of(&wait), &mut context, &mut rows).unwrap();
    let [row] = <[Row; 1]>::try_from(decode(&mut rows)).unwrap();
    assert_eq!((row.u64("culprit_tid"), row.text("culprit_thread")), (5_002, "holder"));
    assert_eq!(row.text("culprit"), "gil_wait");
    decoder.finish(3_000 * MS, &mut context, &mut rows);
    assert!(decode(&mut rows).is_empty(), "it is told once");
}

#[test]
fn a_holder_that_is_not_told_is_not_waited_for_long() {
    let (mut context, mut rows) = (context(), Rows::default());
    let mut decoder = LoopTracker.decoder();
    decoder.event(bytes_of(&stall(State::GilWait)), &mut context, &mut rows).unwrap();
    decoder.tick(2_300 * MS, &mut context, &mut rows);
    assert_eq!(decode(&mut rows)[0].u64("culprit_tid"), 0);
    // Nor when the thread is gone.
    decoder.event(bytes_of(&stall(State::GilWait)), &mut context, &mut rows).unwrap();
    let exit = header(event_kind::EVENT_THREAD_EXIT, 1_301 * MS);
    decoder.event(bytes_of(&exit), &mut context, &mut rows).unwrap();
    assert_eq!(decode(&mut rows)[0].u64("culprit_tid"), 0);
}

#[test]
fn a_wait_of_another_thread_is_not_the_loops() {
    let mut wait = wait_event {
        h: header(event_kind::EVENT_WAIT, 1_005 * MS),
        duration: 280 * MS,
        state: State::LockWait.index() as u8,
        waker_tgid: 5_000,
        waker_tid: 5_002,
        ..wait_event::default()
    };
    let stall = stall(State::LockWait);
    assert_eq!(row(&[bytes_of(&wait), bytes_of(&stall)]).0.u64("culprit_tid"), 5_002);
    wait.h.tid = 5_003;
    assert_eq!(row(&[bytes_of(&wait), bytes_of(&stall)]).0.u64("culprit_tid"), 0);
}

#[test]
fn an_unknown_kind_is_refused() {
    let event = loop_event { kind: 9, ..stall(State::Sleep) };
    let result =
        LoopTracker.decoder().event(bytes_of(&event), &mut context(), &mut Rows::default());
    assert!(result.is_err());
}

#[test]
fn the_two_parts_of_a_wait_are_one_place() {
    let mut decoder = LoopTracker.decoder();
    let (mut context, mut rows) = (FakeContext::new(), Rows::default());
    let asleep = stack_event {
        h: header(event_kind::EVENT_STACK, 1_290 * MS),
        kernel_frames: 1,
        moment: stack_moment::STACK_ASLEEP as u8,
        loop_: 1,
        ..stack_event::default()
    };
    let records = [
        [bytes_of(&asleep), &0xffff_8000_0000_0001_u64.to_ne_bytes()].concat(),
        stack(1_291 * MS, 0x1000),
        bytes_of(&stall(State::Sleep)).to_vec(),
    ];
    for record in &records {
        decoder.event(record, &mut context, &mut rows).unwrap();
    }
    decoder.finish(2_000 * MS, &mut context, &mut rows);
    let row = &decode(&mut rows)[0];
    let stack = &context.stacks[row.u64("stack_id") as usize - 1];
    assert_eq!((stack.kernel.len(), stack.native.as_slice()), (1, &[0x1000][..]));
}

fn stack_again(time: u64, before: u64) -> Vec<u8> {
    let event = stack_event {
        h: header(event_kind::EVENT_STACK, time),
        loop_: 1,
        again: before,
        ..stack_event::default()
    };
    bytes_of(&event).to_vec()
}

/// What the thread is told to stand as again is one of its earlier stacks; Python's frames are in it only.
#[test]
fn a_loop_may_stand_where_it_stood_before() {
    let stall = stall(State::Sleep);
    let first = stack(500 * MS, 0x1000);
    let again = |before| stack_again(1_290 * MS, before);
    let (row, context) = row(&[&first, &again(500 * MS), bytes_of(&stall)]);
    assert_eq!(context.stacks[row.u64("stack_id") as usize - 1].native, [0x1000]);
    // What it refers to never came.
    let (row, _) = self::row(&[&first, &again(499 * MS), bytes_of(&stall)]);
    assert_eq!(row.u64("stack_id"), 0);
}

#[test]
fn where_a_loop_stood_is_known_after_an_idle_hour() {
    const HOUR: u64 = 3_600_000 * MS;
    let (mut context, mut rows) = (context(), Rows::default());
    let mut decoder = LoopTracker.decoder();
    decoder.event(&stack(500 * MS, 0x1000), &mut context, &mut rows).unwrap();
    decoder.tick(HOUR, &mut context, &mut rows);
    let mut stall = stall(State::Sleep);
    stall.h.time += HOUR;
    let again = stack_again(HOUR + 1_290 * MS, 500 * MS);
    decoder.event(&again, &mut context, &mut rows).unwrap();
    decoder.event(bytes_of(&stall), &mut context, &mut rows).unwrap();
    let [row] = <[Row; 1]>::try_from(decode(&mut rows)).unwrap();
    assert_eq!(context.stacks[row.u64("stack_id") as usize - 1].native, [0x1000]);
}
