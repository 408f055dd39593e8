//! Queues in front of a server, and who let them grow.

use underspan_explain::{Evidence, Kind, Match, Relation, explain};
use underspan_model::State;

use crate::common::*;
use crate::{findings, of, only};

#[test]
fn a_full_pool_explains_the_handoff() {
    let explanation = explain(&queue()).unwrap();
    let [handoff] = explanation.findings.as_slice() else { panic!("{:#?}", explanation.findings) };
    assert_eq!((handoff.kind, handoff.relation), (Kind::Handoff, Relation::Caused));
    assert_eq!(handoff.ns, 3100 * MS);
    assert!(handoff.hidden_ns as f64 >= 0.95 * explanation.spans.hidden_ns as f64);
    let culprit = handoff.culprit.as_ref().unwrap();
    assert_eq!(
        (culprit.thread.as_str(), culprit.route.as_str()),
        ("all 4 worker threads", "GET /orders")
    );
    assert!(handoff.advice.contains("--threads"), "{}", handoff.advice);
    assert_eq!(explanation.spans.matched, Match::Traceparent);
    assert_eq!(explanation.spans.visible_ns, 197 * MS);
}

#[test]
fn one_idle_thread_and_the_pool_is_not_blamed() {
    let mut evidence = queue();
    let idle =
        Shape { id: 9, worker: 5, at_ms: 0, accept_queue: 0, handoff: 0, handler: 3, cells: &[] };
    evidence.siblings.push(request("/health", &idle));
    let handoff = only(&evidence);
    assert_eq!(handoff.relation, Relation::Unknown);
    assert!(handoff.culprit.is_none());
}

#[test]
fn a_pool_that_computes_needs_processes() {
    let mut evidence = queue();
    for sibling in &mut evidence.siblings {
        sibling.ledger[State::GilWait] = sibling.ledger[State::NetRead];
        sibling.ledger[State::NetRead] = 0;
    }
    let findings = findings(&evidence);
    assert!(findings[0].advice.contains("--workers"), "{}", findings[0].advice);
}

#[test]
fn an_acceptor_that_serves_is_blamed_for_the_accept_queue() {
    let mut slow = request(
        "/x",
        &Shape {
            id: 1,
            worker: 0,
            at_ms: 100,
            accept_queue: 400,
            handoff: 0,
            handler: 5,
            cells: &[],
        },
    );
    slow.accept_tid = slow.tid;
    let shape =
        Shape { id: 2, worker: 0, at_ms: 0, accept_queue: 0, handoff: 0, handler: 499, cells: &[] };
    let evidence = Evidence { siblings: vec![request("/slow", &shape)], ..of(slow) };
    let queue = only(&evidence);
    assert_eq!((queue.kind, queue.relation), (Kind::AcceptQueue, Relation::Caused));
    assert_eq!(queue.culprit.unwrap().route, "GET /slow");
    assert!(queue.advice.contains("--workers"));
}

#[test]
fn a_pool_that_is_stuck_on_one_peer_needs_no_more_threads() {
    let handoff = only(&stuck_pool());
    assert_eq!((handoff.kind, handoff.pattern), (Kind::Handoff, "pool_exhausted"));
    assert_eq!(handoff.culprit.unwrap().peer, "10.0.0.5:6379");
    assert!(handoff.text.contains("all 4 worker threads waited for 10.0.0.5:6379"));
    assert!(!handoff.advice.contains("--threads"), "{}", handoff.advice);

    let mut evidence = stuck_pool();
    evidence.waits.pop();
    assert_eq!(only(&evidence).pattern, "", "one thread was not");
}

/// Java sleeps and waits for a pool's connection on futexes too: one more need not wait there.
#[test]
fn a_pool_that_waits_on_futexes_may_need_threads() {
    let mut evidence = queue();
    for sibling in &mut evidence.siblings {
        sibling.ledger[State::LockWait] = sibling.ledger[State::NetRead];
        sibling.ledger[State::NetRead] = 0;
    }
    let findings = findings(&evidence);
    let told = "raise the worker threads to about 63 (gunicorn: --threads 63) unless they all wait \
                for one thing (a lock, a connection pool)";
    assert!(findings[0].advice.contains(told), "{}", findings[0].advice);
    assert!(!findings[0].advice.contains("more threads would wait"), "{}", findings[0].advice);
}

fn late(accept_queue: u64, handoff: u64) -> underspan_model::Request {
    let shape =
        Shape { id: 1, worker: 0, at_ms: 100, accept_queue, handoff, handler: 5, cells: &[] };
    request("/x", &shape)
}

