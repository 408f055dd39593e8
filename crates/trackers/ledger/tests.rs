//! Waits and ledgers, from records to rows.

use std::collections::BTreeMap;

use proptest::prelude::*;
use underspan_model::{Ledger, STATES, State};

use super::LedgerTracker;
use crate::record::{
    DecodeError, bytes_of, event_header, event_kind, lifecycle_event, thread_exit_event, wait_event,
};
use crate::tests::support::{FakeContext, Row, cases, decode};
use crate::{Rows, ThreadSnapshot, Tracker as _, lifecycle};

fn name<const N: usize>(text: &str) -> [std::ffi::c_char; N] {
    let mut field = [0; N];
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from as std::ffi::c_char;
    }
    field
}

fn header(kind: u32, time: u64) -> event_header {
    event_header { kind, tgid: 5_000, tid: 5_007, _pad: 0, time, comm: name("worker") }
}

fn context() -> FakeContext {
    FakeContext::new().know(5_000, 5_007, "gthread_3").know(5_000, 5_008, "background")
}

/// A lock wait that a sibling ended.
fn wait() -> wait_event {
    wait_event {
        h: header(event_kind::EVENT_WAIT, 10_000),
        duration: 3_000_000,
        runnable: 40_000,
        futex: 0x7f00_1234_5678,
        syscall: 202,
        fd: -1,
        waker_tgid: 5_000,
        waker_tid: 5_008,
        waker_comm: name("python"),
        instead_tgid: 6_000,
        instead_tid: 6_001,
        instead_comm: name("postgres"),
        state: State::LockWait as u8,
        ..wait_event::default()
    }
}

fn event(bytes: &[u8]) -> Result<Vec<Row>, DecodeError> {
    let (mut context, mut rows) = (context(), Rows::default());
    LedgerTracker.decoder().event(bytes, &mut context, &mut rows)?;
    Ok(decode(&mut rows))
}

#[track_caller]
fn row(wait: &wait_event) -> Row {
    let [row] = <[Row; 1]>::try_from(event(bytes_of(wait)).unwrap()).unwrap();
    row
}

mod waits {
    use super::*;

    #[test]
    fn every_column_has_its_value() {
        let row = row(&wait());
        assert_eq!(row.table, "waits");
        assert_eq!(row.text("host"), FakeContext::HOST);
        assert_eq!((row.u64("pid"), row.u64("tid")), (5_000, 5_007));
        assert_eq!((row.u64("ns_pid"), row.u64("ns_tid")), (4_000, 4_007));
        assert_eq!(row.u64("start_time"), FakeContext::OFFSET + 10_000);
        assert_eq!(row.u64("duration_ns"), 3_000_000);
        assert_eq!(row.text("thread"), "gthread_3");
        assert_eq!(row.text("state"), "lock_wait");
        assert_eq!(row.u64("runnable_ns"), 40_000);
        assert_eq!((row.u64("waker_pid"), row.u64("waker_tid")), (5_000, 5_008));
        assert_eq!(row.text("waker_thread"), "background");
        assert_eq!((row.u64("holder_tid"), row.text("holder_thread")), (5_008, "background"));
        assert_eq!(row.u64("futex_addr"), 0x7f00_1234_5678);
        assert_eq!((row.number("syscall"), row.number("fd")), (202, -1));
        assert_eq!((row.text("peer"), row.u64("slices")), ("", 1));
    }

