//! Waits for the GIL, from records to rows.

use proptest::prelude::*;
use underspan_model::State;

use super::GilTracker;
use crate::record::{DecodeError, bytes_of, event_header, event_kind, gil_event};
use crate::tests::support::{FakeContext, Row, cases, decode};
use crate::{Rows, Tracker as _};

/// A request's thread that waited 20 ms for one that computed.
fn wait() -> gil_event {
    gil_event {
        h: event_header {
            kind: event_kind::EVENT_GIL,
            tgid: 5_000,
            tid: 5_007,
            time: 10_000,
            ..event_header::default()
        },
        duration: 20_000_000,
        runnable_ns: 50_000,
        holder_ns: 19_000_000,
        futex: 0x55d0_0000_1048,
        holder: 5_008,
        slices: 4,
        waker_tgid: 5_000,
        waker_tid: 5_009,
        ..gil_event::default()
    }
}

/// The rows of `gil_wait` and of `waits`.
fn event(bytes: &[u8]) -> Result<Vec<Row>, DecodeError> {
    let mut context = FakeContext::new()
        .know(5_000, 5_007, "gthread_0")
        .know(5_000, 5_008, "computer")
        .know(5_000, 5_009, "releaser")
        .know(5_000, 5_010, "collector");
    let mut rows = Rows::default();
    GilTracker.decoder().event(bytes, &mut context, &mut rows)?;
    Ok(decode(&mut rows))
}

#[track_caller]
fn rows(wait: &gil_event) -> (Row, Row) {
    let [gil, wait] = <[Row; 2]>::try_from(event(bytes_of(wait)).unwrap()).unwrap();
    assert_eq!((gil.table.as_str(), wait.table.as_str()), ("gil_wait", "waits"));
    (gil, wait)
}

fn holder(row: &Row) -> (u64, &str) {
    (row.u64("holder_tid"), row.text("holder_thread"))
}

#[test]
fn every_column_has_its_value() {
    let (gil, wait) = rows(&wait());
    for row in [&gil, &wait] {
        assert_eq!(row.text("host"), FakeContext::HOST);
        assert_eq!((row.u64("pid"), row.u64("tid")), (5_000, 5_007));
        assert_eq!((row.u64("ns_pid"), row.u64("ns_tid")), (4_000, 4_007));
        assert_eq!(row.text("thread"), "gthread_0");
        assert_eq!(row.u64("start_time"), FakeContext::OFFSET + 10_000);
        assert_eq!(row.u64("duration_ns"), 20_000_000);
        assert_eq!(holder(row), (5_008, "computer"));
        assert_eq!(row.u64("slices"), 4);
    }
    assert_eq!((gil.u64("holder_ns"), gil.u64("gc_ns")), (19_000_000, 0));
    assert_eq!(wait.text("state"), "gil_wait");
    assert_eq!(wait.u64("runnable_ns"), 50_000);
    assert_eq!((wait.u64("waker_pid"), wait.u64("waker_tid")), (5_000, 5_009));
    assert_eq!(wait.text("waker_thread"), "releaser");
    assert_eq!(wait.u64("futex_addr"), 0x55d0_0000_1048);
    assert_eq!((wait.number("syscall"), wait.number("fd")), (i128::from(libc::SYS_futex), -1));
    assert_eq!(wait.text("peer"), "");
}

#[test]
fn one_field_changes_its_own_columns() {
    type Change = fn(&mut gil_event);
    let changes: [(Change, &[&str], &[&str]); 7] = [
        (|w| w.h.time += 1, &["start_time"], &["start_time"]),
        (|w| w.duration += 1, &["duration_ns"], &["duration_ns"]),
        (|w| w.runnable_ns += 1, &[], &["runnable_ns"]),
        (|w| w.futex += 1, &[], &["futex_addr"]),
        (|w| w.slices += 1, &["slices"], &["slices"]),
        (|w| w.holder_ns -= 1, &["holder_ns"], &[]),
        (|w| w.gc_ns += 1, &["gc_ns"], &[]),
    ];
    let before = rows(&wait());
    for (index, (change, in_gil, in_waits)) in changes.into_iter().enumerate() {
        let mut changed = wait();
        change(&mut changed);
        let (gil, wait) = rows(&changed);
        assert_eq!(gil.differences(&before.0), in_gil, "change {index}");
        assert_eq!(wait.differences(&before.1), in_waits, "change {index}");
    }
}

#[test]
fn who_collected_for_most_of_the_wait_held_the_gil() {
    let collecting = gil_event { gc_ns: 12_000_000, gc_tid: 5_010, ..wait() };
    let (gil, wait_row) = rows(&collecting);
    assert_eq!(wait_row.text("state"), State::GcWait.name());
    assert_eq!(holder(&gil), (5_010, "collector"));
    assert_eq!(holder(&wait_row), (5_010, "collector"));
    assert_eq!((gil.u64("holder_ns"), gil.u64("gc_ns")), (12_000_000, 12_000_000));
}

#[test]
fn half_of_the_wait_is_not_most_of_it() {
    for (gc_ns, state) in [(10_000_000, State::GilWait), (10_000_001, State::GcWait)] {
        let (_, row) = rows(&gil_event { gc_ns, gc_tid: 5_010, ..wait() });
        assert_eq!(row.text("state"), state.name(), "{gc_ns}");
    }
}

#[test]
fn without_a_holder_it_is_the_sibling_that_let_it_go() {
    let (gil, _) = rows(&gil_event { holder: 0, holder_ns: 0, ..wait() });
    assert_eq!((holder(&gil), gil.u64("holder_ns")), ((5_009, "releaser"), 0));
}

#[test]
fn nobody_is_made_up() {
    // A timer ended the sleep.
    let (gil, row) = rows(&gil_event { holder: 0, waker_tgid: 0, waker_tid: 0, ..wait() });
    assert_eq!((holder(&gil), holder(&row)), ((0, ""), (0, "")));
    // Another process cannot hold this one's GIL.
    let (gil, row) = rows(&gil_event { holder: 0, waker_tgid: 9, ..wait() });
    assert_eq!((holder(&gil), holder(&row)), ((0, ""), (0, "")));
}

#[test]
fn cut_records_are_refused() {
    let wait = wait();
    let bytes = bytes_of(&wait);
    for len in 4..bytes.len() {
        let short = DecodeError::Short { kind: event_kind::EVENT_GIL, len, wanted: bytes.len() };
        assert_eq!(event(&bytes[..len]), Err(short));
    }
}

#[test]
fn records_of_others_are_left_alone() {
    for kind in (0..20).filter(|kind| *kind != event_kind::EVENT_GIL) {
        let mut wait = wait();
        wait.h.kind = kind;
        assert_eq!(event(bytes_of(&wait)), Ok(Vec::new()));
    }
}

proptest! {
    #![proptest_config(cases(300))]

    /// Every flip gives the pair of rows, and they agree.
    #[test]
    fn one_flipped_bit_gives_two_rows_that_agree(bit in 32..size_of::<gil_event>() * 8) {
        let whole = wait();
        let mut bytes = bytes_of(&whole).to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let [gil, wait] = <[Row; 2]>::try_from(event(&bytes).unwrap()).unwrap();
        prop_assert_eq!(holder(&gil), holder(&wait));
        for column in ["start_time", "duration_ns", "tid", "slices"] {
            prop_assert_eq!(gil.number(column), wait.number(column));
        }
    }
}
