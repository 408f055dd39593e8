//! Neighbours of every finding that blames: nearly the same rows, and nobody is to blame, or not for all
//! of it.

#![allow(clippy::unwrap_used)]

mod common;

use common::network::*;
use common::*;
use underspan_explain::{Evidence, Finding, Kind, Relation, explain};
use underspan_model::{
    Frame, FrameKind, LoopStall, LostEvents, Request, Stack, State, ThreadStates, Wait,
};

fn only(evidence: &Evidence) -> Finding {
    let mut findings = explain(evidence).unwrap().findings;
    assert_eq!(findings.len(), 1, "{findings:#?}");
    findings.remove(0)
}

fn blames_nobody(evidence: &Evidence) -> Finding {
    let finding = only(evidence);
    assert_ne!(finding.relation, Relation::Caused, "{finding:#?}");
    assert_eq!(finding.culprit, None, "{}", finding.text);
    finding
}

fn shape(id: u64, worker: u32, phases: [u64; 3]) -> Shape<'static> {
    let [accept_queue, handoff, handler] = phases;
    Shape { id, worker, at_ms: 0, accept_queue, handoff, handler, cells: &[] }
}

/// A handler that spent so many milliseconds in a state and hardly any in others.
fn spent(state: State, ms: u64) -> Request {
    request("/x", &Shape { cells: &[(state, ms)], ..shape(1, 0, [0, 0, ms + 20]) })
}

fn of(request: Request) -> Evidence {
    Evidence { request: Some(request), ..Evidence::default() }
}

// ── the interpreter ────────────────────────────────────────────────────────────────────────────────────

#[test]
fn turns_of_many_threads_are_not_one_that_does_not_let_go() {
    let slow = spent(State::GilWait, 300);
    let mut evidence =
        Evidence { gil_waits: vec![gil_wait(&slow, 10, 300, (4113, "cruncher"), 0)], ..of(slow) };
    assert!(only(&evidence).advice.contains("did not let go"), "the one had it all along");
    // Sixty turns of 5 ms, and it had most of them.
    evidence.gil_waits[0].holder_ns = 170 * MS;
    let finding = blames_nobody(&evidence);
    assert!(!finding.advice.contains("let go"), "{}", finding.advice);
}

#[test]
fn a_holder_is_blamed_for_no_more_than_it_can_have_had_within_the_request() {
    let slow = spent(State::GilWait, 300);
    // The wait began 300 ms before the handler did, and the holder may have had the GIL only then.
    let mut wait = gil_wait(&slow, 0, 600, (4113, "cruncher"), 0);
    wait.start_time -= 300 * MS;
    let mut evidence = Evidence { gil_waits: vec![wait], ..of(slow) };
    assert_eq!(only(&evidence).culprit.unwrap().tid, 4113, "all of it");
    evidence.gil_waits[0].holder_ns = 300 * MS;
    blames_nobody(&evidence);
}

/// The row is of the whole wait, in which the thread itself had no CPU.
#[test]
fn who_had_no_cpu_was_not_refused_the_gil() {
    let cells = [(State::GilWait, 300), (State::Runnable, 1000)];
    let slow = request("/x", &Shape { cells: &cells, ..shape(1, 0, [0, 0, 1320]) });
    let gil_waits = vec![gil_wait(&slow, 10, 1090, (4113, "cruncher"), 0)];
    let mut evidence = Evidence { gil_waits, ..of(slow) };
    let of_gil = |evidence: &Evidence| {
        let findings = explain(evidence).unwrap().findings;
        findings.into_iter().find(|f| f.kind == Kind::GilWait).unwrap()
    };
    assert!(!of_gil(&evidence).advice.contains("let go"));
    evidence.gil_waits[0].duration_ns += 10 * MS;
    evidence.gil_waits[0].holder_ns += 10 * MS;
    assert!(of_gil(&evidence).advice.contains("let go"));
}

/// Its last holder is in that table, not how long it held.
#[test]
fn a_row_of_waits_alone_says_of_nobody_that_he_held_the_gil() {
    let slow = spent(State::GilWait, 300);
    let mut row = wait(&slow, State::GilWait, 10, 300);
    (row.holder_tid, row.holder_thread) = (4113, String::from("cruncher"));
    blames_nobody(&Evidence { waits: vec![row], ..of(slow) });
}