    #[test]
    fn one_field_changes_its_own_columns() {
        type Change = fn(&mut wait_event);
        let changes: [(Change, &[&str]); 11] = [
            (|w| w.h.time += 1, &["start_time"]),
            (|w| w.h.tgid += 1, &["holder_thread", "holder_tid"]), // no sibling any more
            (|w| w.duration += 1, &["duration_ns"]),
            (|w| w.runnable += 1, &["runnable_ns"]),
            (|w| w.futex += 1, &["futex_addr"]),
            (|w| w.syscall += 1, &["syscall"]),
            (|w| w.fd = 9, &["fd"]),
            (|w| w.state = State::Sleep as u8, &["holder_thread", "holder_tid", "state"]),
            (|w| w.waker_comm = name("renamed"), &[]), // its name is known
            (|w| w.instead_tid += 1, &[]),             // matters to `runnable` alone
            (|w| w.peer[0] = 1, &[]),                  // no address without a family
        ];
        let before = row(&wait());
        for (index, (change, columns)) in changes.into_iter().enumerate() {
            let mut changed = wait();
            change(&mut changed);
            assert_eq!(row(&changed).differences(&before), columns, "change {index}");
        }
    }

    #[test]
    fn states_have_their_names_and_others_are_refused() {
        for raw in 0..=u8::MAX {
            let result = event(bytes_of(&wait_event { state: raw, ..wait() }));
            match State::from_index(raw) {
                Some(state) => assert_eq!(result.unwrap()[0].text("state"), state.name()),
                None => assert_eq!(
                    result,
                    Err(DecodeError::Value {
                        kind: event_kind::EVENT_WAIT,
                        field: "state",
                        value: raw.into(),
                    })
                ),
            }
        }
    }

    #[test]
    fn a_cpu_is_held_by_who_ran_instead() {
        let row = row(&wait_event { state: State::Runnable as u8, ..wait() });
        assert_eq!((row.u64("holder_tid"), row.text("holder_thread")), (6_001, "postgres"));
    }

    #[test]
    fn an_idle_cpu_has_no_holder() {
        let wait = wait_event {
            state: State::Runnable as u8,
            instead_tgid: 0,
            instead_tid: 0,
            instead_comm: name("swapper/0"),
            ..wait()
        };
        let row = row(&wait);
        assert_eq!((row.u64("holder_tid"), row.text("holder_thread")), (0, ""));
    }

    #[test]
    fn an_interrupt_has_no_name_and_holds_no_lock() {
        let row = row(&wait_event { waker_tgid: 0, waker_tid: 0, ..wait() });
        assert_eq!((row.u64("waker_tid"), row.text("waker_thread")), (0, ""));
        assert_eq!(row.u64("holder_tid"), 0);
    }

    #[test]
    fn another_process_that_wakes_is_no_holder() {
        let row = row(&wait_event { waker_tgid: 77, waker_tid: 78, ..wait() });
        assert_eq!((row.u64("waker_pid"), row.text("waker_thread")), (77, "python"));
        assert_eq!(row.u64("holder_tid"), 0);
    }

    #[test]
    fn peers_are_addresses() {
        let peer = |family: i32, bytes: &[u8], port| {
            let mut wait = wait_event { family: family as u16, peer_port: port, ..wait() };
            wait.peer[..bytes.len()].copy_from_slice(bytes);
            row(&wait).text("peer").to_owned()
        };
        assert_eq!(peer(libc::AF_INET, &[10, 0, 0, 9], 5432), "10.0.0.9:5432");
        assert_eq!(peer(libc::AF_INET6, &[], 1), "[::]:1");
        assert_eq!(peer(libc::AF_UNIX, &[10], 7), "unix");
        assert_eq!(peer(999, &[10], 7), "");
    }

    #[test]
    fn a_name_that_fills_its_field_has_no_end() {
        let mut wait = wait_event { waker_tgid: 1, waker_tid: 1, ..wait() };
        wait.waker_comm = name("0123456789abcdefgh");
        assert_eq!(row(&wait).text("waker_thread"), "0123456789abcdef");
        wait.waker_comm = [-1; 16];
        assert_eq!(row(&wait).text("waker_thread"), "\u{fffd}".repeat(16));
    }

    #[test]
    fn cut_records_are_refused_and_longer_ones_read() {
        let whole = wait();
        let bytes = bytes_of(&whole);
        for len in 4..bytes.len() {
            let wanted = bytes.len();
            let short = DecodeError::Short { kind: event_kind::EVENT_WAIT, len, wanted };
            assert_eq!(event(&bytes[..len]), Err(short));
        }
        let padded = [bytes, &[0xaa; 7]].concat();
        assert_eq!(event(&padded).unwrap(), [row(&whole)]);
    }