#[test]
fn a_reader_that_was_woken_and_waited_for_the_gil_explains_the_handoff() {
    let slow = late(0, 100);
    // Woken at once: it waited for work, and then for the interpreter.
    let work = wait(&slow, State::LockWait, 0, 2);
    let evidence = Evidence {
        waits: vec![work, wait(&slow, State::GilWait, 2, 98)],
        gil_waits: vec![gil_wait(&slow, 2, 98, (4140, "cruncher"), 0)],
        ..of(slow)
    };
    let handoff = only(&evidence);
    assert_eq!((handoff.kind, handoff.relation), (Kind::Handoff, Relation::Caused));
    assert_eq!(handoff.culprit.unwrap().tid, 4140, "{}", handoff.text);
    assert!(handoff.text.contains("which took it up, was waiting for the GIL for 98.0 ms"));
    assert!(!handoff.text.contains("nothing recorded"), "{}", handoff.text);
}

#[test]
fn an_accepting_thread_that_was_woken_and_got_no_cpu_is_no_culprit() {
    let slow = late(100, 0);
    let mut polled = wait(&slow, State::PollWait, 0, 100);
    (polled.tid, polled.thread) = (4102, String::from("MainThread"));
    polled.runnable_ns = 99 * MS;
    let queue = only(&Evidence { waits: vec![polled.clone()], ..of(slow.clone()) });
    assert_eq!((queue.relation, queue.culprit), (Relation::Unknown, None));
    let told =
        "thread MainThread (4102), which accepts, was waiting for a CPU (run queue) for 99.0 ms";
    assert!(queue.text.contains(told), "{}", queue.text);
    assert!(queue.advice.contains("more CPUs"), "{}", queue.advice);

    // One that polled all the time and was not woken shows nothing.
    polled.runnable_ns = 0;
    let queue = only(&Evidence { waits: vec![polled], ..of(slow) });
    assert!(queue.text.ends_with("nothing recorded shows why"), "{}", queue.text);
}

#[test]
fn what_kept_the_accepting_thread_by_turns_is_told_and_is_nobodys_alone() {
    let mut slow = late(100, 0);
    slow.accept_tid = slow.tid;
    let evidence = Evidence {
        waits: vec![wait(&slow, State::GilWait, 0, 60), wait(&slow, State::NetRead, 62, 37)],
        gil_waits: vec![gil_wait(&slow, 0, 60, (4131, "janitor"), 60)],
        gc_pauses: vec![pause(&slow, 4131, "janitor", 0, 60)],
        ..of(slow)
    };
    let queue = only(&evidence);
    assert_eq!((queue.relation, &queue.culprit), (Relation::Unknown, &None), "{}", queue.text);
    let parts = [
        "waiting for a sibling thread's garbage collection for 60.0 ms (by thread janitor (4131))",
        "reading from a socket for 37.0 ms",
    ];
    assert!(parts.iter().all(|part| queue.text.contains(part)), "{}", queue.text);
}

#[test]
fn a_burst_needs_as_many_threads_as_come_at_once() {
    let shape = |id: u64, worker: u32, handoff: u64| Shape {
        id,
        worker,
        at_ms: 0,
        accept_queue: 0,
        handoff,
        handler: 300,
        cells: &[(State::Sleep, 300)],
    };
    let last = request("/x", &shape(1, 0, 600));
    let others = (0..5).map(|n| {
        let of_turn = u32::try_from(n % 2).unwrap();
        request("/x", &shape(10 + n, of_turn, n / 2 * 300))
    });
    let evidence = Evidence { siblings: others.collect(), ..of(last) };
    let handoff = findings(&evidence).into_iter().find(|f| f.kind == Kind::Handoff).unwrap();
    assert!(handoff.advice.contains("--threads 6"), "{} {}", handoff.text, handoff.advice);
    // In a second nothing else came: a rate by the second would be less than what can be served.
    assert!(handoff.text.contains("6 requests came at once; 2 threads"), "{}", handoff.text);
}

