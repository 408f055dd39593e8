//! Samples, from their pieces to rows.

mod points;

use proptest::prelude::*;
use underspan_model::{StackEnd, State};

use super::OffCpuTracker;
use crate::record::{
    DecodeError, bytes_of, event_header, event_kind, off_cpu_event, read, stack_end, stack_event,
    stack_moment, thread_exit_event,
};
use crate::tests::support::{FakeContext, Row, cases, decode};
use crate::{Decoder, Rows, Tracker as _};

const SECOND: u64 = 1_000_000_000;

fn header(kind: u32, tid: u32, time: u64) -> event_header {
    event_header { kind, tgid: 5_000, tid, time, ..event_header::default() }
}

/// A request's thread that slept 20 ms on a lock, and got a CPU 5 ms after it was released.
fn wait() -> off_cpu_event {
    off_cpu_event {
        h: header(event_kind::EVENT_OFF_CPU, 5_007, 10_000),
        sequence: 77,
        asleep_as: 77,
        duration: 25_000_000,
        runnable: 5_000_000,
        weight: 20_000_000,
        ready_weight: 10_000_000,
        futex: 0x7f00_1000,
        futex_op: 137,
        syscall: 202,
        fd: -1,
        waker_tgid: 5_000,
        waker_tid: 5_008,
        state: State::LockWait.index() as u8,
        ready_state: State::Runnable.index() as u8,
        python: 1,
        in_request: 1,
        ..off_cpu_event::default()
    }
}

/// A GIL wait of 30 ms, for 12 of which a sibling collected, 1 ms of it for want of a CPU.
fn gil() -> off_cpu_event {
    off_cpu_event {
        duration: 30_000_000,
        runnable: 1_000_000,
        gc_ns: 12_000_000,
        gc_tid: 5_009,
        weight: 17_000_000,
        gc_weight: 12_000_000,
        ready_weight: 0,
        futex: 0x5500_0000,
        holder: 5_008,
        gil: 1,
        state: State::GilWait.index() as u8,
        ..wait()
    }
}

/// A stack of these addresses: `kernel` of them are the kernel's, the rest native.
fn stack(moment: u32, tid: u32, sequence: u64, kernel: &[u64], native: &[u64]) -> Vec<u8> {
    let event = stack_event {
        h: header(event_kind::EVENT_STACK, tid, 30_000),
        sequence,
        oldest: sequence,
        kernel_frames: kernel.len() as u16,
        native_frames: native.len() as u16,
        moment: moment as u8,
        kernel_end: if kernel.is_empty() { stack_end::STACK_ABSENT } else { 0 } as u8,
        native_end: if native.is_empty() { stack_end::STACK_ABSENT } else { 0 } as u8,
        python_end: stack_end::STACK_ABSENT as u8,
        ..stack_event::default()
    };
    let frames = kernel.iter().chain(native).flat_map(|address| address.to_ne_bytes());
    bytes_of(&event).iter().copied().chain(frames).collect()
}

fn asleep(sequence: u64) -> Vec<u8> {
    stack(stack_moment::STACK_ASLEEP, 5_007, sequence, &[0xffff_0001, 0xffff_0002], &[])
}

fn after_wait(sequence: u64) -> Vec<u8> {
    stack(stack_moment::STACK_AFTER_WAIT, 5_007, sequence, &[], &[0x40_0001, 0x40_0002])
}

fn of_waker(sequence: u64) -> Vec<u8> {
    let sequence = 5_007 << 32 | (sequence & 0xffff_ffff);
    stack(stack_moment::STACK_OF_WAKER, 5_008, sequence, &[], &[0x40_0009])
}

struct Bench {
    decoder: Box<dyn Decoder>,
    context: FakeContext,
    rows: Rows,
}

impl Bench {
    fn new() -> Self {
        let context = FakeContext::new()
            .know(5_000, 5_007, "gthread_0")
            .know(5_000, 5_008, "computer")
            .know(5_000, 5_009, "collector");
        Bench { decoder: OffCpuTracker.decoder(), context, rows: Rows::default() }
    }

    fn event(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        self.decoder.event(bytes, &mut self.context, &mut self.rows)
    }

