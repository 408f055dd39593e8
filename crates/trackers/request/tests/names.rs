//! The first request of a thread that has just started: Python's name for it is read a moment later.

use super::*;

/// The request is over at 20,000, and its thread is called what its process is.
fn first_of_its_thread() -> Play {
    let mut play = Play::new();
    play.name("gunicorn");
    play.context.unnamed.insert(5_007);
    play.event(&read_bytes(read_event(), HEAD.as_bytes()))
        .event(bytes_of(&sent_event(request_end::END_CLOSED)))
}

impl Play {
    fn name(&mut self, name: &str) {
        self.context.threads.get_mut(&5_007).unwrap().name = name.into();
    }
}

#[test]
fn its_row_waits_for_the_name() {
    let mut play = first_of_its_thread().tick(30_000);
    assert!(play.rows().is_empty());
    play.name("ThreadPoolExecutor-0_0");
    play.context.unnamed.clear();
    let row = play.tick(40_000).row();
    assert_eq!(row.text("thread"), "ThreadPoolExecutor-0_0");
    assert_eq!(row.text("sent_thread"), "ThreadPoolExecutor-0_0");
}

#[test]
fn and_no_longer_than_a_name_takes() {
    let mut play = first_of_its_thread().tick(20_000 + UNNAMED_NS - 1);
    assert!(play.rows().is_empty());
    assert_eq!(play.tick(20_000 + UNNAMED_NS).row().text("thread"), "gunicorn");
}

#[test]
fn at_the_end_nothing_is_kept() {
    assert_eq!(first_of_its_thread().finish(30_000).row().text("thread"), "gunicorn");
}

/// As it was silent for a second, there was time enough.
#[test]
fn a_request_that_ended_by_silence_waits_no_longer() {
    let mut play = Play::new();
    play.context.unnamed.insert(5_007);
    let play = play
        .event(&read_bytes(read_event(), HEAD.as_bytes()))
        .event(bytes_of(&sent_event(request_end::END_NOT)));
    assert_eq!(play.tick(20_000 + 1_000_000_000).row().text("end"), "sent");
}
