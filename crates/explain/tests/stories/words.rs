//! Words that must hold for every program and every host, whatever is not recorded of them.

use underspan_explain::{Evidence, Kind, Relation, explain};
use underspan_model::{Frame, FrameKind, Request, Stack, State};

use crate::common::network::{busy_host, own_queue_full};
use crate::common::*;
use crate::{findings, handler, of, only};

#[test]
fn of_cpus_only_those_that_it_may_use_were_not_free() {
    let slow = handler(&[(State::Runnable, 500)]);
    let row = wait(&slow, State::Runnable, 10, 500);
    let runnable = only(&Evidence { waits: vec![row], ..of(slow) });
    assert_eq!(runnable.kind, Kind::Runnable);
    assert!(runnable.text.contains("no CPU that it may use was free"), "{}", runnable.text);
    for pin in ["taskset", "cpuset.cpus"] {
        assert!(runnable.advice.contains(pin), "{}", runnable.advice);
    }
}

/// Thousands of wake-ups of some microseconds each, on CPUs that may all be idle.
#[test]
fn waits_without_rows_do_not_show_that_cpus_were_lacking() {
    let slow = handler(&[(State::Runnable, 200)]);
    let told =
        |rows: Vec<underspan_model::Wait>| only(&Evidence { waits: rows, ..of(slow.clone()) });
    let short = told(vec![wait(&slow, State::Runnable, 10, 2)]);
    assert_eq!((short.relation, &short.culprit), (Relation::Unknown, &None));
    assert!(short.text.contains("in at least 198 of them"), "{}", short.text);
    let said = format!("{} {}", short.text, short.advice);
    assert!(!said.contains("no CPU that it may use") && !said.contains("taskset"), "{said}");
    assert!(short.advice.contains("larger round trips"), "{}", short.advice);

    // Woken from other waits, and then without a CPU for long.
    let mut woken = wait(&slow, State::Sleep, 0, 190);
    woken.runnable_ns = 190 * MS;
    let long = told(vec![woken]);
    assert!(long.text.contains("no CPU that it may use was free for 200.0 ms"), "{}", long.text);
    // As far as rows go.
    let part = told(vec![wait(&slow, State::Runnable, 10, 120)]);
    assert!(part.text.contains("120.0 ms of it in waits of a millisecond"), "{}", part.text);

    // Rows that were lost cannot be counted as waits that have none.
    let lost = vec![unknown().lost.remove(0)];
    let lost = only(&Evidence { lost, ..of(slow.clone()) });
    assert!(!lost.text.contains("at least"), "{}", lost.text);
    assert!(!lost.text.contains("no CPU that it may use"), "{}", lost.text);
}

#[test]
fn thousands_of_short_waits_for_a_socket_are_many_small_queries() {
    let mut slow = handler(&[(State::NetRead, 200)]);
    let mut row = wait(&slow, State::NetRead, 10, 3);
    row.peer = "10.0.0.2:5432".to_owned();
    let mut evidence = Evidence { waits: vec![row], ..of(slow.clone()) };
    let net = only(&evidence);
    assert_eq!((net.kind, net.relation, &net.culprit), (Kind::NetRead, Relation::Unknown, &None));
    let told = "197.0 ms of it in more than 196 waits shorter than a millisecond each";
    assert!(net.text.contains(told), "{}", net.text);
    assert!(net.text.contains("(N+1). The rows that there are (1 wait) are for 10.0.0.2:5432"));
    assert!(net.advice.contains("Ask for more at a time"), "{}", net.advice);
    // Two peers: which of them it was, they do not tell.
    let mut other = evidence.waits[0].clone();
    (other.start_time, other.peer) = (other.start_time + 20 * MS, "10.0.0.3:6379".to_owned());
    evidence.waits.push(other);
    assert!(!only(&evidence).text.contains("10.0.0.2"), "{}", only(&evidence).text);

    // A wait that has not ended has no row yet, however long it is.
    for (end, sent_tid) in [("open", 0), ("closed", 0), ("sent", slow.tid + 1)] {
        (slow.end, slow.sent_tid) = (end.to_owned(), sent_tid);
        let net = only(&of(slow.clone()));
        assert!(!net.text.contains("more than"), "{}", net.text);
    }
}

const STOPPED: &str = "stopped or frozen (by a signal such as SIGSTOP, a debugger or a freezer)";

/// The ledger has no call in progress only for who was stopped, and for io_uring's own threads.
#[test]
fn a_thread_that_was_stopped_did_not_block() {
    let slow = handler(&[(State::Other, 400)]);
    let told = |syscall, thread: &str| {
        let mut row = wait(&slow, State::Other, 10, 400);
        (row.syscall, row.thread) = (syscall, thread.to_owned());
        only(&Evidence { waits: vec![row], ..of(slow.clone()) })
    };
    let stopped = told(-1, "worker");
    assert_eq!((stopped.kind, stopped.relation), (Kind::Other, Relation::Unknown));
    assert_eq!(stopped.text, format!("Its thread was {STOPPED} for 400.0 ms"));
    assert!(stopped.advice.contains("kill -STOP"), "{}", stopped.advice);
    for other in [told(318, "worker"), told(-1, "iou-wrk-4100")] {
        assert!(other.text.contains("a reason that is not known"), "{}", other.text);
    }
}