    #[track_caller]
    fn events(&mut self, all: &[Vec<u8>]) -> Vec<Row> {
        for bytes in all {
            self.event(bytes).unwrap();
        }
        decode(&mut self.rows)
    }

    fn tick(&mut self, now: u64) -> Vec<Row> {
        self.decoder.tick(now, &mut self.context, &mut self.rows);
        decode(&mut self.rows)
    }
}

fn all_of(event: &off_cpu_event) -> [Vec<u8>; 4] {
    let sequence = event.sequence;
    [of_waker(sequence), asleep(sequence), bytes_of(event).to_vec(), after_wait(sequence)]
}

#[track_caller]
fn rows(event: &off_cpu_event) -> Vec<Row> {
    Bench::new().events(&all_of(event))
}

fn holder(row: &Row) -> (u64, &str, &str) {
    (row.u64("holder_tid"), row.text("holder_thread"), row.text("holder_reason"))
}

#[test]
fn every_column_has_its_value() {
    let mut bench = Bench::new();
    let [blocked, ready] = <[Row; 2]>::try_from(bench.events(&all_of(&wait()))).unwrap();
    for row in [&blocked, &ready] {
        assert_eq!(row.table, "off_cpu");
        assert_eq!(row.text("host"), FakeContext::HOST);
        assert_eq!((row.u64("pid"), row.u64("tid")), (5_000, 5_007));
        assert_eq!((row.u64("ns_pid"), row.u64("ns_tid")), (4_000, 4_007));
        assert_eq!(row.text("thread"), "gthread_0");
        assert_eq!((row.u64("waker_pid"), row.u64("waker_tid")), (5_000, 5_008));
        assert_eq!(row.text("waker_thread"), "computer");
        assert_eq!(row.u64("in_request"), 1);
        assert_eq!(row.u64("runnable_ns"), 5_000_000);
        assert_eq!(row.number("syscall"), 202);
        assert_eq!(row.text("peer"), "");
        assert_eq!((row.u64("stack_id"), row.u64("waker_stack_id")), (1, 2));
    }
    assert_eq!(blocked.text("state"), "lock_wait");
    assert_eq!(blocked.u64("start_time"), FakeContext::OFFSET + 10_000);
    assert_eq!((blocked.u64("duration_ns"), blocked.u64("weight_ns")), (20_000_000, 20_000_000));
    assert_eq!((blocked.u64("lock_addr"), blocked.text("lock_kind")), (0x7f00_1000, "python_lock"));
    assert_eq!(holder(&blocked), (5_008, "computer", "released_it"));
    assert_eq!(blocked.u64("holder_pid"), 5_000);

    assert_eq!(ready.text("state"), "runnable");
    assert_eq!(ready.u64("start_time"), FakeContext::OFFSET + 20_010_000);
    assert_eq!((ready.u64("duration_ns"), ready.u64("weight_ns")), (5_000_000, 10_000_000));
    assert_eq!((ready.u64("lock_addr"), ready.text("lock_kind")), (0, ""));
    assert_eq!(holder(&ready), (0, "", ""));

    let whole = &bench.context.stacks[0];
    assert_eq!((whole.pid, &*whole.kernel), (5_000, &[0xffff_0001, 0xffff_0002][..]));
    assert_eq!(whole.native, [0x40_0001, 0x40_0002]);
    assert_eq!(whole.ends.kernel, StackEnd::Complete);
    assert_eq!(whole.ends.native, StackEnd::Complete);
    assert_eq!(bench.context.stacks[1].native, [0x40_0009]);
    assert!(bench.context.lost.is_empty());
}

#[test]
fn one_field_changes_its_own_columns() {
    type Change = fn(&mut off_cpu_event);
    let changes: [(Change, &[&str]); 7] = [
        (|w| w.h.time += 1, &["start_time"]),
        (|w| w.duration += 1, &["duration_ns"]),
        (|w| w.weight += 1, &["weight_ns"]),
        (|w| w.futex += 16, &["lock_addr"]),
        (|w| w.syscall += 1, &["syscall"]),
        (|w| w.in_request = 0, &["in_request"]),
        (|w| w.python = 0, &["lock_kind"]),
    ];
    let before = rows(&wait());
    for (index, (change, columns)) in changes.into_iter().enumerate() {
        let mut changed = wait();
        change(&mut changed);
        assert_eq!(rows(&changed)[0].differences(&before[0]), columns, "change {index}");
    }
}