#[test]
fn collections_while_nobody_waited_for_them_do_not_explain_a_queue() {
    let slow = request("/x", &shape(1, 1, [900, 400, 20]));
    let gc_pauses = vec![pause(&slow, 4131, "job", 0, 1300)];
    let findings = explain(&Evidence { gc_pauses, ..of(slow) }).unwrap().findings;
    assert_eq!(
        findings.iter().map(|f| f.kind).collect::<Vec<_>>(),
        [Kind::AcceptQueue, Kind::Handoff]
    );
    assert!(findings.iter().all(|f| f.relation == Relation::Unknown && f.culprit.is_none()));
}

#[test]
fn several_collectors_are_named_together() {
    let mut evidence = collection();
    let request = evidence.request.clone().unwrap();
    evidence.gc_pauses =
        vec![pause(&request, 4131, "report", 6, 1400), pause(&request, 4132, "sync", 1406, 1391)];
    let finding = only(&evidence);
    assert!(finding.text.starts_with("2 threads (report, sync) collected"), "{}", finding.text);
    assert_eq!(finding.culprit.unwrap().tid, 0);
}

// ── locks ──────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn who_puts_into_a_queue_held_no_lock() {
    let mut evidence = held_lock();
    let get = Frame {
        kind: FrameKind::Native,
        function: String::from("_queue_SimpleQueue_get_impl"),
        file: String::new(),
        line: 0,
        module: String::from("_queue.cpython-311-x86_64-linux-gnu.so"),
    };
    let frames = &mut evidence.samples[0].stack.frames;
    frames.insert(frames.len() - 1, get);
    let finding = only(&evidence);
    assert!(!finding.text.contains("held"), "{}", finding.text);
    assert!(finding.text.contains("a condition that thread"), "{}", finding.text);
}

#[test]
fn a_wait_that_its_time_limit_ended_has_no_holder() {
    let mut evidence = held_lock();
    evidence.waits[0].waker_tid = 0;
    evidence.samples[0].stack = acquiring(&[
        ("cart", "/srv/shop/cart.py", 17),
        ("Condition.wait", "/usr/lib/python3.11/threading.py", 331),
    ]);
    let finding = blames_nobody(&evidence);
    assert!(finding.text.contains("for a condition, which no thread was seen to release"));
}

#[test]
fn who_released_half_of_the_waits_is_not_blamed_for_all() {
    let mut evidence = held_lock();
    let half = 90 * MS;
    evidence.waits[0].duration_ns = half;
    let mut second = evidence.waits[0].clone();
    second.start_time += half;
    (second.waker_tid, second.waker_thread) = (0, String::new());
    evidence.waits.push(second);
    blames_nobody(&evidence);
}

/// Ready at last, it waited as long again for a CPU.
#[test]
fn who_released_a_lock_is_not_to_blame_for_the_cpu_that_was_lacked_then() {
    let mut evidence = held_lock();
    evidence.waits[0].runnable_ns = 90 * MS;
    blames_nobody(&evidence);
}

/// The table tells of the whole host, and of hours.
#[test]
fn what_was_lost_elsewhere_takes_nothing_from_the_proof() {
    let lost = || unknown().lost.remove(0);
    let elsewhere = LostEvents { host: String::from("web-2"), ..lost() };
    let earlier = LostEvents { start_time: T0 - 3_600_000 * MS, ..lost() };
    let evidence = Evidence { lost: vec![elsewhere, earlier], ..held_lock() };
    let finding = only(&evidence);
    assert_eq!(finding.relation, Relation::Caused, "{}", finding.text);
    assert!(!finding.text.contains("events were lost"), "{}", finding.text);
}

// ── the CPU ────────────────────────────────────────────────────────────────────────────────────────────

/// Waits for a CPU, each with the thread that ran on it last.
fn queued(waits: &[(u64, u32)]) -> Evidence {
    let total = waits.iter().map(|(ms, _)| ms).sum();
    let slow = spent(State::Runnable, total);
    let mut evidence = of(slow.clone());
    let mut from = 1;
    for &(ms, tid) in waits {
        let mut row = wait(&slow, State::Runnable, from, ms);
        (row.holder_tid, row.holder_thread) = (tid, format!("job-{tid}"));
        evidence.waits.push(row);
        from += ms;
    }
    evidence
}

