//! Samples, totals and windows, from rows of the tables.

use serde_json::{Value, json};
use underspan_evidence::flame::{
    FlameQuery, RequestFilter, ThreadFilter, extents, requests_for_flame, samples_in_range,
    samples_of_requests, timeline,
};
use underspan_evidence::{evidence_for, request_by_id, requests_in_flight};
use underspan_flame::{Kind, Sample, scale};
use underspan_model::{Request, State, column};

use crate::seeded::Seeded;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// Ten seconds before now, on a whole second.
fn t0() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    (now.as_secs() - 10) * SECOND
}

fn thread(tid: u32, name: &str) -> Value {
    json!({ "host": "web-1", "pid": 4100, "tid": tid, "ns_pid": 7, "ns_tid": tid, "thread": name })
}

fn with(mut row: Value, more: Value) -> Value {
    row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    row
}

fn wait(tid: u32, start: u64, ns: u64, state: State, weight: u64, stack: u64) -> Value {
    with(
        thread(tid, "worker_1"),
        json!({ "start_time": start, "duration_ns": ns, "state": state.name(),
                "weight_ns": weight, "stack_id": stack, "in_request": 1 }),
    )
}

fn tick(tid: u32, start: u64, stack: u64, cycles: Option<u64>) -> Value {
    with(
        thread(tid, "worker_1"),
        json!({ "start_time": start, "duration_ns": 10 * MS, "state": "running", "stack_id": stack,
                "cycles": cycles, "instructions": cycles.map(|n| n * 2),
                "cache_misses": cycles.map(|_| 7), "branch_misses": null }),
    )
}

fn states(tid: u32, name: &str, start: u64, cells: &[(State, u64)]) -> Value {
    let sum: u64 = cells.iter().map(|(_, ns)| ns).sum();
    let mut row = with(
        thread(tid, name),
        json!({ "start_time": start, "duration_ns": sum, "process": "gunicorn" }),
    );
    for (state, ns) in cells {
        row[column(*state)] = json!(ns);
    }
    row
}

async fn stacks(seeded: &Seeded, t0: u64) {
    let stack = |id: u64, kinds: &[&str], functions: &[&str], lines: &[u32], truncated: &str| {
        json!({ "host": "web-1", "stack_id": id, "start_time": t0, "kinds": kinds,
                "functions": functions, "files": vec!["/srv/reports.py"; kinds.len()],
                "lines": lines, "modules": vec![""; kinds.len()], "truncated": truncated })
    };
    let rows = [
        stack(1, &["python", "kernel"], &["export", "futex_wait"], &[88, 0], ""),
        stack(2, &["python"], &["dumps"], &[12], "no_table"),
    ];
    // An agent that starts anew writes its stacks again.
    seeded.insert("stacks", rows.iter().chain(&rows[..1])).await;
}

fn query(kind: Kind, since: u64, until: u64) -> FlameQuery {
    FlameQuery { kind, since, until, pid: None, process: None, thread: None }
}

fn sum(samples: &[Sample]) -> u64 {
    samples.iter().map(|sample| sample.weight_ns).sum()
}

