//! The rows of a thread are its whole life, whenever its ledger is read.

use std::collections::BTreeMap;

use underspan_model::{Ledger, STATES};

use super::*;
use crate::ThreadSnapshot;
use crate::record::Off;

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
            waiting_since: 0,
            gil_holder: 0,
            pthread: 0,
            in_request: false,
            futex: 0,
            syscall: -1,
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
        let mut raw =
            crate::record::thread { tid: 7, born: 100, since: 1_100, ..Default::default() };
        raw.ns[State::Sleep.index()] = 1_000;
        assert!(matches!(ThreadSnapshot::copied(bytes_of(&raw)), Some(Ok(_))));
        assert_eq!(ThreadSnapshot::copied(&bytes_of(&raw)[1..]), None);
        raw.ns[State::Running.index()] = 1;
        assert_eq!(ThreadSnapshot::copied(bytes_of(&raw)), Some(Err(Off { tid: 7, by: 1 })));
        raw.ns[State::Sleep.index()] = 0;
        assert_eq!(ThreadSnapshot::copied(bytes_of(&raw)), Some(Err(Off { tid: 7, by: -999 })));
        raw.since = 0; // before it was born, as no sum can be
        assert_eq!(ThreadSnapshot::copied(bytes_of(&raw)), Some(Err(Off { tid: 7, by: 101 })));
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
