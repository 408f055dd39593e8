//! What must be found, and what must not.

#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use underspan_explain::{Evidence, Finding, Kind, Match, Relation, explain};
use underspan_model::{Frame, FrameKind, LostEvents, Request, Sample, Stack, State};

fn findings(evidence: &Evidence) -> Vec<Finding> {
    explain(evidence).unwrap().findings
}

/// The only finding, so that nothing else is accused beside it.
fn only(evidence: &Evidence) -> Finding {
    let mut findings = findings(evidence);
    assert_eq!(findings.len(), 1, "{findings:#?}");
    findings.remove(0)
}

fn handler(cells: &[(State, u64)]) -> Request {
    let handler = 20 + cells.iter().map(|(_, ms)| ms).sum::<u64>();
    request(
        "/x",
        &Shape { id: 1, worker: 0, at_ms: 0, accept_queue: 0, handoff: 0, handler, cells },
    )
}

fn of(request: Request) -> Evidence {
    Evidence { request: Some(request), ..Evidence::default() }
}

/// A thread in a wait that is not over, at this line of the application.
fn stands(tid: u32, state: State, ms: u64, function: &str, line: u32) -> Sample {
    let frame = Frame {
        kind: FrameKind::Python,
        function: function.to_owned(),
        file: "/srv/shop/app.py".to_owned(),
        line,
        module: String::new(),
    };
    let own = handler(&[]);
    Sample {
        host: own.host,
        pid: own.pid,
        tid,
        thread: format!("thread-{tid}"),
        start_time: own.start_time,
        duration_ns: ms * MS,
        state,
        stack: Stack { frames: vec![frame], truncated: String::new() },
        ..Sample::default()
    }
}

#[test]
fn a_request_without_an_answer_tells_where_it_stands() {
    let request = Request { end: "open".to_owned(), ..handler(&[(State::LockWait, 4000)]) };
    let tid = request.tid;
    let mut idle = stands(77, State::LockWait, 90_000, "_worker", 81);
    idle.stack.frames[0].file = "/usr/lib/python3.11/concurrent/futures/thread.py".to_owned();
    let ongoing = vec![
        stands(78, State::Sleep, 4100, "refresh", 30),
        idle,
        Sample { pid: 1, ..stands(79, State::Sleep, 4100, "elsewhere", 1) },
        stands(tid, State::LockWait, 4000, "export", 88),
    ];
    let mut evidence = Evidence { ongoing, ..of(request) };
    let explanation = explain(&evidence).unwrap();
    let told: Vec<_> = explanation
        .standing
        .iter()
        .map(|it| (it.tid, it.state, it.ns / MS, it.place.as_ref().unwrap().words()))
        .collect();
    let expected = [
        (tid, State::LockWait, 4000, "export at app.py:88".to_owned()),
        (78, State::Sleep, 4100, "refresh at app.py:30".to_owned()),
    ];
    assert_eq!(told, expected);
    let lock = only(&evidence);
    assert_eq!((lock.kind, lock.relation), (Kind::LockWait, Relation::Unknown));
    assert!(lock.text.contains("nobody has released it yet"), "{}", lock.text);
    assert_eq!(lock.place.unwrap().words(), "export at app.py:88");
    // Without its own wait nothing is made up.
    evidence.ongoing.clear();
    assert!(explain(&evidence).unwrap().standing.is_empty());
    assert_eq!(only(&evidence).place, None);
}

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
fn a_collection_on_a_sibling_is_named() {
    let explanation = explain(&collection()).unwrap();
    let [gc] = explanation.findings.as_slice() else { panic!("{:#?}", explanation.findings) };
    assert_eq!((gc.kind, gc.relation, gc.ns), (Kind::GcWait, Relation::Caused, 2790 * MS));
    let culprit = gc.culprit.as_ref().unwrap();
    assert_eq!((culprit.tid, culprit.thread.as_str()), (4131, "report-job_0"));
    assert_eq!((culprit.generation, culprit.collected), (2, 1204));
    assert!(gc.advice.contains("gc.freeze()"));
    // The query's span shows the wait as if the database had been slow.
    assert_eq!(explanation.spans.masked_ns, 2790 * MS);
}

#[test]
fn a_collection_without_the_waits_rows_is_no_proof() {
    let mut evidence = collection();
    evidence.waits.clear();
    evidence.gil_waits.clear();
    assert_eq!(only(&evidence).relation, Relation::Coincided);
    evidence.gc_pauses.clear();
    assert_eq!(only(&evidence).relation, Relation::Unknown);
}

#[test]
fn a_short_collection_is_not_blamed_for_a_long_wait() {
    let mut evidence = collection();
    evidence.gc_pauses[0].duration_ns = 2000 * MS;
    let gc = only(&evidence);
    assert_ne!(gc.relation, Relation::Caused);
    assert!(gc.culprit.is_none());
}