#[tokio::test]
async fn a_range_is_summed_by_stack_and_cut_at_its_edges() {
    let (seeded, t0) = (Seeded::start().await, t0());
    stacks(&seeded, t0).await;
    let lock = State::LockWait;
    let waits = [
        wait(4101, t0 + 100 * MS, 40 * MS, lock, 40 * MS, 1),
        wait(4101, t0 + 200 * MS, 60 * MS, lock, 60 * MS, 1),
        // Half of it lies before the range, and it stands for short ones besides.
        wait(4101, t0 - 20 * MS, 40 * MS, lock, 80 * MS, 1),
        wait(4101, t0 + 500 * MS, 10 * MS, State::Sleep, 10 * MS, 99),
        // Ended before.
        wait(4101, t0 - 50 * MS, 10 * MS, lock, 10 * MS, 1),
    ];
    seeded.insert("off_cpu", &waits).await;
    let ticks = [
        tick(4101, t0 + 700 * MS, 2, Some(1000)),
        tick(4101, t0 + 710 * MS, 2, None),
        tick(4101, t0 - 1, 2, None),
    ];
    seeded.insert("on_cpu", &ticks).await;
    let cells = [(lock, 170 * MS), (State::Running, 30 * MS), (State::Sleep, 800 * MS)];
    seeded.insert("thread_states", [states(4101, "worker_1", t0, &cells)]).await;
    // Only its second half is in the range.
    seeded
        .insert(
            "thread_states",
            [states(4102, "idler", t0 - 500 * MS, &[(State::PollWait, SECOND)])],
        )
        .await;

    let query = query(Kind::Wall, t0, t0 + SECOND);
    let mut found = samples_in_range(&seeded.store(), &query).await.unwrap();
    assert!(!found.is_cut);
    assert_eq!(found.samples.len(), 3);
    let of = |state: State| found.samples.iter().find(|s| s.state == state).unwrap();
    assert_eq!((of(lock).weight_ns, of(lock).count), (140 * MS, 3));
    let stack = of(lock).stack().unwrap();
    assert_eq!((stack.frames[0].function.as_str(), stack.frames[0].line), ("export", 88));
    assert_eq!(of(State::Running).stack().unwrap().truncated, "no_table");
    // Rows without counters take nothing away from those with.
    assert_eq!(of(State::Running).counters.unwrap().instructions, 2000);
    assert!(of(State::Sleep).stack().is_none());
    assert_eq!(
        (of(lock).thread.name.as_str(), of(lock).thread.process.as_str()),
        ("worker_1", "gunicorn")
    );

    scale(&mut found.samples, found.ongoing, &found.totals, t0);
    assert_eq!(sum(&found.samples), 1500 * MS);
    seeded.stop().await;
}

#[tokio::test]
async fn filters_leave_out_what_does_not_fit() {
    let (seeded, t0) = (Seeded::start().await, t0());
    let rows = [
        wait(4101, t0, 10 * MS, State::LockWait, 10 * MS, 0),
        wait(4102, t0, 20 * MS, State::LockWait, 20 * MS, 0),
        with(
            wait(9, t0, 40 * MS, State::GilWait, 40 * MS, 0),
            json!({ "pid": 9, "thread": "other" }),
        ),
    ];
    seeded.insert("off_cpu", &rows).await;
    let cells = [(State::LockWait, 10 * MS)];
    seeded.insert("thread_states", [states(4101, "worker_1", t0, &cells)]).await;
    let ask = async |change: &dyn Fn(&mut FlameQuery)| {
        let mut query = query(Kind::OffCpu, t0, t0 + SECOND);
        change(&mut query);
        sum(&samples_in_range(&seeded.store(), &query).await.unwrap().samples)
    };
    assert_eq!(ask(&|_| ()).await, 70 * MS);
    assert_eq!(ask(&|q| q.pid = Some(9)).await, 40 * MS);
    assert_eq!(ask(&|q| q.process = Some(String::from("gunicorn"))).await, 30 * MS);
    assert_eq!(ask(&|q| q.thread = Some(ThreadFilter::Id(4102))).await, 20 * MS);
    assert_eq!(ask(&|q| q.thread = Some(ThreadFilter::Name(String::from("other")))).await, 40 * MS);
    assert_eq!(ask(&|q| q.thread = Some(ThreadFilter::Name(String::from("' OR 1=1 --")))).await, 0);
    assert_eq!(ask(&|q| q.kind = Kind::Gil).await, 40 * MS);
    assert_eq!(ask(&|q| q.kind = Kind::Cpu).await, 0);
    assert_eq!(ask(&|q| q.until = t0).await, 0);
    seeded.stop().await;
}

fn request(id: &str, tid: u32, start: u64, cells: &[(State, u64)]) -> Request {
    let mut request = Request {
        request_id: id.to_owned(),
        host: String::from("web-1"),
        pid: 4100,
        tid,
        thread: String::from("worker_1"),
        process: String::from("gunicorn"),
        method: String::from("GET"),
        path: String::from("/export"),
        start_time: start,
        handoff_ns: 5 * MS,
        ..Request::default()
    };
    for (state, ns) in cells {
        request.ledger[*state] += ns;
    }
    request.handler_ns = request.ledger.total();
    request.duration_ns = request.handler_ns + request.handoff_ns;
    request
}

/// A wait that still went on when its thread's stack was read.
fn ongoing(tid: u32, start: u64, seen_after: u64, stack: u64) -> Value {
    with(
        thread(tid, "worker_1"),
        json!({ "start_time": start, "duration_ns": seen_after, "state": "lock_wait",
                "stack_id": stack, "in_request": 1 }),
    )
}