#[test]
fn who_ran_last_in_a_long_wait_for_a_cpu_did_not_run_all_along() {
    let slices = queued(&[(4, 9001); 20]);
    assert_eq!(
        only(&slices).relation,
        Relation::Caused,
        "one slice at a time, it is known who ran"
    );
    let finding = only(&queued(&[(40, 9001), (40, 9001)]));
    assert_eq!(finding.relation, Relation::Coincided);
    assert!(finding.text.contains("others may have before"), "{}", finding.text);
}

#[test]
fn a_thread_of_a_run_queue_is_not_taken_for_one_of_the_process() {
    let finding = only(&queued(&[(4, 9001); 20]));
    assert_eq!(finding.culprit.unwrap().pid, 0);
}

/// Rows say whose thread it was since they have the column.
#[test]
fn who_ran_instead_is_named_with_its_process() {
    let mut slices = queued(&[(4, 9001); 20]);
    for wait in &mut slices.waits {
        (wait.holder_pid, wait.holder_process) = (9000, String::from("backup"));
    }
    let finding = only(&slices);
    assert!(
        finding.text.ends_with("; thread job-9001 of backup (pid 9000) ran instead"),
        "{}",
        finding.text
    );
    let culprit = finding.culprit.unwrap();
    assert_eq!((culprit.pid, culprit.tid, culprit.process.as_str()), (9000, 9001, "backup"));

    let own = slices.request.as_ref().unwrap().pid;
    for wait in &mut slices.waits {
        (wait.holder_pid, wait.holder_process) = (own, String::from("gunicorn"));
    }
    let finding = only(&slices);
    assert!(finding.text.ends_with("; thread job-9001 (9001) ran instead"), "{}", finding.text);
    assert_eq!(finding.culprit.unwrap().pid, own, "a thread that no other row tells of");
}

// ── the queues ─────────────────────────────────────────────────────────────────────────────────────────

/// A pool of which one thread is known, since it alone served lately.
fn late_dispatch(busy_ms: u64) -> Evidence {
    let slow = request("/x", &shape(1, 0, [0, 1000, 20]));
    let before = request("/report", &shape(2, 0, [0, 0, busy_ms]));
    Evidence { siblings: vec![before], ..of(slow) }
}

#[test]
fn a_reader_that_was_free_before_it_read_shows_that_the_dispatcher_was_late() {
    let finding = only(&late_dispatch(998));
    assert_eq!(finding.relation, Relation::Caused, "{}", finding.text);
    // Three quarters of the time busy; then nothing came to it.
    blames_nobody(&late_dispatch(780));
    let finding = blames_nobody(&late_dispatch(300));
    assert!(!finding.advice.contains("--threads"), "{}", finding.advice);
}

#[test]
fn an_acceptor_that_is_free_is_not_blamed_for_the_accept_queue() {
    let mut slow = request("/x", &shape(1, 0, [400, 0, 5]));
    slow.accept_tid = 4102;
    let mut polled = wait(&slow, State::PollWait, 0, 400);
    polled.tid = 4102;
    // It served, but for half of the time only.
    let mut served = request("/slow", &shape(2, 0, [0, 0, 200]));
    served.tid = 4102;
    blames_nobody(&Evidence { waits: vec![polled], siblings: vec![served], ..of(slow) });
}

/// Who ended the wait of the accepting thread is not who had the interpreter all along.
#[test]
fn the_last_of_many_holders_did_not_keep_the_accepting_thread() {
    let slow = request("/x", &shape(1, 0, [400, 0, 5]));
    let mut row = wait(&slow, State::GilWait, 0, 400);
    (row.tid, row.holder_tid, row.holder_thread) = (4102, 4113, String::from("cruncher"));
    let mut gil = gil_wait(&slow, 0, 400, (4113, "cruncher"), 0);
    (gil.tid, gil.holder_ns) = (4102, 5 * MS);
    let finding =
        Evidence { waits: vec![row.clone()], gil_waits: vec![gil.clone()], ..of(slow.clone()) };
    assert!(blames_nobody(&finding).text.contains("waiting for the GIL"));
    gil.holder_ns = 400 * MS;
    let finding = only(&Evidence { waits: vec![row], gil_waits: vec![gil], ..of(slow) });
    assert_eq!(finding.culprit.unwrap().tid, 4113, "it had it all along");
}