#[test]
fn a_server_that_was_stopped_needs_no_more_processes() {
    let shape = |accept_queue, handoff| Shape {
        id: 1,
        worker: 0,
        at_ms: 100,
        accept_queue,
        handoff,
        handler: 5,
        cells: &[],
    };
    let waited = [(100, 0, "accepts"), (0, 100, "took it up")];
    for (accept_queue, handoff, role) in waited {
        let mut slow = request("/x", &shape(accept_queue, handoff));
        slow.accept_tid = slow.tid;
        let row = wait(&slow, State::Other, 1, 98);
        let queue = only(&Evidence { waits: vec![row], ..of(slow) });
        assert_eq!((queue.relation, &queue.culprit), (Relation::Unknown, &None));
        let told = format!("which {role}, was {STOPPED} for 98.0 ms");
        assert!(queue.text.contains(&told), "{}", queue.text);
        assert!(queue.advice.contains("kill -STOP"), "{}", queue.advice);
        assert!(!queue.advice.contains("processes that accept"), "{}", queue.advice);
    }
}

#[test]
fn a_resolver_is_no_database() {
    for state in [State::NetRead, State::PollWait] {
        for (peer, resolver) in [
            ("10.0.0.2:53", true),
            ("[fd00::2]:53", true),
            ("10.0.0.2:5353", false),
            ("10.0.0.2:5432", false),
        ] {
            let slow = handler(&[(state, 400)]);
            let mut row = wait(&slow, state, 10, 400);
            row.peer = peer.to_owned();
            let late = only(&Evidence { waits: vec![row], ..of(slow) });
            assert_eq!(
                late.advice.contains("options timeout"),
                resolver,
                "{peer}: {}",
                late.advice
            );
            assert_eq!(late.text.contains("the resolver"), resolver, "{}", late.text);
            assert!(!(resolver && late.advice.contains("database")), "{}", late.advice);
            assert_eq!(late.culprit.unwrap().peer, peer);
        }
    }
}

#[test]
fn of_one_there_is_no_plural() {
    let mut evidence = busy_host();
    evidence.counters[0].delta = 1;
    let meanwhile = explain(&evidence).unwrap().meanwhile;
    assert!(meanwhile.iter().any(|it| it.text.contains(": 1 time in ")), "{meanwhile:#?}");
}

/// Native frames, outermost first, of this module.
fn native(module: &str, functions: &[&str]) -> Stack {
    let frame = |function: &&str| Frame {
        kind: FrameKind::Native,
        function: (*function).to_owned(),
        file: String::new(),
        line: 0,
        module: module.to_owned(),
    };
    Stack { frames: functions.iter().map(frame).collect(), truncated: String::new() }
}

fn is_for_python(advice: &str) -> bool {
    ["gunicorn", "gthread", "asyncio", "run_in_executor", "ProcessPoolExecutor", "interpreter"]
        .iter()
        .any(|word| advice.contains(word))
}

/// All findings of an evidence, with this stack in it.
fn advised(mut evidence: Evidence, stack: &Stack) -> Vec<String> {
    let request = evidence.request.clone().unwrap();
    for stall in &mut evidence.stalls {
        stall.stack = stack.clone();
    }
    evidence.process = None;
    evidence.samples = vec![sample(&request, request.tid, State::PollWait, 0, 5, stack.clone())];
    let advice: Vec<_> = findings(&evidence).into_iter().map(|f| f.advice).collect();
    // Of a thread of Go's nothing is told that is an event loop's.
    let is_go = stack.frames.iter().any(|frame| frame.function.starts_with("runtime."));
    assert!(is_go || !advice.is_empty());
    advice
}