#[test]
fn a_collection_explains_the_queues_it_fills() {
    let mut slow = request(
        "/quick",
        &Shape {
            id: 1,
            worker: 1,
            at_ms: 0,
            accept_queue: 900,
            handoff: 400,
            handler: 510,
            cells: &[(State::GcWait, 500)],
        },
    );
    slow.accept_tid = 4102;
    let mut acceptor = wait(&slow, State::GcWait, 0, 1300);
    acceptor.tid = 4102;
    let evidence = Evidence {
        waits: vec![acceptor, wait(&slow, State::GcWait, 1300, 500)],
        gc_pauses: vec![pause(&slow, 4131, "job", 0, 1800)],
        ..of(slow)
    };
    let gc = only(&evidence);
    assert_eq!((gc.kind, gc.relation, gc.ns), (Kind::GcWait, Relation::Caused, 1800 * MS));
    let parts: Vec<_> = gc.parts.iter().map(|p| p.part).collect();
    assert_eq!(parts, ["accept_queue", "handoff", "gc_wait"]);
}

#[test]
fn a_quiet_request_has_no_finding() {
    assert!(findings(&quiet()).is_empty());
}

#[test]
fn the_gil_holder_is_named_with_its_request() {
    let slow = handler(&[(State::GilWait, 300)]);
    let holder =
        Shape { id: 7, worker: 3, at_ms: 0, accept_queue: 0, handoff: 0, handler: 400, cells: &[] };
    let evidence = Evidence {
        gil_waits: vec![gil_wait(&slow, 10, 300, (4113, "ThreadPoolExecutor-0_3"), 0)],
        siblings: vec![request("/export", &holder)],
        ..of(slow)
    };
    let gil = only(&evidence);
    assert_eq!((gil.kind, gil.relation), (Kind::GilWait, Relation::Caused));
    let culprit = gil.culprit.unwrap();
    assert_eq!((culprit.tid, culprit.route.as_str()), (4113, "GET /export"));
    assert_eq!(culprit.request_id, "0000000000000007");
}

#[test]
fn gil_waits_that_rows_do_not_cover_have_no_holder() {
    let slow = handler(&[(State::GilWait, 300)]);
    let evidence =
        Evidence { gil_waits: vec![gil_wait(&slow, 10, 100, (4113, "x"), 0)], ..of(slow) };
    let gil = only(&evidence);
    assert_eq!(gil.relation, Relation::Unknown);
    assert!(gil.culprit.is_none());
}

#[test]
fn a_lock_names_the_thread_that_released_it() {
    let slow = handler(&[(State::LockWait, 250)]);
    let mut row = wait(&slow, State::LockWait, 10, 250);
    (row.waker_pid, row.waker_tid, row.waker_thread) = (PID, 4120, String::from("holder"));
    row.futex_addr = 0x7f00;
    let mut evidence = Evidence { waits: vec![row.clone()], ..of(slow.clone()) };
    let lock = only(&evidence);
    assert_eq!((lock.relation, lock.culprit.unwrap().tid), (Relation::Caused, 4120));

    // A row that was lost could have been of another thread's turn; one that was made up for is there.
    let lost = unknown().lost.remove(0);
    let untold = LostEvents { reason: String::from("untold"), ..lost.clone() };
    for (lost, relation) in [(lost, Relation::Coincided), (untold, Relation::Caused)] {
        evidence.lost = vec![lost];
        assert_eq!(only(&evidence).relation, relation);
    }
    evidence.lost.clear();

    // Another thread got the same lock in the middle of the wait.
    let mut other = wait(&slow, State::LockWait, 0, 200);
    other.tid = 4121;
    other.futex_addr = 0x7f00;
    evidence.waits.push(other);
    let lock = only(&evidence);
    assert_eq!(lock.relation, Relation::Unknown);
    assert!(lock.culprit.is_none());
}