/// It waited for its turn like the request did.
#[test]
fn the_accepting_thread_is_not_to_blame_for_having_had_no_cpu() {
    let slow = request("/x", &shape(1, 0, [400, 0, 5]));
    let mut row = wait(&slow, State::Runnable, 0, 400);
    row.tid = 4102;
    blames_nobody(&Evidence { waits: vec![row], ..of(slow) });
}

/// What it served until the connection came, it does not serve any longer.
#[test]
fn a_request_that_was_just_over_is_not_what_kept_the_accepting_thread() {
    let mut slow = request("/x", &shape(1, 0, [400, 0, 5]));
    slow.accept_tid = slow.tid;
    let before = request("/report", &shape(2, 0, [0, 0, 4]));
    let row = wait(&slow, State::NetRead, 4, 396);
    let place =
        sample(&slow, slow.tid, State::LockWait, 0, 4, python(&[("report", "/srv/app.py", 7)]));
    let evidence =
        Evidence { waits: vec![row], siblings: vec![before], samples: vec![place], ..of(slow) };
    let culprit = only(&evidence).culprit.unwrap();
    assert_eq!((culprit.route.as_str(), &culprit.place), ("", &None), "{culprit:?}");
}

/// A dispatcher that waits for the interpreter when it has handed the request on holds nobody up.
#[test]
fn who_was_late_after_the_reader_was_woken_was_not_in_its_way() {
    let slow = request("/x", &shape(1, 0, [0, 100, 5]));
    let mut dispatcher = wait(&slow, State::GilWait, 2, 98);
    (dispatcher.tid, dispatcher.thread) = (4102, String::from("MainThread"));
    let mut gil = gil_wait(&slow, 2, 98, (4140, "cruncher"), 0);
    gil.tid = 4102;
    let mut woken = wait(&slow, State::LockWait, 0, 100);
    woken.runnable_ns = 98 * MS;
    let evidence = Evidence { waits: vec![dispatcher, woken], gil_waits: vec![gil], ..of(slow) };
    let finding = blames_nobody(&evidence);
    assert!(finding.text.contains("waiting for a CPU"), "{}", finding.text);
    assert!(!finding.text.contains("cruncher"), "{}", finding.text);
}

/// What it was blocked for first is a small part of it.
#[test]
fn an_accepting_thread_that_got_no_cpu_was_not_reading() {
    let slow = request("/x", &shape(1, 0, [400, 0, 5]));
    let mut row = wait(&slow, State::NetRead, 0, 400);
    (row.tid, row.runnable_ns) = (4102, 350 * MS);
    let mut evidence = Evidence { waits: vec![row], ..of(slow) };
    let finding = blames_nobody(&evidence);
    assert!(finding.text.contains("(run queue) for 350.0 ms"), "{}", finding.text);
    evidence.waits[0].runnable_ns = 0;
    assert_eq!(only(&evidence).culprit.unwrap().tid, 4102, "it read all along");
}

/// Threads that accept by turns wait for theirs in what looks like a lock.
#[test]
fn who_gave_a_thread_its_turn_to_accept_held_nothing() {
    let slow = request("/x", &shape(1, 0, [400, 0, 5]));
    let mut row = wait(&slow, State::LockWait, 0, 400);
    (row.tid, row.holder_tid, row.holder_thread) = (4102, 4113, String::from("worker"));
    let mut evidence = Evidence { waits: vec![row], ..of(slow.clone()) };
    blames_nobody(&evidence);
    let stack = acquiring(&[("accept", "/srv/app.py", 5)]);
    evidence.samples = vec![sample(&slow, 4102, State::LockWait, 0, 400, stack)];
    assert_eq!(only(&evidence).culprit.unwrap().tid, 4113, "it was a lock, and held");
    evidence.waits[0].holder_tid = 0;
    blames_nobody(&evidence);
}

