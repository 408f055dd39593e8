//! Locks of the application, and who held them.

use underspan_explain::{Evidence, Kind, Relation};
use underspan_model::{LostEvents, State};

use crate::common::*;
use crate::{handler, of, only};

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

/// Each had it until the next one got it, and all of that is known.
#[test]
fn who_had_a_lock_in_turn_is_named_together() {
    let mut evidence = held_lock();
    let request = evidence.request.clone().unwrap();
    let (first, second) = (4112, 4114);
    // 4111 had it until 60 ms, 4112 until 120, 4114 until it was released to the request.
    for (tid, ms, before) in [(first, 60, 4111), (second, 120, first)] {
        let mut other = wait(&request, State::LockWait, 5, ms);
        (other.tid, other.thread) = (tid, format!("worker-{tid}"));
        (other.waker_tid, other.waker_thread) = (before, format!("worker-{before}"));
        other.futex_addr = evidence.waits[0].futex_addr;
        evidence.waits.push(other);
    }
    (evidence.waits[0].waker_tid, evidence.waits[0].waker_thread) =
        (second, String::from("worker-4114"));
    (evidence.waits[0].holder_tid, evidence.waits[0].holder_thread) = (0, String::new());
    let lock = only(&evidence);
    assert_eq!(lock.relation, Relation::Caused, "{}", lock.text);
    let told = "for a lock held by 3 threads (worker-4114, worker-4112, worker-4111) in turn";
    assert!(lock.text.contains(told), "{}", lock.text);
    assert_eq!(lock.culprit.unwrap().ns, 180 * MS);
    // Somebody else came in between.
    evidence.waits[2].waker_tid = 4115;
    assert_eq!(only(&evidence).relation, Relation::Unknown);
    evidence.waits[2].waker_tid = first;
    assert_eq!(only(&evidence).relation, Relation::Caused);
    // A condition is nobody's in between.
    evidence.samples.clear();
    assert_eq!(only(&evidence).relation, Relation::Unknown);
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

/// It had handed the request on, and went to wait for the next.
#[test]
fn a_wait_that_goes_on_after_the_answer_was_not_ended_for_it() {
    let mut slow = handler(&[(State::LockWait, 250)]);
    let mut row = wait(&slow, State::LockWait, 10, 2800);
    (row.waker_pid, row.waker_tid, row.waker_thread) = (PID, 4120, String::from("holder"));
    let mut evidence = Evidence { waits: vec![row], ..of(slow.clone()) };
    assert_eq!(only(&evidence).relation, Relation::Caused, "nothing tells of another thread");
    (slow.sent_tid, slow.sent_thread) = (4121, String::from("worker-2"));
    evidence.request = Some(slow.clone());
    let lock = only(&evidence);
    assert_eq!((lock.relation, &lock.culprit), (Relation::Unknown, &None));
    let told = "and still did when thread worker-2 (4121) had sent the answer";
    assert!(lock.text.contains(told), "{}", lock.text);
    assert!(!format!("{} {}", lock.text, lock.advice).contains("holder"), "{}", lock.text);
    assert!(!lock.advice.contains("Hold that lock"), "{}", lock.advice);
    // Closed by whomever, unanswered.
    evidence.request.as_mut().unwrap().sent_tid = 0;
    assert!(only(&evidence).text.contains("when the request was over"));
    // A wait that was over before may well have been the request's, whoever sent the answer.
    evidence.request = Some(slow);
    evidence.waits[0].duration_ns = 250 * MS;
    assert_eq!(only(&evidence).culprit.unwrap().tid, 4120);

    // Nor did the interpreter's holder, nor a peer that sent something later.
    for state in [State::GilWait, State::NetRead] {
        let mut slow = handler(&[(state, 250)]);
        slow.sent_tid = 4121;
        let mut row = wait(&slow, state, 10, 2800);
        row.peer = String::from("10.0.0.9:5432");
        let gil = gil_wait(&slow, 10, 2800, (4120, "holder"), 0);
        let gil_waits = if state == State::GilWait { vec![gil] } else { Vec::new() };
        let late = only(&Evidence { waits: vec![row], gil_waits, ..of(slow) });
        assert_eq!((late.relation, &late.culprit), (Relation::Unknown, &None), "{}", late.text);
    }
}

/// `kill` wakes who waits for a futex as well as who releases a lock that both share.
#[test]
fn another_process_released_a_lock_only_if_its_stack_shows_it() {
    let slow = handler(&[(State::LockWait, 250)]);
    let mut row = wait(&slow, State::LockWait, 10, 250);
    (row.waker_pid, row.waker_tid, row.waker_thread) = (777, 778, String::from("agent"));
    row.syscall = 202;
    let mut evidence = Evidence { waits: vec![row], ..of(slow.clone()) };
    let lock = only(&evidence);
    assert_eq!((lock.relation, &lock.culprit), (Relation::Unknown, &None));
    let told = "until thread agent (778) of another process (777) woke it; whether that released it \
                or sent a signal is not recorded";
    assert!(lock.text.contains(told), "{}", lock.text);

    // multiprocessing's semaphores, in shared memory.
    let woken_by = |function: &str| {
        let mut woken = sample(&slow, slow.tid, State::LockWait, 10, 250, python(&[]));
        (woken.waker_pid, woken.waker_tid) = (777, 778);
        woken.waker_stack = acquiring(&[("release", "/srv/job.py", 9)]);
        woken.waker_stack.frames.last_mut().unwrap().function = function.to_owned();
        vec![woken]
    };
    evidence.samples = woken_by("__new_sem_post");
    let lock = only(&evidence);
    assert_eq!(lock.relation, Relation::Caused, "{}", lock.text);
    let culprit = lock.culprit.unwrap();
    assert_eq!((culprit.pid, culprit.tid), (777, 778));
    evidence.samples = woken_by("kill");
    assert_eq!(only(&evidence).relation, Relation::Unknown);

    // A file's lock is any process's, and a signal as good.
    evidence.waits[0].syscall = 73;
    let lock = only(&evidence);
    assert_eq!((lock.relation, lock.culprit.unwrap().pid), (Relation::Coincided, 777));
}