#[test]
fn only_python_is_advised_as_python() {
    let late = |accept_queue, handoff| {
        let shape =
            Shape { id: 1, worker: 0, at_ms: 0, accept_queue, handoff, handler: 5, cells: &[] };
        request("/x", &shape)
    };
    let mut computes = queue();
    for sibling in &mut computes.siblings {
        sibling.ledger[State::Running] = sibling.ledger[State::NetRead];
        sibling.ledger[State::NetRead] = 0;
    }
    let mut stood = stalled_loop();
    let request = stood.request.as_mut().unwrap();
    (request.handoff_ns, request.duration_ns) = (0, request.handler_ns);
    let blocked = {
        let slow = late(100, 0);
        let mut row = wait(&slow, State::DiskIo, 0, 100);
        row.tid = slow.accept_tid;
        Evidence { waits: vec![row], ..of(slow) }
    };
    let serving = {
        let slow = late(100, 0);
        let slow = Request { accept_tid: slow.tid, ..slow };
        Evidence {
            siblings: vec![Request {
                request_id: "2".into(),
                handler_ns: 100 * MS,
                duration_ns: 100 * MS,
                accept_queue_ns: 0,
                ..slow.clone()
            }],
            ..of(slow)
        }
    };
    let told = [
        queue(),
        computes,
        event_loop(),
        stalled_loop(),
        stood,
        of(late(100, 0)),
        blocked,
        serving,
    ];

    let node = native("node", &["main", "node::Start", "uv_run", "uv__io_poll"]);
    let cut = |stack: &Stack| Stack { truncated: "no_table".to_owned(), ..stack.clone() };
    let c = native("server", &["main", "serve", "reads"]);
    let others = [
        cut(&node),
        node,
        cut(&native("server", &["runtime.goexit", "main.handle"])),
        cut(&native("libjvm.so", &["JVM_Sleep"])),
        c.clone(),
    ];
    let maybe_python = [
        Stack::default(),
        // Its outer frames are missing.
        cut(&c),
        native("libpython3.11.so.1.0", &["main", "Py_BytesMain"]),
        python(&[("view", "/srv/app.py", 1)]),
    ];
    for evidence in told {
        for stack in &others {
            for advice in advised(evidence.clone(), stack) {
                assert!(!is_for_python(&advice), "{advice}");
            }
        }
        for stack in &maybe_python {
            let advice = advised(evidence.clone(), stack);
            assert!(advice.iter().any(|advice| is_for_python(advice)), "{advice:?}");
        }
    }
}

/// Its own connection waited in a full queue, while who accepts served another request.
fn full(process: &str) -> Evidence {
    let mut evidence = own_queue_full();
    let slow = evidence.request.as_mut().unwrap();
    (slow.accept_tid, slow.process) = (slow.tid, process.to_owned());
    let mut before = slow.clone();
    (before.request_id, before.accept_queue_ns) = ("2".to_owned(), 0);
    (before.handler_ns, before.duration_ns) = (400 * MS, 400 * MS);
    evidence.siblings = vec![before];
    evidence
}

#[test]
fn options_are_those_of_the_server_by_its_name() {
    for (process, options) in [
        ("gunicorn", ["--worker-class gthread", "gunicorn: --backlog"]),
        ("uwsgi", ["uWSGI: --processes, --threads", "uWSGI: --listen"]),
        ("puma", ["puma: -w, -t", "backlog="]),
        ("php-fpm8.2", ["pm.max_children", "listen.backlog"]),
        ("uvicorn", ["uvicorn: --workers", "uvicorn: --backlog"]),
        ("python3", ["More processes that accept, or", "(listen())"]),
    ] {
        let queue = only(&full(process));
        assert_eq!(queue.pattern, "queue_full");
        for option in options {
            assert!(queue.advice.contains(option), "{process}: {}", queue.advice);
        }
        assert_eq!(queue.advice.contains("gunicorn"), process == "gunicorn", "{}", queue.advice);
        assert_eq!(queue.advice.matches("More processes").count(), 1, "{}", queue.advice);
        assert!(!queue.advice.contains("Accept faster"), "{}", queue.advice);
    }
}

/// A hub of green threads is no event loop of asyncio's.
#[test]
fn hubs_have_their_own_ways_to_threads() {
    let advice = |file: &str| {
        let mut evidence = stalled_loop();
        let stack = python(&[("block", "/srv/app.py", 31), ("switch", file, 65)]);
        evidence.stalls[0].stack = stack;
        only(&evidence).advice
    };
    let packages = "/usr/lib/python3.11/site-packages";
    let told = advice(&format!("{packages}/gevent/hub.py"));
    assert!(told.contains("gevent.get_hub().threadpool.apply"), "{told}");
    assert!(!told.contains("asyncio"), "{told}");
    assert!(advice(&format!("{packages}/eventlet/hubs/hub.py")).contains("eventlet.tpool.execute"));
    assert!(advice("/srv/my_gevent_notes.py").contains("asyncio.to_thread"));
}

#[test]
fn no_advice_is_given_twice_on_a_page() {
    let shape = Shape {
        id: 1,
        worker: 0,
        at_ms: 100,
        accept_queue: 0,
        handoff: 300,
        handler: 320,
        cells: &[(State::Runnable, 300)],
    };
    let slow = request("/x", &shape);
    let rows = vec![wait(&slow, State::Runnable, 0, 300), wait(&slow, State::Runnable, 300, 300)];
    let findings = findings(&Evidence { waits: rows, ..of(slow) });
    assert_eq!(findings.len(), 2, "{findings:#?}");
    assert!(findings[0].advice.contains("more CPUs"), "{findings:#?}");
    assert_eq!(findings[1].advice, "As for finding 1");
}
