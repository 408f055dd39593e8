//! Waits for a request are looked at more coarsely than those within one, and all of their time is there.

use std::net::TcpStream;
use std::time::Duration;

use underspan_model::State;
use underspan_trackers::{IDLE_PERIODS, OFF_CPU_PERIOD};

use super::ask;
use crate::support::Row;
use crate::watcher::Watcher;
use crate::workload::{Workload, eventually};

#[test]
fn waits_for_a_request_are_fewer_samples() {
    const REQUESTS: usize = 200;
    let period = OFF_CPU_PERIOD.as_nanos() as u64;
    let idle_period = period * u64::from(IDLE_PERIODS);
    let mut watcher = Watcher::new();
    let mut workload = Workload::new();
    watcher.watch(workload.pid);
    let port = workload.ask("serve");
    let mut stream = TcpStream::connect(("127.0.0.1", port as u16)).unwrap();
    for _ in 0..REQUESTS {
        std::thread::sleep(Duration::from_millis(4));
        ask(&mut stream, "/quick");
    }
    drop(stream);
    let tid = watcher.row("requests", |row| row.text("path") == "/quick").u64("tid") as u32;
    // It waits for the next connection: all that it read is over.
    let ledger = eventually("all waits are over", || {
        let thread = watcher.threads(workload.pid).remove(&tid)?;
        let waits = State::from_index(thread.state) == Some(State::PollWait);
        waits.then_some(thread.ledger)
    });
    watcher.drain();
    let rows = watcher.rows_of("off_cpu", tid);
    let of = |state: State, in_request: u64| {
        let is = move |row: &&Row| {
            row.text("state") == state.name() && row.u64("in_request") == in_request
        };
        rows.iter().filter(is).collect::<Vec<_>>()
    };
    for (state, in_request, period) in
        [(State::NetRead, 0, idle_period), (State::PollWait, 1, period)]
    {
        let rows = of(state, in_request);
        for row in &rows {
            let (weight, duration) = (row.u64("weight_ns"), row.u64("duration_ns"));
            assert!(weight.is_multiple_of(period) || weight == duration, "{row:?}");
        }
        let weight: u64 = rows.iter().map(|row| row.u64("weight_ns")).sum();
        let name = state.name();
        eprintln!("{name}: {} samples of {weight} ns, of {} ns", rows.len(), ledger[state]);
        // Of waits in requests there is no other; that for the connection was longer than a period.
        let accept: u64 = of(state, 1 - in_request).iter().map(|row| row.u64("weight_ns")).sum();
        assert!(
            weight.abs_diff(ledger[state] - accept) <= period,
            "{name}: {weight} of {ledger:?}"
        );
        assert!(weight > 2 * period, "{name}: {weight} ns");
    }
    watcher.assert_nothing_lost();
}