/// That so many are in the queue is no reason for as many threads: it has grown since there were too few.
#[test]
fn a_queue_that_grew_needs_as_many_threads_as_would_have_kept_it_empty() {
    let (every, handler, workers) = (50, 200, 2);
    let nth = |n: u64| {
        let read = n / workers * handler;
        let shape = Shape {
            id: 1 + n,
            worker: u32::try_from(n % workers).unwrap(),
            at_ms: n * every,
            accept_queue: 0,
            handoff: read.saturating_sub(n * every),
            handler,
            cells: &[(State::Sleep, 200)],
        };
        request("/x", &shape)
    };
    let evidence = Evidence { siblings: (0..23).map(nth).collect(), ..of(nth(23)) };
    let handoff = findings(&evidence).into_iter().find(|f| f.kind == Kind::Handoff).unwrap();
    assert!(handoff.advice.contains("--threads 4"), "{} {}", handoff.text, handoff.advice);
    // The first of the 13 ahead came 650 ms before.
    let came =
        "14 requests came within 650.0 ms; 2 threads at 200.0 ms each can serve 10.0 a second";
    assert!(handoff.text.contains(came), "{}", handoff.text);
}

/// Fewer than there are threads on average: what came at once needs more all the same.
#[test]
fn an_average_below_the_threads_does_not_ask_for_more_of_them() {
    let shape = |id: u64, worker: u32, handoff: u64| Shape {
        id,
        worker,
        at_ms: 0,
        accept_queue: 0,
        handoff,
        handler: 200,
        cells: &[(State::Sleep, 200)],
    };
    let last = request("/x", &shape(1, 0, 200));
    let siblings = vec![request("/x", &shape(10, 0, 0)), request("/x", &shape(11, 1, 0))];
    let evidence = Evidence { siblings, ..of(last) };
    let handoff = findings(&evidence).into_iter().find(|f| f.kind == Kind::Handoff).unwrap();
    assert!(handoff.text.contains("both worker threads in its process were"), "{}", handoff.text);
    assert!(handoff.advice.contains("3 requests would have been handled"), "{}", handoff.advice);
}

/// A request on worker 0 that kept its loop busy for 409 ms, in this state, from 10 ms before [`late`].
fn spun(state: State) -> (underspan_model::Request, underspan_model::LoopStall) {
    let shape = Shape {
        id: 2,
        worker: 0,
        at_ms: 90,
        accept_queue: 0,
        handoff: 0,
        handler: 409,
        cells: &[],
    };
    let spun = request("/spin", &shape);
    let mut stall = underspan_model::LoopStall {
        host: spun.host.clone(),
        pid: spun.pid,
        tid: spun.tid,
        thread: spun.thread.clone(),
        start_time: spun.start_time,
        duration_ns: 409 * MS,
        ..underspan_model::LoopStall::default()
    };
    stall.ledger[state] = 409 * MS;
    (spun, stall)
}

#[test]
fn a_loop_that_serves_one_at_a_time_is_advised_as_a_loop() {
    let accepted = {
        let slow = late(400, 0);
        underspan_model::Request { accept_tid: slow.tid, ..slow }
    };
    // Accepted by whomever, long ago.
    let kept_alive = late(0, 400);
    for slow in [accepted, kept_alive] {
        for state in [State::Running, State::Sleep] {
            let (spun, stall) = spun(state);
            let evidence =
                Evidence { siblings: vec![spun], stalls: vec![stall], ..of(slow.clone()) };
            let lag = only(&evidence);
            assert_eq!((lag.kind, lag.relation), (Kind::LoopLag, Relation::Caused), "{}", lag.text);
            let pattern = if state == State::Sleep { "blocking_call" } else { "" };
            assert_eq!(lag.pattern, pattern);
            assert!(lag.advice.contains("run_in_executor"), "{}", lag.advice);
            assert!(lag.text.contains("serving GET /spin"), "{}", lag.text);
            assert_eq!(lag.culprit.unwrap().route, "GET /spin");
        }
    }
}

#[test]
fn a_loop_that_accepts_for_others_is_advised_as_a_loop() {
    let (spun, stall) = spun(State::Running);
    let slow = underspan_model::Request { accept_tid: spun.tid, tid: 4117, ..late(400, 0) };
    let queue = only(&Evidence { siblings: vec![spun], stalls: vec![stall], ..of(slow) });
    assert_eq!((queue.kind, queue.relation), (Kind::AcceptQueue, Relation::Caused));
    assert!(queue.advice.contains("run_in_executor"), "{}", queue.advice);
}

/// An iteration that is too short to explain why it was late.
#[test]
fn a_loop_whose_iterations_do_not_explain_it_is_a_thread() {
    let (spun, mut stall) = spun(State::Running);
    stall.duration_ns = 200 * MS;
    let evidence = Evidence { siblings: vec![spun], stalls: vec![stall], ..of(late(0, 400)) };
    assert_eq!(only(&evidence).kind, Kind::Handoff);
}

