//! A stack that was told is not told again: its record refers to an earlier one. What the kernel's side (`again.bpf.h`)
//! refers to is what user space (`told.rs`) has: both are given the same stacks here.

use proptest::prelude::*;
use underspan_model::StackEnd;

use crate::record::{NATIVE_FRAMES, PYTHON_FRAMES, python_frame, read, stack_event};
use crate::stack::{Ends, PythonFrame, RawStack, Told};
use crate::tests::support::cases;

const PID: u32 = 5_000;
const STACK: u64 = 0x7ffc_0000_0000;

/// As in `again.c`.
#[repr(C)]
struct RawThere {
    time: u64,
    ip: u64,
    sp: u64,
    words: *const u64,
    python: u64,
    tid: u32,
    count: u32,
    native_end: u32,
    python_end: u32,
    is_loop: u32,
    is_full: u32,
}

unsafe extern "C" {
    fn underspan_test_begin_stacks();
    fn underspan_test_tell_stack(there: *const RawThere, record: *mut u8, room: u32) -> u32;
}

/// Where a thread stands, and how walks from there end.
#[derive(Clone, Debug)]
struct There {
    tid: u32,
    is_loop: bool,
    ip: u64,
    callers: Vec<u64>,
    native: StackEnd,
    /// Its Python frame's code object; 0: it has no frame.
    python: u64,
    python_end: StackEnd,
}

impl There {
    /// What a walk finds.
    fn stack(&self) -> RawStack {
        let frame = PythonFrame { code: self.python, check: 0, lasti: 0, entry: false };
        RawStack {
            pid: PID,
            kernel: Vec::new(),
            native: [&[self.ip], &*self.callers].concat(),
            python: if self.python == 0 { Vec::new() } else { vec![frame] },
            ends: Ends { kernel: StackEnd::Absent, native: self.native, python: self.python_end },
        }
    }
}

/// The kernel's side and user space's.
struct Both {
    time: u64,
    told: Told,
}

/// What became of a stack: as which one it was told, and whether by a reference.
#[derive(Debug, PartialEq, Eq)]
struct Heard {
    stack: RawStack,
    is_again: bool,
}

impl Both {
    fn begin() -> Self {
        // SAFETY: it only forgets what this thread's tests before have left.
        unsafe { underspan_test_begin_stacks() };
        Both { time: 1_000, told: Told::default() }
    }

    /// A thread's stack is sent into the ring. `None`: there was no room.
    fn tell(&mut self, there: &There, is_full: bool) -> Option<Heard> {
        self.time += 1;
        let raw = RawThere {
            time: self.time,
            ip: there.ip,
            sp: STACK,
            words: there.callers.as_ptr(),
            python: there.python,
            tid: there.tid,
            count: there.callers.len() as u32,
            native_end: end(there.native),
            python_end: end(there.python_end),
            is_loop: u32::from(there.is_loop),
            is_full: u32::from(is_full),
        };
        let room = size_of::<stack_event>()
            + NATIVE_FRAMES as usize * size_of::<u64>()
            + PYTHON_FRAMES as usize * size_of::<python_frame>();
        let mut record = vec![0; room];
        // SAFETY: `raw` is laid out as in C, and its words outlive the call; the record has as much room as is said.
        let len = unsafe { underspan_test_tell_stack(&raw, record.as_mut_ptr(), room as u32) };
        record.truncate(len as usize);
        if record.is_empty() {
            return None;
        }
        let event: stack_event = read(&record).unwrap();
        let stack = self.told.stack(&event, &record).unwrap();
        Some(Heard { stack, is_again: event.again != 0 })
    }

    #[track_caller]
    fn hear(&mut self, there: &There, is_again: bool) {
        let heard = self.tell(there, false);
        assert_eq!(heard, Some(Heard { stack: there.stack(), is_again }));
    }
}

fn end(end: StackEnd) -> u32 {
    StackEnd::ALL.iter().position(|each| *each == end).unwrap() as u32
}

/// A thread that waits for its next request.
fn whole() -> There {
    There {
        tid: 5_007,
        is_loop: false,
        ip: 0x40_0010,
        callers: vec![0x40_0100, 0x40_0200],
        native: StackEnd::Complete,
        python: 0x7f00_1000,
        python_end: StackEnd::Complete,
    }
}

/// User space keeps the last stack of a place. Once that is one which nobody will refer to, whole ones are told anew.
#[test]
fn a_stack_that_is_not_whole_is_in_nobodys_way() {
    let library = vec![0x7f11_0100, 0x40_0200];
    let cut = There { callers: library, native: StackEnd::NoMapping, ..whole() };
    let torn = There { python: 0x7f00_2000, python_end: StackEnd::Inconsistent, ..whole() };
    for other in [cut, torn] {
        let mut both = Both::begin();
        both.hear(&whole(), false);
        both.hear(&whole(), true);
        both.hear(&other, false);
        both.hear(&other, false);
        both.hear(&whole(), false);
        both.hear(&whole(), true);
    }
}

#[test]
fn a_stack_that_was_lost_is_not_referred_to() {
    let mut both = Both::begin();
    assert_eq!(both.tell(&whole(), true), None);
    both.hear(&whole(), false);
    // Nor does it displace the one before.
    let other = There { callers: vec![0x40_0300], ..whole() };
    assert_eq!(both.tell(&other, true), None);
    both.hear(&whole(), true);
}

#[test]
fn threads_and_loops_have_stacks_of_their_own() {
    let mut both = Both::begin();
    let others = [There { tid: 5_008, ..whole() }, There { is_loop: true, ..whole() }];
    both.hear(&whole(), false);
    for other in &others {
        both.hear(other, false);
    }
    both.hear(&whole(), true);
    for other in &others {
        both.hear(other, true);
    }
}

/// Few places, ways that lead there and Python functions: they come again all the time.
fn there() -> impl Strategy<Value = There> {
    let python_ends =
        [StackEnd::Absent, StackEnd::Complete, StackEnd::Complete, StackEnd::Unreadable];
    (0..2u32, any::<bool>(), 0..6u64, 1..5u64, 0..python_ends.len()).prop_map(
        move |(tid, is_loop, place, callers, python)| There {
            tid: 5_007 + tid,
            is_loop,
            ip: 0x40_0000 + place,
            callers: (0..callers).map(|caller| 0x41_0000 + callers * 0x100 + caller).collect(),
            native: if callers == 4 { StackEnd::NoTable } else { StackEnd::Complete },
            python: python as u64 * 0x1000,
            python_end: python_ends[python],
        },
    )
}

proptest! {
    #![proptest_config(cases(300))]

    /// Whatever a thread does, and whatever is lost on the way: each record that comes tells the truth.
    #[test]
    fn what_is_referred_to_is_known(
        stacks in proptest::collection::vec((there(), proptest::bool::weighted(0.1)), 0..200),
    ) {
        let mut both = Both::begin();
        for (there, is_full) in &stacks {
            if let Some(heard) = both.tell(there, *is_full) {
                prop_assert_eq!(heard.stack, there.stack());
            }
        }
    }
}
