//! Answers that pause, and connections that say nothing more after one.

use super::*;

const SECOND: u64 = 1_000_000_000;
const BORN: u64 = 4_000;
/// When something of the answer was sent last.
const UNTIL: u64 = 20_000;

/// Answered, and the connection is not closed.
fn answered() -> Play {
    let mut at_read = Ledger::default();
    at_read[State::Running] = 5_000;
    let read = request_read_event { born: BORN, ns: *at_read.cells(), ..read_event() };
    Play::new()
        .event(&read_bytes(read, HEAD.as_bytes()))
        .event(bytes_of(&sent_event(request_end::END_NOT)))
}

/// Its thread since then: in this state, but for so long at first in that one.
fn since(state: State, first: (State, u64)) -> ThreadSnapshot {
    let mut ledger = Ledger::default();
    ledger[State::Running] = 5_000 + 1_000;
    ledger[State::Sleep] = 10_000;
    ledger[first.0] += first.1;
    ThreadSnapshot {
        pid: 5_000,
        tid: 5_007,
        born: BORN,
        since: UNTIL + first.1,
        state: state as u8,
        comm: String::new(),
        ledger,
        waiting_since: UNTIL + first.1,
        gil_holder: 0,
        pthread: 0,
        in_request: false,
        futex: 0,
        syscall: -1,
    }
}

/// It has been so since the last write.
fn in_state(state: State) -> ThreadSnapshot {
    since(state, (State::Running, 0))
}

#[test]
fn who_waits_for_work_has_answered() {
    for state in [State::LockWait, State::PollWait, State::NetRead, State::Other] {
        let mut play = answered().ledgers(&[in_state(state)], UNTIL + SECOND - 1);
        assert!(play.rows().is_empty());
        let row = play.tick(UNTIL + SECOND).row();
        assert_eq!((row.text("end"), row.u64("handler_ns")), ("sent", 11_000), "{state:?}");
    }
}

#[test]
fn who_does_something_else_is_still_at_it() {
    for state in [State::NetWrite, State::Sleep, State::GilWait, State::GcWait, State::Running] {
        let thread = [in_state(state)];
        let mut play = answered().ledgers(&thread, UNTIL + SECOND / 2).tick(UNTIL + 3 * SECOND);
        assert!(play.rows().is_empty(), "{state:?}");
        // More of it, and then no more.
        let more = request_sent_event {
            h: header(event_kind::EVENT_REQUEST_SENT, 5_007, UNTIL + 4 * SECOND),
            ..sent_event(request_end::END_NOT)
        };
        let rows = play.event(bytes_of(&more)).finish(UNTIL + 5 * SECOND).rows();
        let row = rows.iter().find(|row| row.table == "requests").unwrap();
        assert_eq!(row.u64("handler_ns"), 11_000 + 4 * SECOND, "{state:?}");
    }
}

#[test]
fn not_for_ever() {
    let thread = [in_state(State::Sleep)];
    let mut play = answered();
    for second in 1..30 {
        let now = UNTIL + second * SECOND;
        play = play.ledgers(&thread, now).tick(now);
        assert!(play.rows().is_empty(), "{second}");
    }
    let now = UNTIL + 30 * SECOND;
    assert_eq!(play.ledgers(&thread, now).tick(now).row().text("end"), "sent");
}

/// It had little to do after its answer, and waits for work since.
#[test]
fn a_moment_after_the_answer_is_no_pause() {
    let thread = since(State::LockWait, (State::Running, SECOND / 10));
    let play = answered().ledgers(&[thread], UNTIL + SECOND - 1);
    assert_eq!(play.tick(UNTIL + SECOND).row().u64("handler_ns"), 11_000);
}

#[test]
fn who_reads_another_request_has_answered() {
    let another = request_read_event {
        h: header(event_kind::EVENT_REQUEST_READ, 5_007, UNTIL + 1),
        id: 0xbeef,
        ..read_event()
    };
    let play = answered().event(&read_bytes(another, HEAD.as_bytes()));
    let mut play =
        play.ledgers(&[in_state(State::Running)], UNTIL + SECOND - 1).tick(UNTIL + SECOND);
    let rows = play.rows();
    assert_eq!(rows.iter().filter(|row| row.table == "requests").count(), 1, "{rows:?}");
}

/// What an event loop does, and what another thread than the one that read, says nothing of this answer.
#[test]
fn only_its_own_thread_counts() {
    let shared = request_sent_event { shared_thread: 1, ..sent_event(request_end::END_NOT) };
    let other = request_sent_event {
        h: header(event_kind::EVENT_REQUEST_SENT, 5_008, UNTIL),
        ..sent_event(request_end::END_NOT)
    };
    for event in [shared, other] {
        let play = answered().event(bytes_of(&event));
        let play = play.ledgers(&[in_state(State::Sleep)], UNTIL + SECOND - 1);
        assert_eq!(play.tick(UNTIL + SECOND).row().text("end"), "sent");
    }
}