#[tokio::test]
async fn a_wait_that_goes_on_is_where_it_stands_and_counts_once() {
    let (seeded, t0) = (Seeded::start().await, t0());
    stacks(&seeded, t0).await;
    let lock = State::LockWait;
    let rows = [
        // Began an hour before the range, and was told again.
        ongoing(1, t0 - 3600 * SECOND, SECOND, 2),
        ongoing(1, t0 - 3600 * SECOND, 3590 * SECOND, 1),
        // Began in the range and is over: its sample is there, by a clock that was set meanwhile.
        ongoing(2, t0 + SECOND, SECOND, 1),
        // Is over, and its sample was lost. The next is not.
        ongoing(3, t0 + SECOND, SECOND, 1),
        // Was last heard of too long before.
        ongoing(4, t0 - 3600 * SECOND, SECOND, 1),
        // Began after the range.
        ongoing(5, t0 + 11 * SECOND, SECOND, 1),
    ];
    seeded.insert("off_cpu_ongoing", &rows).await;
    let samples = [
        wait(2, t0 + SECOND + 1000, 9 * SECOND, lock, 9 * SECOND, 2),
        wait(3, t0 + 5 * SECOND, SECOND, lock, SECOND, 2),
        wait(3, t0 + 8 * SECOND, SECOND, lock, SECOND, 2),
    ];
    seeded.insert("off_cpu", &samples).await;
    let threads = (1..=5)
        .map(|tid| states(tid, "worker_1", t0, &[(lock, 9 * SECOND), (State::Sleep, SECOND)]));
    seeded.insert("thread_states", &threads.collect::<Vec<_>>()).await;

    for kind in [Kind::Lock, Kind::OffCpu, Kind::Wall] {
        let query = query(kind, t0, t0 + 10 * SECOND);
        let mut found = samples_in_range(&seeded.store(), &query).await.unwrap();
        let scaling = scale(&mut found.samples, found.ongoing, &found.totals, t0);
        let at = |tid: u32, function: &str| {
            let there = |sample: &&Sample| {
                let stack = sample.stack();
                let name = stack.map_or("", |stack| stack.frames[0].function.as_str());
                (sample.thread.tid, sample.state, name) == (tid, lock, function)
            };
            found.samples.iter().filter(there).map(|s| s.weight_ns / SECOND).sum::<u64>()
        };
        assert_eq!((at(1, "export"), at(1, "dumps"), at(1, "")), (9, 0, 0), "{kind}");
        assert_eq!((at(2, "export"), at(2, "dumps"), at(2, "")), (0, 9, 0), "{kind}");
        assert_eq!((at(3, "export"), at(3, "dumps"), at(3, "")), (4, 2, 3), "{kind}");
        assert_eq!((at(4, "export"), at(4, "")), (0, 9), "{kind}");
        assert_eq!((at(5, "export"), at(5, "")), (0, 9), "{kind}");
        assert_eq!(scaling.ongoing_ns, 13 * SECOND, "{kind}");
        let sleeps = if kind == Kind::Lock { 0 } else { 5 * SECOND };
        assert_eq!(sum(&found.samples), 45 * SECOND + sleeps, "{kind}");
    }

    // Of threads and of requests, the same.
    let narrow =
        FlameQuery { thread: Some(ThreadFilter::Id(1)), ..query(Kind::Lock, t0, t0 + SECOND) };
    let found = samples_in_range(&seeded.store(), &narrow).await.unwrap();
    assert_eq!((found.ongoing.len(), sum(&found.ongoing)), (1, SECOND));
    let open = request("00000000000000a1", 1, t0, &[(lock, 2 * SECOND)]);
    let requests = std::slice::from_ref(&open);
    let mut found = samples_of_requests(&seeded.store(), Kind::Wall, requests).await.unwrap();
    scale(&mut found.samples, found.ongoing, &found.totals, t0);
    assert_eq!(found.samples.len(), 1);
    let sample = &found.samples[0];
    assert_eq!((sample.weight_ns, sample.idle), (2 * SECOND, false));
    assert_eq!(sample.request.as_deref(), Some("00000000000000a1"));
    assert_eq!(sample.stack().unwrap().frames[0].function, "export");
    seeded.stop().await;
}