/// It accepted the connection, left it to the pool, and was the one that came to take it.
#[test]
fn a_thread_that_waited_for_work_did_not_block_between_accept_and_read() {
    let mut slow = request("/x", &shape(1, 0, [0, 400, 5]));
    slow.accept_tid = slow.tid;
    let row = wait(&slow, State::LockWait, 0, 400);
    let mut evidence = Evidence { waits: vec![row], ..of(slow.clone()) };
    blames_nobody(&evidence);
    let stack = acquiring(&[("limit", "/srv/app.py", 9)]);
    evidence.samples = vec![sample(&slow, slow.tid, State::LockWait, 0, 400, stack)];
    assert_eq!(only(&evidence).culprit.unwrap().tid, slow.tid, "a lock in between");
}

/// More threads would not have read it sooner.
#[test]
fn a_pool_is_not_to_blame_for_a_request_that_was_sent_behind_another() {
    let mut evidence = late_dispatch(998);
    evidence.request.as_mut().unwrap().conn_request = 1;
    let finding = only(&evidence);
    assert!(finding.text.contains("on its connection was not answered yet"), "{}", finding.text);
    assert_eq!(finding.culprit.unwrap().route, "GET /report");
    assert!(!finding.advice.contains("--workers"), "{}", finding.advice);
    assert!(only(&pipelined()).text.contains("on its connection was not answered yet"));
    // Another connection's requests keep nobody but the thread; nothing tells Unix sockets apart.
    for (own, before) in [("127.0.0.1:50112", "127.0.0.1:50113"), ("unix", "unix")] {
        evidence.request.as_mut().unwrap().peer = own.to_owned();
        evidence.siblings[0].peer = before.to_owned();
        let finding = only(&evidence);
        assert!(finding.text.contains("the one worker thread"), "{}", finding.text);
    }
}

/// A second's average says nothing of a tenth of it.
#[test]
fn what_a_process_used_of_the_cpus_is_of_the_seconds_that_were_counted() {
    let slow = spent(State::Runnable, 80);
    let mut second = ThreadStates {
        host: slow.host.clone(),
        pid: slow.pid,
        tid: slow.tid,
        ns_pid: slow.ns_pid,
        ns_tid: slow.ns_tid,
        thread: slow.thread.clone(),
        process: slow.process.clone(),
        start_time: slow.start_time,
        duration_ns: 1000 * MS,
        ledger: slow.ledger,
    };
    second.ledger[State::Running] = 200 * MS;
    let finding = only(&Evidence { thread_states: vec![second], ..of(slow) });
    assert!(
        finding.text.contains("in the 1000.0 ms recorded around it its own process used 0.2 CPUs"),
        "{}",
        finding.text
    );
}

/// Native frames, the outermost first.
fn native(functions: &[&str]) -> Stack {
    let frame = |function: &&str| Frame {
        kind: FrameKind::Native,
        function: (*function).to_owned(),
        file: String::new(),
        line: 0,
        module: String::from("service"),
    };
    Stack { frames: functions.iter().map(frame).collect(), truncated: String::new() }
}

/// Go wakes threads as there are goroutines to run: who wakes one has released nothing.
#[test]
fn a_thread_that_had_nothing_to_run_did_not_wait_for_a_lock() {
    let slow = spent(State::LockWait, 300);
    let mut row = wait(&slow, State::LockWait, 10, 300);
    (row.waker_tid, row.waker_thread) = (4113, String::from("service"));
    let park = ["runtime.mcall", "runtime.schedule", "runtime.findRunnable", "runtime.stopm"];
    let parked = native(&[park.as_slice(), &["runtime.futexsleep", "runtime.futex"]].concat());
    let samples = vec![sample(&slow, slow.tid, State::LockWait, 10, 300, parked)];
    let mut evidence = Evidence { waits: vec![row], samples, ..of(slow) };
    let finding = blames_nobody(&evidence);
    assert!(finding.text.contains("without a goroutine to run"), "{}", finding.text);
    assert!(finding.advice.contains("--kind goroutine"), "{}", finding.advice);
    // A mutex is one in any language.
    evidence.samples[0].stack = native(&["main", "pthread_mutex_lock"]);
    assert_eq!(only(&evidence).culprit.unwrap().tid, 4113);
    // Most of the time tells.
    let slow = evidence.request.clone().unwrap();
    let parked = native(&["start", "tokio::runtime::scheduler::multi_thread::park::Parker::park"]);
    let briefly = sample(&slow, slow.tid, State::LockWait, 10, 140, parked);
    evidence.samples[0].start_time += 140 * MS;
    evidence.samples[0].duration_ns -= 140 * MS;
    evidence.samples.push(briefly);
    assert_eq!(only(&evidence).culprit.unwrap().tid, 4113);
}

