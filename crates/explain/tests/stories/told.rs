//! What is told beside findings: where a request stands, what is not known, how sure a match is.

use underspan_explain::{Evidence, Kind, Match, Relation, explain};
use underspan_model::{Frame, FrameKind, LostEvents, Request, Sample, Stack, State};

use crate::common::*;
use crate::{findings, handler, of, only};

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
fn a_quiet_request_has_no_finding() {
    assert!(findings(&quiet()).is_empty());
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
fn unknown_time_and_losses_are_told() {
    let explanation = explain(&unknown()).unwrap();
    assert_eq!(explanation.unknown.ns, 320 * MS);
    assert_eq!(explanation.unknown.unaccounted_ns, 20 * MS);
    assert_eq!(explanation.unknown.not_split_ns, 0);
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

/// PostgreSQL waits for a row that another transaction keeps: with epoll, and no peer is slow.
#[test]
fn who_ended_a_wait_for_events_is_named_and_nobody_blamed() {
    let mut evidence = row_lock();
    let mut slow = evidence.request.clone().unwrap();
    let poll = only(&evidence);
    assert_eq!(
        (poll.kind, poll.relation, &poll.culprit),
        (Kind::PollWait, Relation::Unknown, &None)
    );
    let told = "until thread postgres (6953) of another process, serving GET /commit (request \
                0000000000000007), woke it";
    assert!(poll.text.contains(told), "{}", poll.text);
    assert!(poll.advice.contains("`underspan explain 0000000000000007`"), "{}", poll.advice);
    assert!(poll.advice.contains("pg_stat_activity.wait_event_type"), "{}", poll.advice);
    assert!(!poll.advice.contains("peer"), "{}", poll.advice);
    // Nobody knows who ended it.
    evidence.waits[0].waker_tid = 0;
    assert!(only(&evidence).advice.starts_with("Look at locks"), "{}", only(&evidence).advice);
    // Another server has no such locks; and what woke it may be nobody's request.
    slow.process = "serve".to_owned();
    (evidence.request, evidence.wakers) = (Some(slow), Vec::new());
    assert!(only(&evidence).advice.contains("what this handler polls"));
    evidence.waits[0].waker_tid = 6953;
    let poll = only(&evidence);
    assert!(poll.advice.ends_with("`underspan flame`"), "{}", poll.advice);
    // A peer that is known is told as ever.
    evidence.waits[0].peer = "10.0.0.9:5432".to_owned();
    let poll = only(&evidence);
    assert_eq!(poll.culprit.unwrap().peer, "10.0.0.9:5432");
    assert!(poll.advice.ends_with("or a lock held by another transaction"), "{}", poll.advice);
}