#[test]
fn a_wait_for_the_gil_is_split_where_a_sibling_collected() {
    let [waited, collected] = <[Row; 2]>::try_from(rows(&gil())).unwrap();
    assert_eq!((waited.text("state"), collected.text("state")), ("gil_wait", "gc_wait"));
    assert_eq!((waited.u64("weight_ns"), collected.u64("weight_ns")), (17_000_000, 12_000_000));
    assert_eq!((waited.u64("duration_ns"), collected.u64("duration_ns")), (17_000_000, 12_000_000));
    assert_eq!(holder(&waited), (5_008, "computer", "gil_state"));
    assert_eq!(holder(&collected), (5_009, "collector", "collector"));
    for row in [&waited, &collected] {
        assert_eq!((row.u64("lock_addr"), row.text("lock_kind")), (0x5500_0000, "gil"));
    }
}

#[test]
fn without_a_holder_it_is_the_sibling_that_let_go() {
    let unknown = off_cpu_event { holder: 0, ..gil() };
    assert_eq!(holder(&rows(&unknown)[0]), (5_008, "computer", "released_it"));
    // A timer, and another process, release nothing.
    let timer = off_cpu_event { waker_tgid: 0, waker_tid: 0, ..unknown };
    assert_eq!(holder(&rows(&timer)[0]), (0, "", ""));
    let other = off_cpu_event { waker_tgid: 9, ..unknown };
    assert_eq!(holder(&rows(&other)[0]), (0, "", ""));
}

#[test]
fn locks_are_told_apart_by_how_and_where_they_are_waited_for() {
    let kind = |event: off_cpu_event, lock: u64| {
        let mut stack = after_wait(event.sequence);
        let at = std::mem::offset_of!(stack_event, lock);
        stack[at..at + 8].copy_from_slice(&lock.to_ne_bytes());
        let pieces = [asleep(event.sequence), bytes_of(&event).to_vec(), stack];
        let row = Bench::new().events(&pieces).remove(0);
        (row.u64("lock_addr"), row.text("lock_kind").to_owned())
    };
    let is = |address: u64, kind: &str| (address, kind.to_owned());
    assert_eq!(kind(wait(), 0), is(0x7f00_1000, "python_lock"));
    // A mutex of C, a condition variable, a process without Python.
    assert_eq!(kind(off_cpu_event { futex_op: 128, ..wait() }, 0), is(0x7f00_1000, "futex"));
    assert_eq!(kind(off_cpu_event { futex: 0x7f00_1028, ..wait() }, 0), is(0x7f00_1028, "futex"));
    assert_eq!(kind(off_cpu_event { python: 0, ..wait() }, 0), is(0x7f00_1000, "futex"));
    // On the waiter's stack, with the lock's address before it.
    let parked = off_cpu_event { futex: 0x7ffe_0008, ..wait() };
    assert_eq!(kind(parked, 0x7f33_0010), is(0x7f33_0010, "python_lock"));
    // Not every wait is for a lock.
    let sleeps = off_cpu_event { state: State::Sleep.index() as u8, futex: 0, ..wait() };
    assert_eq!(kind(sleeps, 0), is(0, ""));
}

#[test]
fn a_sample_may_have_slept_where_an_earlier_one_did() {
    let mut bench = Bench::new();
    let like =
        |sequence, asleep_as| bytes_of(&off_cpu_event { sequence, asleep_as, ..wait() }).to_vec();
    let kernel = |bench: &Bench, row: &Row| {
        bench.context.stacks[row.u64("stack_id") as usize - 1].ends.kernel
    };
    let rows = bench.events(&[asleep(77), like(77, 77), after_wait(77)]);
    assert_eq!(kernel(&bench, &rows[0]), StackEnd::Complete);
    let rows = bench.events(&[like(78, 77), after_wait(78)]);
    let stack = &bench.context.stacks[rows[0].u64("stack_id") as usize - 1];
    assert_eq!(stack.kernel, [0xffff_0001, 0xffff_0002]);
    // The one that it refers to was lost, or is another's by now.
    let rows = bench.events(&[like(79, 76), after_wait(79)]);
    assert_eq!(kernel(&bench, &rows[0]), StackEnd::Missed);
    let exit = thread_exit_event {
        h: header(event_kind::EVENT_THREAD_EXIT, 5_007, 40_000),
        ..thread_exit_event::default()
    };
    let rows = bench.events(&[bytes_of(&exit).to_vec(), like(80, 77), after_wait(80)]);
    assert_eq!(kernel(&bench, &rows[0]), StackEnd::Missed);
}