/// Of Go's threads each runs many goroutines: what one did while a request went on is its own only if its stack is.
#[test]
fn what_a_thread_of_go_computes_is_not_the_requests_unless_its_stack_shows_it() {
    let slow = spent(State::Running, 300);
    let ran = |function: &'static str| native(&["runtime.goexit.abi0", function, "main.compute"]);
    let sampled = |function| sample(&slow, slow.tid, State::Running, 0, 300, ran(function));
    let mut evidence = Evidence { samples: vec![sampled("main.burn")], ..of(slow.clone()) };
    let finding = blames_nobody(&evidence);
    assert!(finding.text.contains("Go's scheduler"), "{}", finding.text);
    assert!(finding.advice.contains("--kind goroutine"), "{}", finding.advice);
    evidence.samples = vec![sampled("net/http.(*conn).serve")];
    assert_eq!(only(&evidence).relation, Relation::Caused);

    // That somebody else is Go says nothing of this process.
    let mut other = sampled("main.burn");
    other.pid += 1;
    evidence.samples = vec![other];
    assert_eq!(only(&evidence).relation, Relation::Caused);

    // A lock without a stack of its own: others show what runs there.
    let slow = spent(State::LockWait, 300);
    let mut row = wait(&slow, State::LockWait, 10, 300);
    (row.waker_tid, row.waker_thread) = (4113, String::from("service"));
    let elsewhere = sample(&slow, 4113, State::Running, 10, 300, ran("main.burn"));
    let evidence = Evidence { waits: vec![row], samples: vec![elsewhere], ..of(slow) };
    blames_nobody(&evidence);
}

/// Free threads are no goroutines' threads, and a thread that several requests were read on is no event loop.
#[test]
fn go_has_neither_a_pool_of_threads_nor_an_event_loop() {
    let late = request("/x", &shape(1, 0, [0, 300, 20]));
    for shared_thread in [0, 1] {
        let late = Request { shared_thread, ..late.clone() };
        let stack = native(&["runtime.mcall", "runtime.park_m"]);
        let samples = vec![sample(&late, late.tid, State::LockWait, 0, 300, stack)];
        let free = request("/y", &shape(2, 1, [0, 0, 5]));
        let finding = blames_nobody(&Evidence { samples, siblings: vec![free], ..of(late) });
        assert_eq!(finding.kind, Kind::Handoff);
        let said = format!("{} {}", finding.text, finding.advice);
        for wrong in ["were free", "too few", "event loop", "gunicorn", "run_in_executor"] {
            assert!(!said.contains(wrong), "{said}");
        }
    }
}

/// It has a connection of the pool for as long as the one before had it, and hands it on: who waited before is no
/// reason to wait.
#[test]
fn who_signals_a_condition_after_waiting_for_it_itself_is_blamed_for_no_more_than_the_rest() {
    let slow = spent(State::LockWait, 760);
    let mut row = wait(&slow, State::LockWait, 10, 760);
    (row.waker_tid, row.waker_thread) = (4113, String::from("worker"));
    let mut own = wait(&slow, State::LockWait, 0, 390);
    own.tid = 4113;
    let mut evidence = Evidence { waits: vec![row, own], ..of(slow.clone()) };
    let finding = blames_nobody(&evidence);
    let told = "worker (4113) released after it had waited itself for 380.0 ms";
    assert!(finding.text.contains(told), "{}", finding.text);
    evidence.waits[1].duration_ns = 100 * MS;
    assert_eq!(only(&evidence).culprit.unwrap().tid, 4113);
    // Nearly all the time.
    evidence.waits[1].duration_ns = 750 * MS;
    let finding = blames_nobody(&evidence);
    assert!(finding.text.contains("after it had waited itself"), "{}", finding.text);

    // It waited for somebody's answer, outside any request: that of the work which this one waited for.
    let receives = python(&[
        ("Pool._handle_results", "/usr/lib/python3.11/multiprocessing/pool.py", 579),
        ("Connection._recv", "/usr/lib/python3.11/multiprocessing/connection.py", 395),
    ]);
    evidence.waits.truncate(1);
    evidence.samples = vec![sample(&slow, 4113, State::PipeIpc, 0, 770, receives)];
    let finding = blames_nobody(&evidence);
    assert!(finding.text.contains("after it had waited itself"), "{}", finding.text);
}