/// As the handler's time that a quota takes: `throttled`, caused.
#[test]
fn a_quota_that_held_the_accepting_thread_back_is_to_blame() {
    let slow = late(100, 0);
    let mut row = wait(&slow, State::Throttled, 2, 97);
    (row.tid, row.thread) = (4102, String::from("MainThread"));
    let mut evidence = Evidence { waits: vec![row], process: quiet().process, ..of(slow) };
    let queue = only(&evidence);
    assert_eq!((queue.kind, queue.relation), (Kind::AcceptQueue, Relation::Caused));
    assert_eq!(queue.culprit.unwrap().cgroup, "/system.slice/shop.service");
    assert!(queue.text.contains("quota (/system.slice/shop.service, or one"), "{}", queue.text);
    assert!(queue.advice.starts_with("Raise the quota"), "{}", queue.advice);

    // The same in parts, and where a thread is late after it accepted.
    let mut second = evidence.waits[0].clone();
    evidence.waits[0].duration_ns = 50 * MS;
    (second.start_time, second.duration_ns) = (second.start_time + 52 * MS, 45 * MS);
    evidence.waits.push(second);
    assert_eq!(only(&evidence).relation, Relation::Caused);
    let request = evidence.request.as_mut().unwrap();
    (request.handoff_ns, request.accept_queue_ns) = (request.accept_queue_ns, 0);
    (request.accept_tid, evidence.waits[0].tid, evidence.waits[1].tid) = (4110, 4110, 4110);
    let queue = only(&evidence);
    assert_eq!((queue.kind, queue.relation), (Kind::Handoff, Relation::Caused));
    assert!(queue.advice.starts_with("Raise the quota"), "{}", queue.advice);
}

/// All workers were restarted at once: the connection waited for one of the next.
#[test]
fn a_process_that_was_started_after_the_connection_came_is_told() {
    let mut slow = late(1000, 0);
    slow.accept_tid = slow.tid;
    let mut process = quiet().process.unwrap();
    process.started = slow.start_time + 600 * MS;
    let mut evidence = Evidence { process: Some(process), ..of(slow.clone()) };
    let queue = only(&evidence);
    assert_eq!((queue.kind, queue.relation), (Kind::AcceptQueue, Relation::Coincided));
    assert_eq!(queue.culprit.as_ref().unwrap().pid, PID);
    let told = "Nobody accepted the connection for 1000.0 ms: the process that accepted it in the \
                end, gunicorn (4100), was started only 600.0 ms after it had come, and took 400.0 ms until \
                it accepted a first one";
    assert_eq!(queue.text, told);
    for option in ["--max-requests-jitter", "--preload", "--timeout", "--graceful-timeout"] {
        assert!(queue.advice.contains(option), "{}", queue.advice);
    }
    evidence.request.as_mut().unwrap().process = String::from("serve");
    evidence.process.as_mut().unwrap().cmdline.clear();
    evidence.process.as_mut().unwrap().process.clear();
    assert!(!only(&evidence).advice.contains("gunicorn"));
    evidence.process.as_mut().unwrap().process = String::from("gunicorn");

    // It accepted others before: what it did then is another thing.
    let shape = Shape {
        id: 2,
        worker: 0,
        at_ms: 750,
        accept_queue: 0,
        handoff: 0,
        handler: 320,
        cells: &[],
    };
    evidence.siblings = vec![request("/slow", &shape)];
    let queue = only(&evidence);
    assert_eq!((queue.relation, &queue.culprit), (Relation::Unknown, &None), "{}", queue.text);
    assert!(queue.text.contains("busy with 1 other request for 320.0 ms"), "{}", queue.text);
    assert!(queue.text.contains("was started only 600.0 ms after it had come"), "{}", queue.text);
    evidence.siblings.clear();

    // A process that forks for each connection has accepted it before.
    evidence.request.as_mut().unwrap().accept_tid = 4099;
    assert!(!only(&evidence).text.contains("was started"), "{}", only(&evidence).text);
    // One that was there before.
    evidence.request.as_mut().unwrap().accept_tid = slow.tid;
    evidence.process.as_mut().unwrap().started = slow.start_time - MS;
    assert!(!only(&evidence).text.contains("was started"), "{}", only(&evidence).text);
}

