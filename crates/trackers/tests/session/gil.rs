//! Waits for the GIL, played by a process that is no Python.

use underspan_trackers::ProcessConfig;

use crate::machine::taken;
use crate::watcher::Watcher;
use crate::workload::Workload;

#[test]
fn slices_are_one_wait_and_name_the_holder() {
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    let config = ProcessConfig { gil: workload.addresses().gil, ..ProcessConfig::default() };
    watcher.session.watch(workload.pid, config).unwrap();
    let holder = workload.start_and_block("hold");
    let before = taken();
    let waiter = workload.start("gil-slices");

    let is_waiter = |row: &crate::support::Row| row.u64("tid") == u64::from(waiter);
    let gil = watcher.row("gil_wait", is_waiter);
    let wait = watcher.row("waits", |row| is_waiter(row) && row.text("state") == "gil_wait");
    assert_eq!((gil.u64("slices"), wait.u64("slices")), (10, 10));
    // Between its slices it may have waited for a CPU.
    let late = workload.schedstat(waiter)[1] + taken() - before;
    assert!((49_000_000..150_000_000 + late).contains(&gil.u64("duration_ns")), "{gil:?}");
    assert_eq!(gil.u64("holder_tid"), u64::from(holder));
    assert!(gil.u64("holder_ns") <= gil.u64("duration_ns"));
    assert!(gil.u64("holder_ns") + late >= gil.u64("duration_ns") * 9 / 10, "{gil:?}: {late}");
    assert_eq!(gil.u64("gc_ns"), 0);
    watcher.drain();
    assert_eq!(watcher.rows_of("gil_wait", waiter).len(), 1, "one wait, not ten");
    watcher.assert_nothing_lost();
}