#[test]
fn a_loop_without_events_is_not_what_the_handler_polls() {
    let slow = spent(State::PollWait, 300);
    let stack = python(&[
        ("main", "/srv/app.py", 31),
        ("BaseEventLoop._run_once", "/usr/lib/python3.11/asyncio/base_events.py", 1884),
        ("EpollSelector.select", "/usr/lib/python3.11/selectors.py", 468),
    ]);
    let samples = vec![sample(&slow, slow.tid, State::PollWait, 10, 300, stack)];
    let waits = vec![wait(&slow, State::PollWait, 10, 300)];
    let mut evidence = Evidence { waits, samples, ..of(slow) };
    let finding = blames_nobody(&evidence);
    assert!(finding.text.contains("an event loop without events"), "{}", finding.text);
    assert!(finding.advice.contains("awaits"), "{}", finding.advice);
    evidence.samples[0].stack = python(&[("poll", "/srv/app.py", 31)]);
    assert!(blames_nobody(&evidence).text.starts_with("Waited for events"));
}

// ── sockets ────────────────────────────────────────────────────────────────────────────────────────────

fn two_peers(state: State) -> Evidence {
    let mut evidence = waited(state, 400);
    evidence.waits[0].duration_ns = 200 * MS;
    let mut other: Wait = evidence.waits[0].clone();
    other.start_time += 200 * MS;
    (other.local, other.peer) = (String::from("10.0.0.1:40002"), String::from("10.0.0.3:6379"));
    evidence.waits.push(other);
    evidence
}

#[test]
fn of_two_peers_neither_is_blamed_for_both() {
    for state in [State::NetRead, State::NetWrite, State::NetConnect] {
        blames_nobody(&two_peers(state));
    }
}

/// The first was ready for as long as it had been waited for, and then no CPU was free.
#[test]
fn a_peer_is_not_to_blame_for_the_cpu_that_was_lacked_when_it_had_answered() {
    let mut evidence = two_peers(State::NetRead);
    let request = evidence.request.as_mut().unwrap();
    request.handler_ns += 200 * MS;
    request.duration_ns += 200 * MS;
    request.ledger[State::Runnable] = 200 * MS;
    evidence.waits[0].duration_ns += 200 * MS;
    evidence.waits[0].runnable_ns = 200 * MS;
    evidence.waits[1].start_time += 200 * MS;
    let findings = explain(&evidence).unwrap().findings;
    let read = findings.iter().find(|finding| finding.kind == Kind::NetRead).unwrap();
    assert_eq!((read.relation, &read.culprit), (Relation::Unknown, &None), "{}", read.text);
}

/// A client that asks for several things at the same time needs as many connections, pool or not.
#[test]
fn connections_that_are_opened_at_once_are_not_opened_again() {
    let mut evidence = connection_per_query();
    for (n, connect) in (0..).zip(&mut evidence.connects) {
        connect.start_time = T0 + n * MS;
        connect.duration_ns = 100 * MS;
        connect.reconnect_ns = if n == 0 { 0 } else { MS };
    }
    let findings = explain(&evidence).unwrap().findings;
    assert!(findings.iter().all(|finding| finding.kind != Kind::Unpooled), "{findings:#?}");
}

#[test]
fn of_two_ways_neither_lost_it_all() {
    let mut evidence = two_peers(State::NetRead);
    let mut other = loss("rto", 210, 200);
    (other.local, other.peer) = (String::from("10.0.0.1:40002"), String::from("10.0.0.3:6379"));
    evidence.losses = vec![loss("rto", 10, 200), other];
    assert_eq!(blames_nobody(&evidence).kind, Kind::Retransmission);
}