    proptest! {
        #![proptest_config(cases(500))]

        #[test]
        fn one_flipped_bit_gives_one_row_or_an_error(bit in 0..size_of::<wait_event>() * 8) {
            let whole = wait();
            let mut bytes = bytes_of(&whole).to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            match event(&bytes) {
                Ok(rows) if bit < 32 => prop_assert!(rows.len() <= 1), // another kind
                Ok(rows) => prop_assert_eq!(rows.len(), 1),
                Err(DecodeError::Value { field, .. }) => prop_assert_eq!(field, "state"),
                Err(DecodeError::Short { .. }) => prop_assert!(bit < 32),
            }
        }
    }
}

#[test]
fn the_life_cycle_is_told_from_the_same_records() {
    let mut event = lifecycle_event { h: header(0, 42), parent_tgid: 1, _pad: 0 };
    let kinds = [
        (event_kind::EVENT_PROCESS_FORK, crate::LifecycleKind::ProcessFork),
        (event_kind::EVENT_PROCESS_EXEC, crate::LifecycleKind::ProcessExec),
        (event_kind::EVENT_PROCESS_EXIT, crate::LifecycleKind::ProcessExit),
        (event_kind::EVENT_THREAD_START, crate::LifecycleKind::ThreadStart),
        (event_kind::EVENT_LISTEN, crate::LifecycleKind::Listen),
    ];
    for (raw, kind) in kinds {
        event.h.kind = raw;
        let told = lifecycle(bytes_of(&event)).unwrap().unwrap();
        assert_eq!((told.kind, told.pid, told.tid, told.time), (kind, 5_000, 5_007, 42));
        assert_eq!((told.parent, told.comm.as_str()), (1, "worker"));
        assert!(lifecycle(&bytes_of(&event)[..20]).is_err());
    }
    let exit = thread_exit_event {
        h: header(event_kind::EVENT_THREAD_EXIT, 42),
        ..thread_exit_event::default()
    };
    let told = lifecycle(bytes_of(&exit)).unwrap().unwrap();
    assert_eq!((told.kind, told.parent), (crate::LifecycleKind::ThreadExit, 0));
    assert_eq!(lifecycle(bytes_of(&wait())), Ok(None));
}

/// A thread that the tests move from state to state, as BPF would.
#[derive(Clone, Debug)]
struct Simulated {
    tid: u32,
    born: u64,
    since: u64,
    state: u8,
    ledger: Ledger,
}

impl Simulated {
    fn new(tid: u32, born: u64) -> Self {
        let state = State::Runnable as u8;
        Simulated { tid, born, since: born, state, ledger: Ledger::default() }
    }

    /// Settles at `now` and goes over to `state`. A GIL wait turns out to have been a sibling's
    /// collection for half of it; a wait for a CPU, the quota's doing for a third.
    fn switch(&mut self, now: u64, state: State) {
        let elapsed = now - self.since;
        let (was, instead, part) = match State::from_index(self.state).unwrap() {
            State::GilWait => (State::GilWait, State::GcWait, elapsed / 2),
            State::Runnable => (State::Runnable, State::Throttled, elapsed / 3),
            was => (was, was, 0),
        };
        self.ledger[instead] += part;
        self.ledger[was] += elapsed - part;
        self.since = now;
        self.state = state as u8;
    }

    fn snapshot(&self) -> ThreadSnapshot {
        ThreadSnapshot {
            pid: 5_000,
            tid: self.tid,
            born: self.born,
            since: self.since,
            state: self.state,
            comm: "worker".to_owned(),
            ledger: self.ledger,
        }
    }

    fn exit(&mut self, now: u64) -> thread_exit_event {
        self.switch(now, State::Running);
        let mut h = header(event_kind::EVENT_THREAD_EXIT, self.born);
        h.tid = self.tid;
        thread_exit_event { h, until: now, ns: *self.ledger.cells() }
    }
}

