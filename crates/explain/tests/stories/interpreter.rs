//! What Python does to its own threads: collections, and the lock of the interpreter.

use underspan_explain::{Evidence, Kind, Relation, explain};
use underspan_model::{Frame, FrameKind, Sample, State, Wait};

use crate::common::*;
use crate::{handler, of, only};

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

/// The collecting thread's stack, its native frames beneath Python's.
fn collecting(evidence: &Evidence, native: &[&str]) -> Sample {
    let mut stack =
        python(&[("nightly", "/srv/shop/jobs.py", 9), ("compact", "/srv/shop/jobs.py", 41)]);
    stack.frames.extend(native.iter().map(|function| Frame {
        kind: FrameKind::Native,
        function: (*function).to_owned(),
        file: String::new(),
        line: 0,
        module: String::from("libpython3.11.so.1.0"),
    }));
    sample(evidence.request.as_ref().unwrap(), 4131, State::GcRun, 6, 2791, stack)
}

#[test]
fn a_collection_that_code_asked_for_is_not_the_collectors_choice() {
    let mut evidence = collection();
    let asked =
        ["_PyEval_EvalFrameDefault", "gc_collect", "gc_collect_impl.isra.0", "gc_collect_main"];
    evidence.samples = vec![collecting(&evidence, &asked)];
    let gc = only(&evidence);
    assert!(
        gc.text.ends_with("it was told to: gc.collect() is called in compact at jobs.py:41"),
        "{}",
        gc.text
    );
    assert!(gc.advice.contains("call gc.freeze() once start-up is done"), "{}", gc.advice);
    assert!(
        gc.advice.contains("gc.collect() in compact (/srv/shop/jobs.py:41)")
            && gc.advice.contains("Or take that call away"),
        "{}",
        gc.advice
    );

    // One that came by itself, at the same line; and one of which only Python's frames are known.
    let automatic = [
        "_PyEval_EvalFrameDefault",
        "_PyObject_GC_New",
        "gc_collect_generations",
        "gc_collect_main",
    ];
    for native in [automatic.as_slice(), &[]] {
        evidence.samples = vec![collecting(&evidence, native)];
        let gc = only(&evidence);
        assert!(!gc.text.contains("told to") && gc.advice.contains("once start-up"), "{}", gc.text);
    }
}

#[test]
fn a_handler_that_asks_for_a_collection_is_told_so() {
    let slow = handler(&[(State::GcRun, 300)]);
    let mut evidence =
        Evidence { gc_pauses: vec![pause(&slow, slow.tid, "worker", 10, 300)], ..of(slow) };
    let own = evidence.request.as_ref().unwrap().tid;
    let asked = collecting(&evidence, &["gc_collect", "gc_collect_main"]);
    evidence.samples = vec![Sample { tid: own, ..asked }];
    let gc = only(&evidence);
    assert_eq!(gc.kind, Kind::GcRun);
    assert!(gc.text.contains("gc.collect() is called in compact at jobs.py:41"), "{}", gc.text);
    evidence.samples.clear();
    assert!(only(&evidence).advice.contains("cyclic objects"));
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

/// At a low priority beside others that compute: the holder is a victim of theirs as well.
#[test]
fn a_holder_without_a_cpu_is_not_blamed() {
    let slow = handler(&[(State::GilWait, 300)]);
    let holder = (4113, "ThreadPoolExecutor-0_3");
    let with = |lacked_ms| {
        let ready = Wait { tid: holder.0, ..wait(&slow, State::Runnable, 30, lacked_ms) };
        let gil_waits = vec![gil_wait(&slow, 10, 300, holder, 0)];
        only(&Evidence { gil_waits, waits: vec![ready], ..of(slow.clone()) })
    };
    assert_eq!(with(50).relation, Relation::Caused);
    let gil = with(200);
    assert_eq!((gil.relation, gil.culprit), (Relation::Unknown, None));
    assert!(gil.text.contains("who held it waited for a CPU itself for 200.0 ms"), "{}", gil.text);
    assert!(
        gil.advice.contains("CPUs") && !gil.advice.contains("another process"),
        "{}",
        gil.advice
    );
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