#[tokio::test]
async fn a_request_has_what_its_thread_did_meanwhile() {
    let (seeded, t0) = (Seeded::start().await, t0());
    stacks(&seeded, t0).await;
    let lock = State::LockWait;
    // Read at t0 + 5 ms, answered at t0 + 105 ms.
    let one = request("00000000000000a1", 4101, t0, &[(lock, 90 * MS), (State::Running, 10 * MS)]);
    let other = request("00000000000000a2", 4102, t0, &[(lock, 50 * MS)]);
    seeded.insert("requests", [&one, &other]).await;
    let rows = [
        wait(4101, t0 + 10 * MS, 80 * MS, lock, 80 * MS, 1),
        wait(4101, t0 - 40 * MS, 44 * MS, State::PollWait, 44 * MS, 1),
        // A quarter of it is before the answer.
        wait(4101, t0 + 95 * MS, 40 * MS, State::Sleep, 40 * MS, 1),
        wait(4102, t0 + 10 * MS, 45 * MS, lock, 45 * MS, 1),
    ];
    seeded.insert("off_cpu", &rows).await;
    seeded
        .insert("on_cpu", [tick(4101, t0 + 6 * MS, 2, None), tick(4101, t0 + 106 * MS, 2, None)])
        .await;

    let requests = std::slice::from_ref(&one);
    let mut found = samples_of_requests(&seeded.store(), Kind::Wall, requests).await.unwrap();
    let of = |state: State| {
        found.samples.iter().filter(|s| s.state == state).map(|s| s.weight_ns).sum::<u64>()
    };
    assert_eq!((of(lock), of(State::Running), of(State::Sleep)), (80 * MS, 10 * MS, 10 * MS));
    assert_eq!(of(State::PollWait), 0);
    assert!(found.samples.iter().all(|s| s.request.as_deref() == Some("00000000000000a1")));
    scale(&mut found.samples, found.ongoing, &found.totals, t0);
    assert_eq!(sum(&found.samples), one.handler_ns);

    let both = samples_of_requests(&seeded.store(), Kind::Lock, &[one.clone(), other.clone()])
        .await
        .unwrap();
    assert_eq!(sum(&both.samples), 125 * MS);

    let query = query(Kind::Wall, t0, t0 + SECOND);
    let (of_one, _) = timeline(&seeded.store(), &query, Some(requests)).await.unwrap();
    assert_eq!((of_one.requests.len(), of_one.samples.len()), (1, 3));
    assert_eq!(of_one.requests[0].start_time, t0 + 5 * MS);
    let (all, _) = timeline(&seeded.store(), &query, None).await.unwrap();
    assert_eq!((all.requests.len(), all.samples.len()), (2, 6));
    seeded.stop().await;
}

#[tokio::test]
async fn a_request_without_an_answer_is_known_as_far_as_it_has_come() {
    let (seeded, t0) = (Seeded::start().await, t0());
    stacks(&seeded, t0).await;
    let at = |ns: u64| {
        let open = request("00000000000000a1", 4101, t0, &[(State::LockWait, ns)]);
        Request { end: "open".to_owned(), status: 0, ..open }
    };
    seeded.insert("requests_open", [&at(SECOND), &at(4 * SECOND), &at(2 * SECOND)]).await;
    let lock = |tid, start, stack| ongoing(tid, start, SECOND, stack);
    let rows = [
        lock(4101, t0 + 6 * MS, 1),
        lock(4102, t0 - 3600 * SECOND, 1),
        ongoing(4103, t0 - 60 * SECOND, 61 * SECOND, 2),
        lock(4104, t0 + SECOND, 1),
        lock(4105, t0 + 5 * SECOND, 1),
    ];
    seeded.insert("off_cpu_ongoing", &rows).await;
    seeded.insert("off_cpu", [wait(4104, t0 + SECOND, 2 * SECOND, State::LockWait, 1, 1)]).await;

    let store = seeded.store();
    let found = request_by_id(&store, "00000000000000a1").await.unwrap().unwrap();
    assert_eq!((found.end.as_str(), found.handler_ns), ("open", 4 * SECOND));
    let all = requests_in_flight(&store, t0 + 4 * SECOND, 10).await.unwrap();
    assert_eq!(all, std::slice::from_ref(&found));
    assert!(requests_in_flight(&store, t0 + 9 * SECOND, 10).await.unwrap().is_empty());

    let evidence = evidence_for(&store, found.clone()).await.unwrap();
    let mut waits: Vec<_> = evidence.ongoing.iter().map(|w| (w.tid, w.duration_ns)).collect();
    waits.sort_unstable();
    // Neither the one last heard of long ago, nor the one that is over, nor the one that came after.
    let end = t0 + found.duration_ns;
    assert_eq!(waits, [(4101, end - (t0 + 6 * MS)), (4103, end - (t0 - 60 * SECOND))]);
    assert!(evidence.ongoing.iter().all(|wait| !wait.stack.frames.is_empty()));

    // The answer's row takes its place.
    let answered = request("00000000000000a1", 4101, t0, &[(State::LockWait, 5 * SECOND)]);
    seeded.insert("requests", [&answered]).await;
    let found = request_by_id(&store, "00000000000000a1").await.unwrap().unwrap();
    assert_eq!(found, answered);
    assert!(requests_in_flight(&store, t0 + 4 * SECOND, 10).await.unwrap().is_empty());
    assert!(evidence_for(&store, found).await.unwrap().ongoing.is_empty());
    seeded.stop().await;
}