#[test]
fn a_thread_may_stand_where_it_stood_before() {
    let mut bench = Bench::new();
    let again = |sequence, time: u64| {
        let mut stack = stack(stack_moment::STACK_AFTER_WAIT, 5_007, sequence, &[], &[]);
        let at = std::mem::offset_of!(stack_event, again);
        stack[at..at + 8].copy_from_slice(&time.to_ne_bytes());
        stack
    };
    let sample = |bench: &mut Bench, sequence, stack: Vec<u8>| {
        let event = off_cpu_event { sequence, asleep_as: sequence, ..wait() };
        let rows = bench.events(&[asleep(sequence), bytes_of(&event).to_vec(), stack]);
        bench.context.stacks[rows[0].u64("stack_id") as usize - 1].clone()
    };
    let told: stack_event = read(&after_wait(77)).unwrap();
    let first = sample(&mut bench, 77, after_wait(77));
    assert_eq!(sample(&mut bench, 78, again(78, told.h.time)), first);
    assert!(bench.context.lost.is_empty());
    // What it refers to was lost, or is a later thread's.
    let other = sample(&mut bench, 79, again(79, told.h.time + 1));
    assert_eq!((other.native.len(), other.ends.native), (0, StackEnd::Missed));
    let exit = thread_exit_event {
        h: header(event_kind::EVENT_THREAD_EXIT, 5_007, 40_000),
        ..thread_exit_event::default()
    };
    bench.events(&[bytes_of(&exit).to_vec()]);
    let other = sample(&mut bench, 80, again(80, told.h.time));
    assert_eq!(other.ends.native, StackEnd::Missed);
    assert_eq!(bench.context.lost[&("offcpu", "missed")], 2);
}

#[test]
fn a_sample_waits_for_its_stack_and_not_for_ever() {
    let mut bench = Bench::new();
    bench.tick(SECOND);
    assert!(bench.events(&[asleep(77), bytes_of(&wait()).to_vec()]).is_empty());
    assert!(bench.tick(3 * SECOND).is_empty());
    let rows = bench.tick(5 * SECOND);
    assert_eq!(rows.len(), 2);
    let stack = &bench.context.stacks[rows[0].u64("stack_id") as usize - 1];
    assert_eq!((stack.kernel.len(), stack.native.len()), (2, 0));
    assert_eq!(stack.ends.native, StackEnd::Missed);
    assert_eq!(bench.context.lost[&("offcpu", "missed")], 1);
    // What comes later is for nobody.
    assert!(bench.events(&[after_wait(77)]).is_empty());
    assert!(bench.tick(20 * SECOND).is_empty());
}

#[test]
fn the_end_of_a_thread_or_of_the_agent_is_the_end_of_waiting() {
    for exit in [true, false] {
        let mut bench = Bench::new();
        assert!(bench.events(&[asleep(77), bytes_of(&wait()).to_vec()]).is_empty());
        let rows = if exit {
            let exit = thread_exit_event {
                h: header(event_kind::EVENT_THREAD_EXIT, 5_007, 1),
                ..thread_exit_event::default()
            };
            bench.events(&[bytes_of(&exit).to_vec()])
        } else {
            bench.decoder.finish(SECOND, &mut bench.context, &mut bench.rows);
            decode(&mut bench.rows)
        };
        assert_eq!(rows.len(), 2, "exit: {exit}");
        assert_eq!(bench.context.lost[&("offcpu", "missed")], 1);
    }
}

