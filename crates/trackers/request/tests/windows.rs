//! Phases, and when a request ends.

use proptest::prelude::*;
use underspan_model::State;

use super::*;
use crate::request::assemble::{Asked, Assembler, SILENCE_NS};
use crate::tests::support::cases;

fn phases(row: &Row) -> (u64, u64, u64) {
    (row.u64("accept_queue_ns"), row.u64("handoff_ns"), row.u64("handler_ns"))
}

/// The row of a request read at 9,000 and answered at 20,000.
#[track_caller]
fn window(ready: u64, accepted: u64) -> Row {
    let read = request_read_event { ready, accepted, ..read_event() };
    row_of(read, &sent_event(request_end::END_CLOSED))
}

#[test]
fn bytes_that_wait_in_the_accept_queue() {
    assert_eq!(phases(&window(1_000, 5_000)), (4_000, 4_000, 11_000));
}

#[test]
fn a_client_that_connects_and_stays_silent_waits_for_nobody() {
    let row = window(8_000, 2_000);
    assert_eq!(phases(&row), (0, 1_000, 11_000));
    assert_eq!(row.u64("start_time"), FakeContext::OFFSET + 8_000);
    assert_eq!(row.u64("accept_to_read_ns"), 7_000, "the raw figure includes the silence");
}

#[test]
fn a_kept_alive_connection_has_no_accept() {
    let row = window(8_000, 0);
    assert_eq!(phases(&row), (0, 1_000, 11_000));
    assert_eq!(row.u64("accept_to_read_ns"), 0);
}

#[test]
fn bytes_whose_arrival_was_missed_begin_at_the_read() {
    for ready in [0, 9_001, u64::MAX] {
        let row = window(ready, 0);
        assert_eq!(phases(&row), (0, 0, 11_000));
        assert_eq!(row.u64("start_time"), FakeContext::OFFSET + 9_000);
    }
}

#[test]
fn an_accept_after_the_read_belongs_to_another_connection() {
    let row = window(1_000, 9_500);
    assert_eq!(phases(&row), (0, 8_000, 11_000));
    assert_eq!(row.u64("accept_to_read_ns"), 0);
}

#[test]
fn an_answer_in_parts_ends_with_the_last() {
    let read = read_bytes(read_event(), HEAD.as_bytes());
    let part = |time, bytes_out| {
        let mut sent = sent_event(request_end::END_NOT);
        sent.h.time = time;
        sent.bytes_out = bytes_out;
        sent
    };
    let mut play = Play::new().event(&read);
    for (time, bytes) in [(10_000, 100), (15_000, 200), (30_000, 300)] {
        play = play.event(bytes_of(&part(time, bytes)));
        assert!(play.rows().is_empty(), "it has not ended");
    }
    let row = play.tick(30_000 + SILENCE_NS).row();
    assert_eq!((row.u64("bytes_out"), row.u64("handler_ns")), (300, 21_000));
    assert_eq!(row.text("end"), "sent");
}

#[test]
fn silence_ends_an_answered_request_and_no_other() {
    let read = read_bytes(read_event(), HEAD.as_bytes());
    let sent = sent_event(request_end::END_NOT);
    let mut unanswered = Play::new().event(&read).tick(u64::MAX);
    assert!(unanswered.rows().is_empty(), "its answer may still come");
    let mut answered = Play::new().event(&read).event(bytes_of(&sent));
    answered = answered.tick(20_000 + SILENCE_NS - 1);
    assert!(answered.rows().is_empty());
    assert_eq!(answered.tick(20_000 + SILENCE_NS).row().u64("handler_ns"), 11_000);
}

#[test]
fn a_head_in_pieces() {
    let head = HEAD.as_bytes();
    // Cut twice, anywhere: as the slowest of clients would.
    for first in 1..head.len() {
        let second = first.midpoint(head.len());
        let row = Play::new()
            .event(&open_read_bytes(&head[..first]))
            .event(&piece_bytes(first, &head[first..second]))
            .event(&piece_bytes(second, &head[second..]))
            .event(bytes_of(&sent_event(request_end::END_CLOSED)))
            .row();
        assert_eq!(row.differences(&whole()), <[&str; 0]>::default(), "cut at {first}");
    }
}

