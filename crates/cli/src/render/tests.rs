//! What people see, kept as text.

#[path = "../../../explain/tests/common/mod.rs"]
mod common;

use std::collections::BTreeMap;

use insta::assert_snapshot;
use proptest::prelude::*;
use underspan_explain::{Evidence, explain};
use underspan_model::{Ledger, STATES};

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

/// A request whose handler spent `cells` milliseconds in each state, after two queues.
fn spent(queues: [u64; 2], cells: [u64; STATES], shared_thread: u8) -> Evidence {
    let mut evidence = common::quiet();
    let request = evidence.request.as_mut().unwrap();
    request.ledger = Ledger::new(cells);
    request.handler_ns = request.ledger.total();
    [request.accept_queue_ns, request.handoff_ns] = queues;
    request.duration_ns = request.handler_ns + queues[0] + queues[1];
    request.shared_thread = shared_thread;
    evidence
}

/// Tenths of a percent, as they are printed.
fn tenths(percent: &str) -> u64 {
    match percent {
        "<0.1" => 0,
        ">99.9" => 1000,
        number => (number.parse::<f64>().unwrap() * 10.0).round() as u64,
    }
}

/// What the table of parts says of each, and of their sum.
fn table(text: &str) -> BTreeMap<String, u64> {
    let table = text.lines().skip_while(|line| !line.starts_with("Where the time went")).skip(2);
    let rows = table.take_while(|line| !line.is_empty()).map(|line| {
        // `A net_read  196.0 ms  5.9 %  reading …`; a sum has no key.
        let words: Vec<_> = line.split_whitespace().collect();
        let words = if words[0] == "sum" { &words[..] } else { &words[1..] };
        assert_eq!((words[2], words[4]), ("ms", "%"), "{line}");
        (words[0].to_owned(), tenths(words[3]))
    });
    rows.collect()
}

/// The percentages in brackets on a line.
fn bracketed(line: &str) -> Vec<u64> {
    let brackets = line.split('(').skip(1).filter_map(|rest| rest.split_once(" %)"));
    brackets.map(|(percent, _)| tenths(percent)).collect()
}

fn some_ms() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 2 => 0..400 * common::MS, 1 => 0..2 * common::MS]
}

proptest! {
    #[test]
    fn whoever_names_a_part_says_the_same_percentage_and_they_sum(
        queues in [some_ms(), some_ms()],
        cells in proptest::array::uniform17(some_ms()),
        shared_thread in 0..2_u8,
    ) {
        let explanation = explain(&spent(queues, cells, shared_thread)).unwrap();
        prop_assume!(explanation.client_wait_ns > 0);
        let text = super::explanation(&explanation, WIDTH, Ink::new(false));
        let mut table = table(&text);
        let of = |table: &BTreeMap<String, u64>, part: &str| table.get(part).copied().unwrap_or(0);

        prop_assert_eq!(table.remove("sum"), Some(1000));
        prop_assert_eq!(table.values().sum::<u64>(), 1000, "{}", text);
        let window = text.lines().find(|line| line.contains("accept queue ")).unwrap();
        let (accept_queue, handoff) = (of(&table, "accept_queue"), of(&table, "handoff"));
        let phases = vec![accept_queue, handoff, 1000 - accept_queue - handoff];
        prop_assert_eq!(bracketed(window), phases, "{}", text);
        for (index, finding) in explanation.findings.iter().enumerate() {
            let begin = format!("  {}. ", index + 1);
            let line = text.lines().find(|line| line.starts_with(&begin)).unwrap();
            let parts: u64 = finding.parts.iter().map(|part| of(&table, part.part)).sum();
            prop_assert_eq!(bracketed(line), vec![parts], "{}", text);
        }
        let unknown = text.lines().find(|line| line.starts_with("unknown: ")).unwrap();
        let nobody_knows = match shared_thread {
            0 => of(&table, "other") + of(&table, "unaccounted"),
            _ => of(&table, "handler"),
        };
        prop_assert_eq!(bracketed(unknown), vec![nobody_knows], "{}", text);
    }
}