#[test]
fn a_slow_peer_is_named_and_a_slow_client_told_apart() {
    for (peer, words) in [("10.0.0.9:5432", "the peer"), ("127.0.0.1:50112", "the client")] {
        let slow = handler(&[(State::NetRead, 400)]);
        let mut row = wait(&slow, State::NetRead, 10, 400);
        row.peer = peer.to_owned();
        let net = only(&Evidence { waits: vec![row], ..of(slow) });
        assert_eq!(net.culprit.unwrap().peer, peer);
        assert!(net.text.contains(words), "{}", net.text);
    }
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
fn each_state_has_its_kind() {
    let kinds = [
        (State::Running, Kind::Running),
        (State::GcRun, Kind::GcRun),
        (State::Runnable, Kind::Runnable),
        (State::Throttled, Kind::Throttled),
        (State::GilWait, Kind::GilWait),
        (State::GcWait, Kind::GcWait),
        (State::LockWait, Kind::LockWait),
        (State::NetRead, Kind::NetRead),
        (State::NetWrite, Kind::NetWrite),
        (State::NetConnect, Kind::NetConnect),
        (State::PollWait, Kind::PollWait),
        (State::DiskIo, Kind::DiskIo),
        (State::PageFault, Kind::PageFault),
        (State::Sleep, Kind::Sleep),
        (State::PipeIpc, Kind::PipeIpc),
        (State::ChildWait, Kind::ChildWait),
        (State::Other, Kind::Other),
    ];
    assert_eq!(kinds.map(|(state, _)| state), State::ALL);
    for (state, kind) in kinds {
        let finding = only(&of(handler(&[(state, 500)])));
        assert_eq!(finding.kind, kind);
        assert_eq!(kind.name(), state.name());
        assert_eq!(serde_json::to_value(kind).unwrap(), state.name());
    }
}

#[test]
fn an_event_loop_is_not_split() {
    let explanation = explain(&event_loop()).unwrap();
    assert_eq!(explanation.findings[0].kind, Kind::LoopLag);
    let parts: Vec<_> = explanation.parts.iter().map(|p| p.part).collect();
    assert_eq!(parts, ["accept_queue", "handoff", "handler"]);
}

#[test]
fn unknown_time_and_losses_are_told() {
    let explanation = explain(&unknown()).unwrap();
    assert_eq!(explanation.unknown.ns, 320 * MS);
    assert_eq!(explanation.unknown.unaccounted_ns, 20 * MS);
    assert_eq!(explanation.lost_events, 19);
}

/// The table counts stacks of the whole host, most of them of programs that have just begun.
#[test]
fn stacks_that_are_not_whole_are_told_if_they_could_tell_of_the_request() {
    let mut evidence = unknown();
    let request = evidence.request.clone().unwrap();
    let row = evidence.lost[0].clone();
    let of_host = |tracker: &str, reason: &str| LostEvents {
        tracker: tracker.to_owned(),
        reason: reason.to_owned(),
        count: 100,
        ..row.clone()
    };
    // Nor is anything missing where the ledger has made up for what the kernel did not tell.
    evidence.lost = vec![
        of_host("stack", "no_mapping"),
        of_host("stack", "unreadable"),
        of_host("offcpu", "missed"),
        of_host("ledger", "untold"),
    ];
    let cut = |tid, from_ms, reasons: &str| {
        let stack = Stack { truncated: reasons.to_owned(), ..python(&[("f", "a.py", 1)]) };
        sample(&request, tid, State::Sleep, from_ms, 10, stack)
    };
    let (own, stranger) = (request.tid, request.tid + 50);
    // Of somebody else, or before it began, or whole, or only not in order.
    evidence.samples = vec![
        cut(stranger, 400, "no_mapping"),
        sample(&request, own, State::Sleep, 410, 10, python(&[("f", "a.py", 1)])),
        cut(own, 420, "interleave"),
    ];
    evidence
        .samples
        .push(Sample { start_time: request.start_time - 20 * MS, ..cut(own, 0, "no_mapping") });
    let explanation = explain(&evidence).unwrap();
    assert_eq!((explanation.lost_events, explanation.lost), (0, vec![]));
    assert!(explanation.notes.iter().all(|note| !note.contains("frames")));

    evidence.samples.extend([cut(own, 430, "no_mapping"), cut(own, 440, "no_mapping, too_deep")]);
    let explanation = explain(&evidence).unwrap();
    let told: Vec<_> = explanation.lost.iter().map(|l| (l.reason.as_str(), l.count)).collect();
    assert_eq!(told, [("no_mapping", 2), ("too_deep", 1)]);
    assert!(explanation.notes.iter().any(|note| note.contains("outer frames")));

    // What never was a stack, and other trackers' reasons of the same name, are losses as ever.
    evidence.samples.clear();
    evidence.lost = vec![of_host("stack", "queue_full"), of_host("gil", "unreadable")];
    assert_eq!(
        explain(&evidence).unwrap().lost,
        [evidence.lost[1].clone(), evidence.lost[0].clone()]
    );
}

/// Whoever is to blame is asked where it was, too.
#[test]
fn a_culprits_stacks_count() {
    let mut evidence = collection();
    let request = evidence.request.clone().unwrap();
    let culprit = explain(&evidence).unwrap().findings[0].culprit.clone().unwrap();
    let stack = Stack { truncated: String::from("no_table"), ..Stack::default() };
    evidence.samples.push(sample(&request, culprit.tid, State::Running, 0, 10, stack));
    let lost = explain(&evidence).unwrap().lost;
    assert_eq!(
        lost.iter().map(|l| (l.reason.as_str(), l.count)).collect::<Vec<_>>(),
        [("no_table", 1)]
    );
}

#[test]
fn spans_matched_by_thread_alone_are_of_low_confidence() {
    let mut evidence = collection();
    evidence.request.as_mut().unwrap().trace_id.clear();
    let explanation = explain(&evidence).unwrap();
    assert_eq!(explanation.spans.matched, Match::Thread);
    assert!(explanation.notes.iter().any(|note| note.contains("low confidence")));
}

#[test]
fn json_has_the_tables_names() {
    let json = serde_json::to_value(explain(&queue()).unwrap()).unwrap();
    for field in ["request_id", "trace_id", "handoff_ns", "net_read_ns", "client_wait_ns", "parts"]
    {
        assert!(json.get(field).is_some(), "{field}");
    }
    // The request's own, and not its critical path.
    assert_eq!(json["path"], "/orders");
}

#[test]
fn a_locks_holder_is_named_with_its_line_and_its_request() {
    let lock = only(&held_lock());
    assert_eq!((lock.kind, lock.relation), (Kind::LockWait, Relation::Caused));
    assert_eq!(
        lock.text,
        "Waited 180.0 ms for a lock held by thread ThreadPoolExecutor-0_3 (4113) in json.dumps at \
         reports.py:88, serving GET /export"
    );
    assert_eq!(lock.place.unwrap().words(), "cart at cart.py:17");
    assert_eq!(lock.culprit.unwrap().place.unwrap().caller, "export");
}

#[test]
fn who_signals_a_condition_held_nothing() {
    let mut evidence = held_lock();
    evidence.samples[0].stack = python(&[
        ("cart", "/srv/shop/cart.py", 17),
        ("Event.wait", "/usr/lib/python3.11/threading.py", 629),
        ("Condition.wait", "/usr/lib/python3.11/threading.py", 327),
    ]);
    let text = only(&evidence).text;
    assert!(
        text.contains("a condition that thread ThreadPoolExecutor-0_3") && !text.contains("held")
    );
    // Without a stack nobody knows which it was.
    evidence.samples.clear();
    let text = only(&evidence).text;
    assert!(text.contains("a lock or condition that") && !text.contains("held"), "{text}");
}

#[test]
fn a_holder_that_was_mostly_nowhere_gets_no_line() {
    let mut evidence = held_lock();
    evidence.samples.truncate(1);
    let lock = only(&evidence);
    assert!(lock.culprit.unwrap().place.is_none());
    assert!(lock.text.ends_with("(4113), serving GET /export"), "{}", lock.text);
}

#[test]
fn many_threads_in_turn_for_one_lock_are_a_convoy() {
    let mut evidence = held_lock();
    assert_eq!(only(&evidence).pattern, "");
    let request = evidence.request.clone().unwrap();
    for (tid, ms) in [(4112, 60), (4114, 120), (4115, 170)] {
        let mut other = wait(&request, State::LockWait, 5, ms);
        other.tid = tid;
        other.futex_addr = evidence.waits[0].futex_addr;
        evidence.waits.push(other);
    }
    let lock = only(&evidence);
    assert_eq!(lock.pattern, "convoy");
    // The releaser had the lock only since the last of the others was given it.
    assert!(lock.culprit.is_none());
    assert!(
        lock.text.contains("3 turns") && lock.text.contains("4 threads want it"),
        "{}",
        lock.text
    );
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

#[test]
fn a_call_that_blocks_the_loop_is_named() {
    let lag = only(&stalled_loop());
    assert_eq!((lag.kind, lag.relation), (Kind::LoopLag, Relation::Caused));
    assert_eq!(lag.pattern, "blocking_call");
    assert!(lag.text.contains("asleep") || lag.text.contains("sleep"), "{}", lag.text);
    assert!(lag.text.contains("in events at views.py:31"), "{}", lag.text);

    let mut evidence = stalled_loop();
    evidence.stalls[0].duration_ns = 200 * MS;
    assert_eq!(only(&evidence).relation, Relation::Unknown, "it does not explain the lag");
}

#[test]
fn a_loop_that_waited_for_a_cpu_blames_nobody() {
    let mut evidence = stalled_loop();
    evidence.stalls[0].ledger = underspan_model::Ledger::default();
    evidence.stalls[0].ledger[State::Runnable] = 480 * MS;
    let lag = only(&evidence);
    assert_eq!((lag.relation, lag.culprit), (Relation::Unknown, None));
    assert_eq!(lag.pattern, "");
}