/// Of a connection that is older than us.
#[test]
fn the_rest_of_a_request_is_none() {
    let unsure = request_read_event { unsure: 1, ..read_event() };
    let end = sent_event(request_end::END_CLOSED);
    let rows = |read: &[u8]| Play::new().event(read).event(bytes_of(&end)).rows().len();
    assert_eq!(rows(&read_bytes(unsure, b"user=1&colour=Blue")), 0);
    assert_eq!(rows(&read_bytes(unsure, b"st: shop\r\n\r\n")), 0);
    assert_eq!(rows(&read_bytes(unsure, HEAD.as_bytes())), 1);
    // Nobody knows of a protocol that is not HTTP/1.x, unless its request came after an answer.
    assert_eq!(rows(&read_bytes(unsure, b"*1\r\n$4\r\nPING\r\n")), 0);
    assert_eq!(rows(&read_bytes(read_event(), b"*1\r\n$4\r\nPING\r\n")), 1);
    // Its head may come in pieces.
    let begun = read_bytes(request_read_event { head_open: 1, ..unsure }, &HEAD.as_bytes()[..8]);
    let mut play = Play::new().event(&begun).event(&piece_bytes(8, &HEAD.as_bytes()[8..]));
    play = play.event(bytes_of(&end));
    assert_eq!(play.row().text("path"), "/orders");
}

#[test]
fn pieces_that_do_not_fit_are_left_out() {
    let (begin, rest) = HEAD.as_bytes().split_at(30);
    let end = sent_event(request_end::END_CLOSED);
    let path = |play: Play| play.event(bytes_of(&end)).row().text("path").to_owned();
    let begun = || Play::new().event(&open_read_bytes(&begin[..8]));
    assert_eq!(path(begun().event(&piece_bytes(8, &begin[8..]))), "/orders");
    // One before it was lost.
    assert_eq!(path(begun().event(&piece_bytes(30, rest))), "");
    // It is told twice.
    let twice = begun().event(&piece_bytes(8, b"ers"));
    assert_eq!(path(twice.event(&piece_bytes(8, b"ers HTTP/1.1\r\n"))), "");
    // Of another request; of one that was over with its first bytes.
    let mut other = piece_bytes(8, &begin[8..]);
    other[std::mem::offset_of!(request_head_event, id)] ^= 1;
    assert_eq!(path(begun().event(&other)), "");
    let over = Play::new().event(&read_bytes(read_event(), b"GET /a HTTP/1.1\r\n\r\n"));
    assert_eq!(path(over.event(&piece_bytes(19, b"x"))), "/a");
}

#[test]
fn a_head_is_never_longer_than_what_is_copied() {
    let mut play = Play::new().event(&open_read_bytes(b"GET /a HTTP/1.1\r\nA: "));
    for at in (21..10_000).step_by(500) {
        play = play.event(&piece_bytes(at, &[b'a'; 500]));
    }
    let row = play.event(bytes_of(&sent_event(request_end::END_CLOSED))).row();
    assert_eq!((row.text("method"), row.text("path")), ("GET", "/a"));
}

#[test]
fn a_request_is_told_once() {
    let read = read_bytes(read_event(), HEAD.as_bytes());
    let end = sent_event(request_end::END_NEXT);
    let mut play = Play::new().event(&read).event(bytes_of(&end));
    assert_eq!(play.rows().len(), 1);
    play = play.event(bytes_of(&end)).tick(1 << 50);
    assert!(play.finish(1 << 51).rows().is_empty());
}

#[test]
fn a_process_that_ends_takes_its_requests_with_it() {
    let mut other = read_event();
    (other.id, other.h.tgid, other.h.tid) = (0xbeef, 6_000, 6_007);
    let mut play = Play::new()
        .event(&read_bytes(read_event(), HEAD.as_bytes()))
        .event(&read_bytes(other, HEAD.as_bytes()))
        .event(bytes_of(&header(event_kind::EVENT_PROCESS_EXIT, 5_000, 40_000)));
    let [row] = <[Row; 1]>::try_from(play.rows()).unwrap();
    assert_eq!((row.text("end"), row.u64("handler_ns")), ("closed", 31_000));
    assert_eq!((row.u64("other_ns"), row.u64("sent_tid")), (31_000, 0));
    let row = play.finish(50_000).row();
    assert_eq!((row.text("end"), row.u64("pid"), row.u64("handler_ns")), ("open", 6_000, 41_000));
}

#[test]
fn an_answered_request_outlives_its_process() {
    let row = Play::new()
        .event(&read_bytes(read_event(), HEAD.as_bytes()))
        .event(bytes_of(&sent_event(request_end::END_NOT)))
        .event(bytes_of(&header(event_kind::EVENT_PROCESS_EXIT, 5_000, 40_000)))
        .row();
    assert_eq!((row.text("end"), row.u64("handler_ns")), ("sent", 11_000));
}