/// An event loop serves both at once: no moment counts twice, and nothing is scaled.
#[tokio::test]
async fn requests_that_share_a_thread_share_its_time() {
    let (seeded, t0) = (Seeded::start().await, t0());
    let cells = [(State::PollWait, 100 * MS)];
    let shared =
        |id: &str, start: u64| Request { shared_thread: 1, ..request(id, 4101, start, &cells) };
    let requests = [shared("00000000000000b1", t0), shared("00000000000000b2", t0 + 50 * MS)];
    let rows = [wait(4101, t0, 200 * MS, State::PollWait, 200 * MS, 0)];
    seeded.insert("off_cpu", &rows).await;
    let found = samples_of_requests(&seeded.store(), Kind::Wall, &requests).await.unwrap();
    assert_eq!(sum(&found.samples), 150 * MS);
    assert!(found.totals.is_empty());
    seeded.stop().await;
}

#[tokio::test]
async fn requests_are_found_by_route_and_tables_tell_their_extent() {
    let (seeded, t0) = (Seeded::start().await, t0());
    let cells = [(State::Running, 10 * MS)];
    let rows: Vec<_> = (0..5)
        .map(|i| {
            let path = if i < 3 { "/export" } else { "/export/all" };
            Request {
                path: path.to_owned(),
                ..request(&format!("{i:016x}"), 4101, t0 + i * MS, &cells)
            }
        })
        .collect();
    seeded.insert("requests", &rows).await;
    let ask = async |method: &str, path: &str, limit: u64| {
        let filter = RequestFilter {
            query: query(Kind::Wall, t0, t0 + SECOND),
            method: method.to_owned(),
            path: path.to_owned(),
            unhandled: false,
            limit,
        };
        requests_for_flame(&seeded.store(), &filter).await.unwrap().len()
    };
    assert_eq!(ask("GET", "/export", 10).await, 3);
    assert_eq!(ask("", "", 10).await, 5);
    assert_eq!(ask("POST", "/export", 10).await, 0);
    assert_eq!(ask("", "/export", 2).await, 2);

    seeded.insert("on_cpu", [tick(4101, t0, 0, None), tick(4101, t0 + MS, 0, None)]).await;
    let extents = extents(&seeded.store(), Kind::Wall).await.unwrap();
    let of = |table: &str| extents.iter().find(|extent| extent.table == table).unwrap();
    assert_eq!((of("on_cpu").rows, of("on_cpu").first, of("on_cpu").last), (2, t0, t0 + MS));
    assert_eq!((of("off_cpu").rows, of("off_cpu").first), (0, 0));
    seeded.stop().await;
}

#[tokio::test]
async fn stalls_of_a_loop_are_split_by_its_ledger() {
    let (seeded, t0) = (Seeded::start().await, t0());
    stacks(&seeded, t0).await;
    let stall = |start: u64| {
        with(
            thread(4101, "loop"),
            json!({ "start_time": start, "duration_ns": 30 * MS, "kind": "epoll", "stack_id": 1,
                    "running_ns": 10 * MS, "gil_wait_ns": 20 * MS }),
        )
    };
    seeded.insert("loop_stall", [stall(t0), stall(t0 + 100 * MS)]).await;
    let found =
        samples_in_range(&seeded.store(), &query(Kind::Loop, t0, t0 + SECOND)).await.unwrap();
    let of = |state: State| found.samples.iter().find(|s| s.state == state).unwrap();
    assert_eq!(found.samples.len(), 2);
    assert_eq!((of(State::Running).weight_ns, of(State::GilWait).weight_ns), (20 * MS, 40 * MS));
    assert_eq!((of(State::GilWait).count, of(State::GilWait).thread.name.as_str()), (2, "loop"));
    seeded.stop().await;
}