/// Puma accepts only when one of its threads is free: to keep the accepting thread free is no advice.
#[test]
fn an_accepting_thread_that_waits_for_a_worker_needs_more_of_them() {
    let mut slow = late(400, 0);
    (slow.accept_tid, slow.tid, slow.process) = (4102, 4111, String::from("puma"));
    let mut row = wait(&slow, State::LockWait, 0, 400);
    (row.tid, row.thread) = (4102, String::from("puma srv"));
    (row.waker_tid, row.holder_tid) = (4112, 4112);
    let shape = |id: u64, worker, at_ms| Shape {
        id,
        worker,
        at_ms,
        accept_queue: 0,
        handoff: 0,
        handler: 200,
        cells: &[],
    };
    let siblings = (0..4u32).map(|n| {
        let at_ms = if n < 2 { 100 } else { 301 };
        request("/sleep", &shape(10 + u64::from(n), 1 + n % 2, at_ms))
    });
    let mut evidence = Evidence { waits: vec![row], siblings: siblings.collect(), ..of(slow) };
    let queue = only(&evidence);
    assert_eq!((queue.relation, &queue.culprit), (Relation::Unknown, &None), "{}", queue.text);
    assert!(queue.text.contains("while 2 other threads of its process served 4 requests"));
    assert!(queue.advice.contains("puma: -t 3:3"), "{}", queue.advice);
    assert!(queue.advice.contains("GET /sleep"), "{}", queue.advice);
    assert!(!queue.advice.contains("nothing but accepting"), "{}", queue.advice);
    // Half of the time they were free.
    evidence.siblings.truncate(2);
    assert!(only(&evidence).advice.contains("Keep the accepting thread free"));
    // A lock that is held is another thing.
    evidence.siblings = vec![request("/sleep", &Shape { handler: 400, ..shape(10, 1, 100) })];
    assert!(only(&evidence).text.contains("while 1 other thread"));
    let request = evidence.request.clone().unwrap();
    let stack = acquiring(&[("accept", "/srv/app.py", 5)]);
    evidence.samples = vec![sample(&request, 4102, State::LockWait, 0, 400, stack)];
    assert_eq!(only(&evidence).culprit.unwrap().tid, 4112);
}

#[test]
fn a_request_that_was_read_may_wait_for_a_worker() {
    let others = [(2, 0, 300, 0), (3, 10, 310, 1), (4, 20, 600, 0), (5, 30, 610, 1)];
    let evidence = handed_on((1, 100, 605, 0), &others);
    let queue = only(&evidence);
    assert_eq!((queue.kind, queue.relation), (Kind::Handoff, Relation::Caused));
    assert_eq!((queue.parts[0].part, queue.ns), ("handler", 500 * MS));
    let told = "No worker was free for 500.0 ms after it was read: all 2 threads that answer requests were \
                busy, and waitress-0 (4200), which answered it in the end, answered GET /sleep (request \
                0000000000000004) until then";
    assert_eq!(queue.text, told);
    assert!(
        queue.advice.contains("More worker threads (waitress: --threads=N)"),
        "{}",
        queue.advice
    );
    assert_eq!(queue.culprit.unwrap().thread, "all 2 worker threads");

    // Another worker had nothing to do for a while.
    let some = only(&handed_on((1, 100, 605, 0), &others[..3]));
    assert_eq!(some.relation, Relation::Coincided, "{}", some.text);
    assert!(some.text.starts_with("Waited at least 500.0 ms for a worker"), "{}", some.text);
    assert_eq!(some.culprit.unwrap().tid, 4200);
}

/// Where it is not certain that a worker has one request at a time, nothing is said.
#[test]
fn threads_that_share_requests_are_no_workers() {
    let others = [(2, 0, 300, 0), (3, 10, 310, 1), (4, 20, 600, 0), (5, 30, 610, 1)];
    let evidence = handed_on((1, 100, 605, 0), &others);
    let request = evidence.request.clone().unwrap();
    let is_silent = |evidence: &Evidence| assert!(findings(evidence).is_empty());
    // The reader answers as well.
    let mut answers = evidence.clone();
    answers.siblings[1].sent_tid = request.tid;
    is_silent(&answers);
    // The worker reads as well.
    let mut reads = evidence.clone();
    reads.siblings[1].tid = request.sent_tid;
    is_silent(&reads);
    // The worker polls: it has many.
    let mut polls = evidence.clone();
    let mut row = wait(&request, State::PollWait, 20, 30);
    row.tid = request.sent_tid;
    polls.waits.push(row);
    is_silent(&polls);
    // Its answer came before this one was read, or it answered nothing else.
    is_silent(&handed_on((1, 100, 605, 0), &[(2, 0, 90, 0), (3, 10, 610, 1)]));
}