#[test]
fn another_thread_answers() {
    let mut sent = sent_event(request_end::END_CLOSED);
    sent.h.tid = 5_008;
    let row = row_of(read_event(), &sent);
    assert_eq!((row.u64("tid"), row.text("thread")), (5_007, "gthread_3"));
    assert_eq!((row.u64("sent_tid"), row.text("sent_thread")), (5_008, "writer"));
}

proptest! {
    #![proptest_config(cases(1_000))]

    /// Whatever the times, the phases sum to the time from ready to sent, and none is negative.
    #[test]
    fn phases_sum_to_the_duration(
        ready in any::<u64>(), accepted in any::<u64>(), read in any::<u64>(), sent in any::<u64>(),
    ) {
        let mut assembler = Assembler::default();
        let asked = Asked { id: 1, ready, accepted, read, ..Asked::default() };
        prop_assert!(assembler.asked(asked));
        let mut event = sent_event(request_end::END_CLOSED);
        (event.id, event.h.time) = (1, sent);
        let finished = assembler.told(&event).unwrap();
        let (accept_queue, handoff, handler) = finished.phases();
        let from = if ready == 0 || ready > read { read } else { ready };
        let until = sent.max(read);
        prop_assert_eq!(
            u128::from(accept_queue) + u128::from(handoff) + u128::from(handler),
            u128::from(until - from)
        );
        prop_assert_eq!(finished.asked.ready, from);
    }

    /// Times in the order in which they happen: each phase is exactly what it is defined to be.
    #[test]
    fn phases_are_as_defined(mut times in proptest::array::uniform4(1..1_000_000u64), late in any::<bool>()) {
        times.sort_unstable();
        let [first, second, read, sent] = times;
        // The first bytes arrive before or after accept() returns.
        let (ready, accepted) = if late { (second, first) } else { (first, second) };
        let asked = Asked { id: 1, ready, accepted, read, ..Asked::default() };
        let mut assembler = Assembler::default();
        assembler.asked(asked);
        let mut event = sent_event(request_end::END_CLOSED);
        (event.id, event.h.time) = (1, sent);
        let phases = assembler.told(&event).unwrap().phases();
        let accept_queue = if late { 0 } else { second - first };
        prop_assert_eq!(phases, (accept_queue, read - second, sent - read));
    }

    /// Any order of parts: every request that was read gives exactly one row, whose phases sum to
    /// its duration, and a ledger that was read sums to its handler.
    #[test]
    fn every_request_is_told_once(
        steps in proptest::collection::vec((0..6u64, 0..7u32, 0..5_000u64), 0..120),
    ) {
        let mut play = Play::new();
        let mut now = 10_000;
        let mut open = std::collections::BTreeMap::new();
        let mut next_id = 0;
        for (connection, what, elapsed) in steps {
            now += elapsed;
            match what {
                0 | 1 => {
                    next_id += 1;
                    let mut read = read_event();
                    (read.id, read.h.time) = (next_id, now);
                    open.entry(connection).or_insert((next_id, now));
                    if open[&connection].0 == next_id {
                        play = play.event(&read_bytes(read, b"GET / HTTP/1.1\r\n\r\n"));
                    } else {
                        next_id -= 1;
                    }
                }
                6 => play = play.tick(now),
                end => {
                    let Some(&(id, read_at)) = open.get(&connection) else { continue };
                    let end = if end == 2 { request_end::END_NOT } else { end - 2 };
                    let mut sent = sent_event(end);
                    (sent.id, sent.h.time) = (id, now);
                    sent.ns = [0; underspan_model::STATES];
                    sent.ns[State::NetRead.index()] = now - read_at;
                    sent.answered = u8::from(end == request_end::END_NOT);
                    play = play.event(bytes_of(&sent));
                    if end != request_end::END_NOT {
                        open.remove(&connection);
                    }
                }
            }
        }
        let mut rows = play.rows();
        rows.extend(play.finish(now + 7).rows());
        prop_assert_eq!(rows.len() as u64, next_id);
        for row in rows {
            let (accept_queue, handoff, handler) = phases(&row);
            prop_assert_eq!(accept_queue + handoff + handler, row.u64("duration_ns"));
            prop_assert_eq!(row.ledger_total(), u128::from(handler));
        }
    }
}
