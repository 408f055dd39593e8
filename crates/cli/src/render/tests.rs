//! What people see, kept as text.

#[path = "../../../explain/tests/common/mod.rs"]
mod common;

use insta::assert_snapshot;
use underspan_explain::{Evidence, explain};

use super::{Ink, WIDTH};

fn plain(evidence: &Evidence) -> String {
    super::explanation(&explain(evidence).unwrap(), WIDTH, Ink::new(false))
}

#[test]
fn story_1_the_queue() {
    assert_snapshot!(plain(&common::queue()));
}

#[test]
fn story_2_the_pause() {
    assert_snapshot!(plain(&common::collection()));
}

#[test]
fn a_quiet_request() {
    assert_snapshot!(plain(&common::quiet()));
}

#[test]
fn an_event_loop() {
    assert_snapshot!(plain(&common::event_loop()));
}

/// It waited for something that is not known, which is not nothing.
#[test]
fn a_long_handler_on_an_event_loop_is_not_said_to_be_nothing() {
    let mut evidence = common::event_loop();
    let request = evidence.request.as_mut().unwrap();
    (request.handoff_ns, request.duration_ns) = (0, request.handler_ns);
    let text = plain(&evidence);
    assert!(
        text.contains("none: what the handler did for 120.0 ms on the event loop is not known")
    );
    assert!(!text.contains("nothing took long enough"), "{text}");
}

#[test]
fn a_lock_with_its_lines() {
    assert_snapshot!(plain(&common::held_lock()));
}

#[test]
fn a_pool_stuck_on_one_peer() {
    assert_snapshot!(plain(&common::stuck_pool()));
}

#[test]
fn a_call_that_blocks_a_loop() {
    assert_snapshot!(plain(&common::stalled_loop()));
}

#[test]
fn a_peer_that_is_followed() {
    assert_snapshot!(plain(&common::network::followed()));
}

#[test]
fn a_peer_that_does_not_read() {
    assert_snapshot!(plain(&common::network::closed_window()));
}

#[test]
fn a_full_accept_queue() {
    assert_snapshot!(plain(&common::network::full_queue()));
}

#[test]
fn a_host_that_is_held_back() {
    assert_snapshot!(plain(&common::network::busy_host()));
}

#[test]
fn unknown_time_and_lost_events() {
    assert_snapshot!(plain(&common::unknown()));
}

/// No event is lost, and no time.
#[test]
fn stacks_that_are_cut_short() {
    let mut evidence = common::held_lock();
    // The request's own thread, and its culprit.
    for (sample, ends) in evidence.samples.iter_mut().zip(["no_mapping", "no_mapping, too_deep"]) {
        sample.stack.truncated = String::from(ends);
    }
    assert_snapshot!(plain(&evidence));
}

#[test]
fn a_table_of_requests() {
    let evidences = [
        common::queue(),
        common::collection(),
        common::event_loop(),
        common::unknown(),
        common::quiet(),
    ];
    let rows: Vec<_> = evidences.into_iter().filter_map(|evidence| evidence.request).collect();
    let on_a_terminal = super::requests(&rows, Some(WIDTH), Ink::new(false));
    assert!(on_a_terminal.lines().all(|line| line.chars().count() <= WIDTH), "{on_a_terminal}");
    let piped = super::requests(&rows, None, Ink::new(false));
    assert_snapshot!(format!("{on_a_terminal}\n{piped}"));
}

#[test]
fn no_line_is_too_long_and_colours_change_no_text() {
    for evidence in [common::queue(), common::collection(), common::event_loop(), common::unknown()]
    {
        let explanation = explain(&evidence).unwrap();
        for width in [80, 100] {
            let plain = super::explanation(&explanation, width, Ink::new(false));
            let long = plain.lines().find(|line| line.chars().count() > width);
            assert_eq!(long, None);
        }
        let coloured = super::explanation(&explanation, WIDTH, Ink::new(true));
        assert!(coloured.contains("\u{1b}["));
    }
}