#[test]
fn a_receiver_is_not_said_to_be_slow_to_answer() {
    for (peer, state, words) in [
        (PEER, State::NetWrite, "the peer 10.0.0.2:8001 was slow to take them"),
        ("127.0.0.1:50112", State::NetWrite, "the client 127.0.0.1:50112 was slow to take them"),
        ("127.0.0.1:50112", State::NetRead, "the client 127.0.0.1:50112 was slow to send"),
        ("127.0.0.1:50112", State::PollWait, "was slow to send, or to take what it was sent"),
    ] {
        let mut evidence = waited(state, 400);
        evidence.waits[0].peer = peer.to_owned();
        let finding = only(&evidence);
        assert!(finding.text.contains(words), "{}", finding.text);
    }
}

/// Containers of many hosts have the same addresses.
#[test]
fn a_full_queue_of_the_same_address_on_another_host_is_no_proof() {
    let mut evidence = full_queue();
    evidence.listeners = vec![listener(PEER, 3, 0)];
    assert_eq!(only(&evidence).relation, Relation::Caused, "it was accepted there");
    evidence.accepts.clear();
    let finding = only(&evidence);
    assert_eq!((finding.kind, finding.relation), (Kind::AcceptQueueFull, Relation::Coincided));
    assert_eq!(finding.culprit.unwrap().pid, 0);
}

// ── storage, sleep, children ───────────────────────────────────────────────────────────────────────────

#[test]
fn what_the_handler_asked_for_has_no_culprit() {
    for state in [
        State::DiskIo,
        State::PageFault,
        State::Sleep,
        State::ChildWait,
        State::PipeIpc,
        State::PollWait,
        State::Other,
    ] {
        let slow = spent(state, 400);
        let row = wait(&slow, state, 10, 400);
        assert_eq!(only(&Evidence { waits: vec![row], ..of(slow) }).culprit, None, "{state:?}");
    }
}

// ── event loops ────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn many_iterations_are_not_the_longest_ones_fault() {
    let mut evidence = stalled_loop();
    let stall = evidence.stalls.remove(0);
    let part = |n: u64| {
        let mut part = LoopStall {
            start_time: stall.start_time + n * 120 * MS,
            duration_ns: 120 * MS,
            ..stall.clone()
        };
        part.ledger = underspan_model::Ledger::default();
        part.ledger[State::Sleep] = 120 * MS;
        part
    };
    evidence.stalls = (0..4).map(part).collect();
    let finding = blames_nobody(&evidence);
    assert!(finding.text.contains("4 iterations took long"), "{}", finding.text);
    assert_eq!((finding.pattern, finding.evidence_rows), ("", 4));
}

#[test]
fn an_iteration_that_did_several_things_is_no_blocking_call() {
    let mut evidence = stalled_loop();
    let ledger = &mut evidence.stalls[0].ledger;
    *ledger = underspan_model::Ledger::default();
    ledger[State::Sleep] = 180 * MS;
    ledger[State::Runnable] = 160 * MS;
    ledger[State::Running] = 140 * MS;
    assert_eq!(blames_nobody(&evidence).pattern, "");
}

/// Whoever held the interpreter did for a part of it.
#[test]
fn who_held_a_loop_up_for_a_third_of_an_iteration_is_not_blamed_for_all_of_it() {
    let mut evidence = stalled_loop();
    let stall = &mut evidence.stalls[0];
    (stall.culprit_tid, stall.culprit_thread) = (4140, String::from("cruncher"));
    stall.ledger = underspan_model::Ledger::default();
    stall.ledger[State::GilWait] = 300 * MS;
    stall.ledger[State::Running] = 180 * MS;
    assert_eq!(only(&evidence).culprit.unwrap().tid, 4140, "for most of it");
    let ledger = &mut evidence.stalls[0].ledger;
    ledger[State::GilWait] = 180 * MS;
    ledger[State::Running] = 160 * MS;
    ledger[State::Sleep] = 140 * MS;
    let finding = blames_nobody(&evidence);
    assert!(!finding.text.contains("cruncher"), "{}", finding.text);
}