#[test]
fn waits_within_one_stay_in_the_kernel_share_their_stack() {
    let event =
        |sequence| bytes_of(&off_cpu_event { sequence, asleep_as: sequence, ..wait() }).to_vec();
    let mut stack = after_wait(79);
    let at = std::mem::offset_of!(stack_event, oldest);
    stack[at..at + 8].copy_from_slice(&78u64.to_ne_bytes());
    let mut bench = Bench::new();
    // The first one's stack was lost: the others' is not its.
    let pieces = [asleep(77), event(77), asleep(78), event(78), asleep(79), event(79), stack];
    let rows = bench.events(&pieces);
    assert_eq!(rows.len(), 4);
    assert_eq!(bench.context.stacks.len(), 1);
    assert_eq!(bench.tick(100 * SECOND).len(), 2);
    assert_eq!(bench.context.lost[&("offcpu", "missed")], 1);
}

#[test]
fn a_stack_may_come_before_its_record() {
    // As for the GIL: the wait is known to be over when the thread has gone on.
    let pieces = [asleep(77), after_wait(77), bytes_of(&gil()).to_vec()];
    let mut bench = Bench::new();
    assert_eq!(bench.events(&pieces).len(), 2);
    assert_eq!(bench.context.stacks[0].native.len(), 2);
    assert_eq!(bench.context.stacks[0].kernel.len(), 2);
}

#[test]
fn stacks_of_others_are_not_mixed_up() {
    let mut other = after_wait(77);
    let at = std::mem::offset_of!(stack_event, h) + std::mem::offset_of!(event_header, tid);
    other[at..at + 4].copy_from_slice(&5_011u32.to_ne_bytes());
    let pieces = [asleep(77), bytes_of(&wait()).to_vec(), other];
    assert!(Bench::new().events(&pieces).is_empty());
}

#[test]
fn cut_short_stacks_are_counted_by_reason() {
    let mut stack = after_wait(77);
    stack[std::mem::offset_of!(stack_event, native_end)] = stack_end::STACK_NO_TABLE as u8;
    stack[std::mem::offset_of!(stack_event, python_end)] = stack_end::STACK_TOO_DEEP as u8;
    let mut bench = Bench::new();
    bench.events(&[asleep(77), bytes_of(&wait()).to_vec(), stack]);
    let reasons: Vec<_> = bench.context.lost.into_iter().collect();
    assert_eq!(reasons, [(("offcpu", "no_table"), 1), (("offcpu", "too_deep"), 1)]);
}

#[test]
fn cut_records_and_states_that_are_none_are_refused() {
    let wait = wait();
    for bytes in [bytes_of(&wait).to_vec(), after_wait(77)] {
        for len in 4..bytes.len() {
            assert!(Bench::new().event(&bytes[..len]).is_err(), "{len}");
        }
    }
    let value = |field| DecodeError::Value { kind: event_kind::EVENT_OFF_CPU, field, value: 99 };
    let wrong = off_cpu_event { state: 99, ..wait };
    assert_eq!(Bench::new().event(bytes_of(&wrong)), Err(value("state")));
    let wrong = off_cpu_event { ready_state: 99, ..wait };
    assert_eq!(Bench::new().event(bytes_of(&wrong)), Err(value("ready_state")));
}

proptest! {
    #![proptest_config(cases(300))]

    /// Whatever order the pieces come in, and whichever are lost: no sample is told twice, and each
    /// whose record came is told.
    #[test]
    fn every_record_is_told_once(
        pieces in proptest::collection::vec((0..4u8, 1..6u64), 0..40).prop_map(|mut pieces| {
            let mut seen = std::collections::BTreeSet::new();
            pieces.retain(|piece| seen.insert(*piece));
            pieces
        }),
    ) {
        let mut bench = Bench::new();
        let mut told = Vec::new();
        for (kind, sequence) in &pieces {
            let bytes = match kind {
                0 => bytes_of(&off_cpu_event { sequence: *sequence, weight: *sequence,
                    ready_weight: 0, ..wait() }).to_vec(),
                1 => asleep(*sequence),
                2 => after_wait(*sequence),
                _ => of_waker(*sequence),
            };
            told.extend(bench.events(&[bytes]));
        }
        told.extend(bench.tick(u64::MAX));
        let mut told: Vec<_> = told.iter().map(|row| row.u64("weight_ns")).collect();
        told.sort_unstable();
        let mut sent: Vec<_> =
            pieces.iter().filter(|(kind, _)| *kind == 0).map(|(_, sequence)| *sequence).collect();
        sent.sort_unstable();
        prop_assert_eq!(told, sent);
    }
}
