//! Requests that have no answer yet.

use super::*;

const SECOND: u64 = 1_000_000_000;
/// When the request was read, and its thread's ledger began.
const READ: u64 = 9_000;
const BORN: u64 = 4_000;

/// Its thread ran for 3,000 ns, then read it, and slept on a lock 2,000 ns later until now.
fn thread() -> ThreadSnapshot {
    let mut ledger = Ledger::default();
    ledger[State::Running] = 3_000 + 2_000;
    ledger[State::Sleep] = 2_000;
    ThreadSnapshot {
        pid: 5_000,
        tid: 5_007,
        born: BORN,
        since: READ + 2_000,
        state: State::LockWait as u8,
        comm: String::new(),
        ledger,
        waiting_since: READ + 2_000,
        gil_holder: 0,
        pthread: 0,
        in_request: true,
        futex: 0,
        syscall: -1,
    }
}

fn read() -> request_read_event {
    let mut at_read = Ledger::default();
    at_read[State::Running] = 3_000;
    at_read[State::Sleep] = 2_000;
    request_read_event { born: BORN, ns: *at_read.cells(), ..read_event() }
}

#[test]
fn it_is_told_as_far_as_it_has_come() {
    let play = Play::new().event(&read_bytes(read(), HEAD.as_bytes()));
    let now = READ + 3 * SECOND;
    let row = play.ledgers(&[thread()], now).row();
    assert_eq!((row.table.as_str(), row.text("end")), ("requests_open", "open"));
    assert_eq!((row.text("path"), row.u64("status")), ("/orders", 0));
    assert_eq!((row.u64("bytes_in"), row.u64("bytes_out")), (HEAD.len() as u64, 0));
    assert_eq!(row.u64("duration_ns"), 4_000 + 4_000 + 3 * SECOND);
    assert_eq!(row.u64("handler_ns"), 3 * SECOND);
    assert_eq!(row.ledger_total(), u128::from(3 * SECOND));
    assert_eq!((row.u64("running_ns"), row.u64("sleep_ns")), (2_000, 0));
    assert_eq!(row.u64("lock_wait_ns"), 3 * SECOND - 2_000);
}

#[test]
fn seldom_and_ever_more_seldom() {
    let mut play = Play::new().event(&read_bytes(read(), HEAD.as_bytes()));
    let mut told = Vec::new();
    for tenth in 1..=640 {
        play = play.ledgers(&[thread()], READ + tenth * SECOND / 10);
        told.extend(play.rows().iter().map(|row| row.u64("handler_ns") / (SECOND / 10)));
    }
    assert_eq!(told[..3], [10, 20, 30]);
    assert!(told.windows(2).all(|pair| pair[1] - pair[0] <= 41), "{told:?}");
    assert!(told.len() < 40, "{told:?}");
    // When there is an answer, that is told.
    let mut play = play.event(bytes_of(&sent_event(request_end::END_NOT)));
    play = play.ledgers(&[thread()], READ + 100 * SECOND);
    assert!(play.rows().is_empty());
}

#[test]
fn what_its_thread_did_may_not_be_known() {
    let known = |read: request_read_event, threads: &[ThreadSnapshot]| {
        let play = Play::new().event(&read_bytes(read, HEAD.as_bytes()));
        let row = play.ledgers(threads, READ + SECOND).row();
        assert_eq!(row.u64("handler_ns"), SECOND);
        row.u64("other_ns") == 0
    };
    assert!(known(read(), &[thread()]));
    assert!(!known(read(), &[]), "its thread is gone");
    assert!(!known(read(), &[ThreadSnapshot { born: 1, ..thread() }]), "another has its id");
    assert!(!known(request_read_event { born: 0, ..read() }, &[thread()]), "it could not be read");
}

#[test]
fn the_ledger_of_an_event_loop_is_the_loops() {
    let other = request_read_event { id: 0xbeef, ..read() };
    let play = Play::new()
        .event(&read_bytes(read(), HEAD.as_bytes()))
        .event(&read_bytes(other, HEAD.as_bytes()));
    let rows = play.ledgers(&[thread()], READ + SECOND).rows();
    let shared: Vec<_> = rows.iter().map(|row| row.u64("shared_thread")).collect();
    assert_eq!(shared, [1, 1]);
}
