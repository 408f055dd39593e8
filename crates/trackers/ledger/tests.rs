//! Waits and ledgers, from records to rows.

mod states;

use proptest::prelude::*;
use underspan_model::State;

use super::LedgerTracker;
use crate::record::{
    DecodeError, bytes_of, event_header, event_kind, lifecycle_event, thread_exit_event, wait_event,
};
use crate::tests::support::{FakeContext, Row, cases, decode};
use crate::{Rows, Tracker as _, lifecycle};

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
        const HOLDER: [&str; 4] = ["holder_pid", "holder_process", "holder_thread", "holder_tid"];
        let changes: [(Change, &[&str]); 11] = [
            (|w| w.h.time += 1, &["start_time"]),
            (|w| w.h.tgid += 1, &HOLDER), // no sibling any more
            (|w| w.duration += 1, &["duration_ns"]),
            (|w| w.runnable += 1, &["runnable_ns"]),
            (|w| w.futex += 1, &["futex_addr"]),
            (|w| w.syscall += 1, &["syscall"]),
            (|w| w.fd = 9, &["fd"]),
            (
                |w| w.state = State::Sleep as u8,
                &["holder_pid", "holder_process", "holder_thread", "holder_tid", "state"],
            ),
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
        assert_eq!((row.u64("holder_pid"), row.text("holder_process")), (6_000, "postgres"));
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
        assert_eq!((row.u64("holder_pid"), row.text("holder_process")), (0, ""));
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
    fn only_addresses_have_an_end_of_their_own() {
        let local = |family: i32| {
            let mut wait = wait_event { family: family as u16, local_port: 40_001, ..wait() };
            wait.local[..4].copy_from_slice(&[10, 0, 0, 1]);
            row(&wait).text("local").to_owned()
        };
        assert_eq!(local(libc::AF_INET), "10.0.0.1:40001");
        assert_eq!(local(libc::AF_INET6), "[a00:1::]:40001");
        assert_eq!(local(libc::AF_UNIX), "");
        assert_eq!(local(0), "");
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
