//! Collections, seen by watchpoint and by symbol, in a process that is no Python.

use object::{Object as _, ObjectSymbol as _};
use underspan_model::State;
use underspan_trackers::gc::Rung;
use underspan_trackers::{GcTarget, ProbedBinary, ProcessConfig};

use crate::machine::taken;
use crate::watcher::Watcher;
use crate::workload::{Workload, binary, eventually};

/// Where a function of the workload is in its file.
fn offset_of(function: &str) -> u64 {
    use object::ObjectSegment as _;
    let bytes = std::fs::read(binary()).unwrap();
    let file = object::File::parse(bytes.as_slice()).unwrap();
    let address = file.symbols().find(|s| s.name() == Ok(function)).unwrap().address();
    let segment =
        file.segments().find(|s| (s.address()..s.address() + s.size()).contains(&address)).unwrap();
    address - segment.address() + segment.file_range().0
}

fn check(rung: Rung, target: impl FnOnce(u64) -> GcTarget) {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    let addresses = workload.addresses();
    let target = target(addresses.collecting);
    assert_eq!(target.rung(), rung);
    // A CPU has four debug registers, and another agent may be using them for a moment.
    eventually("attaching", || watcher.session.attach_gc(&target).ok());
    let attached = watcher.session.attached();
    watcher.session.attach_gc(&target).expect("twice does nothing");
    assert_eq!(watcher.session.attached(), attached);
    let config = ProcessConfig {
        gil: addresses.gil,
        gc_collecting: addresses.collecting,
        gc_stats: addresses.stats,
        gc_rung: rung,
        ..ProcessConfig::default()
    };
    watcher.session.watch(workload.pid, config).unwrap();

    let waiter = workload.start("wait-for-collector");
    eventually("it waits, again and again", || (workload.schedstat(waiter)[2] > 5).then_some(()));
    let before = taken();
    let collector = workload.start("collect");
    let of_collector = |row: &crate::support::Row| row.u64("tid") == u64::from(collector);
    let first = watcher.row("gc_pause", of_collector);
    watcher.row("gc_pause", |row| of_collector(row) && *row != first);
    let pauses = watcher.rows_of("gc_pause", collector);
    assert_eq!(pauses.len(), 2);
    let late = workload.schedstat(collector)[1] + taken() - before;
    let mut paused = 0;
    for pause in &pauses {
        assert!((29_900_000..200_000_000 + late).contains(&pause.u64("duration_ns")), "{pause:?}");
        assert!(pause.u64("cpu_ns") <= pause.u64("duration_ns"), "{pause:?}");
        assert!(pause.u64("cpu_ns") > 0, "{pause:?}");
        assert_eq!(pause.text("rung"), rung.name());
        assert_eq!((pause.number("generation"), pause.number("collected")), (2, 17));
        paused += pause.u64("duration_ns");
    }
    let cpu: u64 = pauses.iter().map(|pause| pause.u64("cpu_ns")).sum();
    assert_eq!(watcher.ledger(workload.pid, collector)[State::GcRun], cpu);

    // The sibling slept on the GIL nearly all along: what it did not run or queue is its gc_wait,
    // once the sleep is over that the collection ended in.
    let turns = || workload.schedstat(waiter)[2];
    let now = turns();
    eventually("it has slept once more", || (turns() > now + 1).then_some(()));
    let ledger = watcher.ledger(workload.pid, waiter);
    assert!(ledger[State::GcWait] <= paused, "{:?}", ledger.largest_first());
    let asleep = paused.saturating_sub(ledger[State::Running] + ledger[State::Runnable]);
    assert!(ledger[State::GcWait] >= asleep, "{:?} of {paused}", ledger.largest_first());
    assert!(ledger[State::GcWait] > 0 && ledger[State::GilWait] > 0);
    watcher.assert_nothing_lost();

    watcher.session.detach_gc(&target);
    assert!(watcher.session.attached() < attached);
}

#[test]
fn by_watchpoint() {
    check(Rung::Watchpoint, GcTarget::Watchpoint);
}

#[test]
fn by_symbol() {
    use std::os::unix::fs::MetadataExt as _;
    check(Rung::Symbol, |_| {
        let path = binary().to_owned();
        let file = std::fs::metadata(&path).unwrap();
        let binary = ProbedBinary { path, dev: file.dev(), inode: file.ino() };
        GcTarget::Symbol(binary, vec![offset_of("collect")])
    });
}

#[test]
fn a_binary_without_probes_is_an_error() {
    let mut watcher = Watcher::new();
    let none = ProbedBinary { path: binary().to_owned(), dev: 0, inode: 0 };
    assert!(watcher.session.attach_gc(&GcTarget::Usdt(none)).is_err());
    let gone = ProbedBinary { path: "/nonexistent".into(), dev: 0, inode: 1 };
    assert!(watcher.session.attach_gc(&GcTarget::Symbol(gone, vec![0])).is_err());
}