/// What is checked of a thread's rows: they follow one another without gap or overlap, each sums,
/// and together they are the ledger.
fn check_whole(rows: &[Row], born: u64, ledger: &Ledger) -> Result<(), TestCaseError> {
    let mut at = born;
    let mut sum = Ledger::default();
    for row in rows {
        prop_assert_eq!(row.u64("start_time"), FakeContext::OFFSET + at);
        prop_assert!(row.u64("duration_ns") > 0);
        prop_assert_eq!(row.ledger_total(), u128::from(row.u64("duration_ns")));
        at += row.u64("duration_ns");
        for state in State::ALL {
            sum[state] += row.u64(&underspan_model::column(state));
        }
    }
    prop_assert_eq!(&sum, ledger);
    Ok(())
}

/// Steps of a random life: (thread, nanoseconds that pass, what happens).
#[derive(Clone, Debug)]
enum Step {
    Switch(usize, State),
    Read,
    Exit(usize),
}

fn step() -> impl Strategy<Value = (u64, Step)> {
    let state = (0..STATES).prop_map(|index| State::ALL[index]);
    let step = prop_oneof![
        6 => (0..3usize, state).prop_map(|(who, state)| Step::Switch(who, state)),
        2 => Just(Step::Read),
        1 => (0..3usize).prop_map(Step::Exit),
    ];
    (prop_oneof![Just(0), 1..2_000_000_000u64], step)
}

proptest! {
    #![proptest_config(cases(400))]

    /// Three tids, used again after each exit; ledgers read now and then.
    #[test]
    fn the_rows_of_a_thread_are_its_whole_life(
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let (mut context, mut rows) = (FakeContext::new(), Rows::default());
        let mut decoder = LedgerTracker.decoder();
        let mut now = 1_000_000;
        let mut threads: Vec<_> = (0..3).map(|tid| Simulated::new(5_001 + tid, now)).collect();
        let mut ended: Vec<Simulated> = Vec::new();
        for (elapsed, step) in steps {
            now += elapsed;
            match step {
                Step::Switch(who, state) => threads[who].switch(now, state),
                Step::Read => {
                    let snapshots: Vec<_> = threads.iter().map(Simulated::snapshot).collect();
                    decoder.ledgers(&snapshots, now, &mut context, &mut rows);
                }
                Step::Exit(who) => {
                    let exit = threads[who].exit(now);
                    decoder.event(bytes_of(&exit), &mut context, &mut rows).unwrap();
                    now += 1;
                    let next = Simulated::new(threads[who].tid, now);
                    ended.push(std::mem::replace(&mut threads[who], next));
                }
            }
        }
        now += 1;
        for thread in &mut threads {
            let exit = thread.exit(now);
            decoder.event(bytes_of(&exit), &mut context, &mut rows).unwrap();
        }
        ended.extend(threads);

        let mut by_tid = BTreeMap::<u64, Vec<Row>>::new();
        for row in decode(&mut rows) {
            by_tid.entry(row.u64("tid")).or_default().push(row);
        }
        for thread in &ended {
            let rows = by_tid.remove(&u64::from(thread.tid)).unwrap_or_default();
            let until = FakeContext::OFFSET + thread.since;
            let (own, later) = rows.into_iter().partition(|row| row.u64("start_time") < until);
            by_tid.insert(thread.tid.into(), later);
            let own: Vec<Row> = own;
            check_whole(&own, thread.born, &thread.ledger)?;
        }
        prop_assert!(by_tid.values().all(Vec::is_empty), "rows of no thread");
    }
}

mod snapshots {
    use super::*;

    fn read(threads: &[Simulated], times: &[u64]) -> Vec<Row> {
        let (mut context, mut rows) = (FakeContext::new(), Rows::default());
        let mut decoder = LedgerTracker.decoder();
        let threads: Vec<_> = threads.iter().map(Simulated::snapshot).collect();
        for now in times {
            decoder.ledgers(&threads, *now, &mut context, &mut rows);
        }
        decode(&mut rows)
    }

