//! Collections, from records to rows.

use proptest::prelude::*;

use super::{GcTracker, Rung};
use crate::record::{DecodeError, bytes_of, event_header, event_kind, gc_event};
use crate::tests::support::{FakeContext, Row, cases, decode};
use crate::{Rows, Tracker as _};

fn collection() -> gc_event {
    gc_event {
        h: event_header {
            kind: event_kind::EVENT_GC,
            tgid: 5_000,
            tid: 5_007,
            time: 10_000,
            ..event_header::default()
        },
        duration: 2_800_000_000,
        cpu: 2_700_000_000,
        collected: 17,
        generation: 2,
        rung: Rung::Usdt as u32,
    }
}

fn event(bytes: &[u8]) -> Result<Vec<Row>, DecodeError> {
    let mut context = FakeContext::new().know(5_000, 5_007, "refresh-catalog");
    let mut rows = Rows::default();
    GcTracker.decoder().event(bytes, &mut context, &mut rows)?;
    Ok(decode(&mut rows))
}

#[track_caller]
fn row(gc: &gc_event) -> Row {
    let [row] = <[Row; 1]>::try_from(event(bytes_of(gc)).unwrap()).unwrap();
    row
}

#[test]
fn every_column_has_its_value() {
    let row = row(&collection());
    assert_eq!(row.table, "gc_pause");
    assert_eq!(row.text("host"), FakeContext::HOST);
    assert_eq!((row.u64("pid"), row.u64("tid")), (5_000, 5_007));
    assert_eq!((row.u64("ns_pid"), row.u64("ns_tid")), (4_000, 4_007));
    assert_eq!(row.text("thread"), "refresh-catalog");
    assert_eq!(row.u64("start_time"), FakeContext::OFFSET + 10_000);
    assert_eq!(row.u64("duration_ns"), 2_800_000_000);
    assert_eq!(row.u64("cpu_ns"), 2_700_000_000);
    assert_eq!((row.number("generation"), row.number("collected")), (2, 17));
    assert_eq!(row.text("rung"), "usdt");
}

#[test]
fn one_field_changes_its_own_column() {
    type Change = fn(&mut gc_event);
    let changes: [(Change, &[&str]); 6] = [
        (|gc| gc.h.time += 1, &["start_time"]),
        (|gc| gc.duration += 1, &["duration_ns"]),
        (|gc| gc.cpu += 1, &["cpu_ns"]),
        (|gc| gc.collected = i64::MAX, &["collected"]),
        (|gc| gc.generation = 0, &["generation"]),
        (|gc| gc.rung = Rung::Watchpoint as u32, &["rung"]),
    ];
    let before = row(&collection());
    for (index, (change, columns)) in changes.into_iter().enumerate() {
        let mut changed = collection();
        change(&mut changed);
        assert_eq!(row(&changed).differences(&before), columns, "change {index}");
    }
}

#[test]
fn what_is_not_known_is_minus_one() {
    let row = row(&gc_event { generation: -1, collected: -1, ..collection() });
    assert_eq!((row.number("generation"), row.number("collected")), (-1, -1));
}

#[test]
fn a_generation_that_does_not_fit_is_not_known() {
    for generation in [128, 1_000_000, -129, i32::MIN, i32::MAX] {
        assert_eq!(row(&gc_event { generation, ..collection() }).number("generation"), -1);
    }
}

#[test]
fn rungs_have_their_names_and_others_are_refused() {
    for rung in [Rung::None, Rung::Usdt, Rung::Symbol, Rung::Watchpoint] {
        let row = row(&gc_event { rung: rung as u32, ..collection() });
        assert_eq!(row.text("rung"), rung.name());
    }
    for rung in [4, 9, u32::MAX] {
        let refused =
            DecodeError::Value { kind: event_kind::EVENT_GC, field: "rung", value: rung.into() };
        assert_eq!(event(bytes_of(&gc_event { rung, ..collection() })), Err(refused));
    }
}

#[test]
fn cut_records_are_refused() {
    let gc = collection();
    let bytes = bytes_of(&gc);
    for len in 4..bytes.len() {
        let short = DecodeError::Short { kind: event_kind::EVENT_GC, len, wanted: bytes.len() };
        assert_eq!(event(&bytes[..len]), Err(short));
    }
}

#[test]
fn records_of_others_are_left_alone() {
    for kind in (0..20).filter(|kind| *kind != event_kind::EVENT_GC) {
        let mut gc = collection();
        gc.h.kind = kind;
        assert_eq!(event(bytes_of(&gc)), Ok(Vec::new()));
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn one_flipped_bit_gives_one_row_or_names_the_rung(bit in 32..size_of::<gc_event>() * 8) {
        let gc = collection();
        let mut bytes = bytes_of(&gc).to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        match event(&bytes) {
            Ok(rows) => prop_assert_eq!(rows.len(), 1),
            Err(DecodeError::Value { field, .. }) => prop_assert_eq!(field, "rung"),
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}

#[test]
fn an_address_that_cannot_be_watched_is_an_error() {
    // The kernel refuses addresses of its own, and ones that are not aligned to what is watched.
    for address in [u64::MAX - 3, 0x1001] {
        assert!(super::watchpoint(address, 0).is_err(), "{address:#x}");
    }
}