    #[test]
    fn a_sleeper_that_never_moves_has_its_rows() {
        let mut thread = Simulated::new(5_001, 100);
        thread.state = State::Sleep as u8;
        let rows = read(&[thread], &[1_100, 2_100]);
        let slept: Vec<_> = rows.iter().map(|row| row.u64("sleep_ns")).collect();
        assert_eq!(slept, [1_000, 1_000]);
        assert_eq!(rows[1].u64("start_time"), FakeContext::OFFSET + 1_100);
        assert_eq!((rows[0].text("thread"), rows[0].text("process")), ("worker", "worker"));
    }

    #[test]
    fn what_is_settled_at_its_end_is_not_told_before() {
        for state in [State::GilWait, State::Runnable, State::Throttled] {
            let mut thread = Simulated::new(5_001, 100);
            thread.state = state as u8;
            assert!(read(&[thread], &[1_100]).is_empty(), "{state:?}");
        }
    }

    #[test]
    fn a_ledger_newer_than_the_clock_ends_where_it_ends() {
        let mut thread = Simulated::new(5_001, 100);
        thread.switch(900, State::Running);
        let [row] = <[Row; 1]>::try_from(read(&[thread], &[800])).unwrap();
        assert_eq!(row.u64("duration_ns"), 800);
    }

    #[test]
    fn the_same_moment_twice_is_one_row() {
        let mut thread = Simulated::new(5_001, 100);
        thread.state = State::Sleep as u8;
        assert_eq!(read(&[thread], &[1_100, 1_100, 900]).len(), 1);
    }

    #[test]
    fn a_state_that_nobody_knows_is_not_charged() {
        let mut thread = Simulated::new(5_001, 100);
        thread.state = u8::MAX;
        assert!(read(&[thread], &[1_100]).is_empty());
    }

    #[test]
    fn a_thread_whose_end_was_lost_is_forgotten_and_its_tid_used_again() {
        let (mut context, mut rows) = (FakeContext::new(), Rows::default());
        let mut decoder = LedgerTracker.decoder();
        let mut thread = Simulated::new(5_001, 100);
        thread.switch(1_100, State::Running);
        decoder.ledgers(&[thread.snapshot()], 1_100, &mut context, &mut rows);
        for _ in 0..100 {
            decoder.ledgers(&[], 2_000, &mut context, &mut rows);
        }
        let mut again = Simulated::new(5_001, 5_000);
        again.switch(5_600, State::Running);
        decoder.ledgers(&[again.snapshot()], 5_600, &mut context, &mut rows);
        let starts: Vec<_> = decode(&mut rows).iter().map(|row| row.u64("duration_ns")).collect();
        assert_eq!(starts, [1_000, 600]);
    }

    #[test]
    fn a_torn_copy_is_no_snapshot() {
        let mut raw = crate::record::thread { born: 100, since: 1_100, ..Default::default() };
        raw.ns[State::Sleep.index()] = 1_000;
        assert!(ThreadSnapshot::from_bytes(bytes_of(&raw)).is_some());
        assert_eq!(ThreadSnapshot::from_bytes(&bytes_of(&raw)[1..]), None);
        raw.ns[State::Running.index()] = 1;
        assert_eq!(ThreadSnapshot::from_bytes(bytes_of(&raw)), None);
        raw.since = 0;
        assert_eq!(ThreadSnapshot::from_bytes(bytes_of(&raw)), None);
    }
}

#[test]
fn only_short_waits_may_be_left_out() {
    let lasting = |duration| crate::can_shed(bytes_of(&wait_event { duration, ..wait() }));
    assert!(lasting(49_999_999));
    assert!(!lasting(50_000_000));
    let whole = wait_event { duration: 1, ..wait() };
    assert!(!crate::can_shed(&bytes_of(&whole)[..40]), "a cut record is an error, not a saving");
}
