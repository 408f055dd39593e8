//! The queues before the handler: connections nobody accepted, requests nobody read.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use underspan_model::{Class, Request, State, Wait};

use crate::case::{
    Case, Suspect, WHO_STOPS, doing_words, proven, request_row, route, stopped, wait_row,
};
use crate::finding::{Culprit, Finding, INTERFERENCE, Kind, Relation, RowRef};
use crate::interval::{Cover, Interval};
use crate::rules::cpu::{MORE_CPUS, RAISE_QUOTA, quota};
use crate::rules::late::{IDLE, Late, woken};
use crate::rules::lock_kind::Lock;
use crate::rules::pool::{Pool, SWITCH_NS, Stuck};
use crate::rules::restart::Restart;
use crate::rules::{listener, loop_lag};
use crate::window::{Window, is_gil};
use crate::words;

/// The wait in the listener's queue, as far as collections do not explain it.
pub(super) fn accept_queue(case: &Case<'_>, explained: &Cover) -> Option<Finding> {
    let at = Cover::from(case.window.accept_queue).subtract(explained);
    let restart = Restart::of(case, &at);
    let finding = match &restart {
        Some(restart) if restart.is_all(&at) => restart.finding(case, &at)?,
        _ => nobody_accepted(case, &at)?,
    };
    let finding = match restart {
        Some(restart) => restart.add_to(case, finding),
        None => finding,
    };
    Some(match listener::own(case) {
        Some(full) => full.add_to(case, finding),
        None => finding,
    })
}

fn nobody_accepted(case: &Case<'_>, at: &Cover) -> Option<Finding> {
    let phase = case.window.accept_queue;
    let ns = at.total();
    if !case.worth(ns, INTERFERENCE) {
        return None;
    }
    let draft = case.draft(Kind::AcceptQueue, &[("accept_queue", ns)]).located(case, at);
    let waited = words::duration(ns);
    let acceptor = case.request.accept_tid;

    // A thread that accepts and serves cannot accept while it serves.
    let by_acceptor = case.siblings.iter().filter(|s| s.tid == acceptor && s.shared_thread == 0);
    let served: Vec<_> = by_acceptor
        .map(|s| (Window::of(s).handler, *s))
        .map(|(handler, s)| (at.within(handler).total(), handler, s))
        .filter(|(ns, ..)| *ns > 0)
        .collect();
    let busy: Cover = served.iter().map(|(_, handler, _)| *handler).collect();
    let busy = busy.bridged(SWITCH_NS).intersect(at);
    if let Some((.., longest)) = served.iter().max_by_key(|(ns, _, s)| (*ns, &s.request_id))
        && proven(busy.total(), ns)
    {
        let culprit = case.thread(acceptor, &longest.thread, busy.total(), at);
        let text = format!(
            "Nobody accepted the connection for {waited}: thread {} ({acceptor}), which accepts, was \
             busy with {}{}",
            culprit.thread,
            words::count(served.len(), "other request"),
            doing_words(&culprit),
        );
        let rows = served.iter().map(|(ns, _, s)| (*ns, request_row(s))).collect();
        let draft = draft.relation(Relation::Caused).culprit(Some(culprit)).rows(rows);
        // Only loops that serve have rows: to accept in between is what they are for.
        let of_loop = case.evidence.stalls.iter().filter(|s| s.tid == acceptor);
        let of_loop =
            of_loop.map(|s| at.within(Interval::new(s.start_time, s.duration_ns)).total());
        if of_loop.max().is_some_and(|stalled| proven(stalled, ns)) {
            return Some(draft.say(text, loop_lag::long(case)));
        }
        return Some(draft.say(text, case.server().accept_beside()));
    }
    if let Some((state, rows)) = blocked(case, acceptor, phase, at) {
        let culprit = case.blame(&holders(case, acceptor, state, &rows, at), ns, at);
        let name = rows.first().map(|(w, _)| w.thread.clone()).unwrap_or_default();
        let by = culprit.as_ref().map(|c| format!(", held by {}", c.named())).unwrap_or_default();
        if state == State::LockWait
            && culprit.is_none()
            && let Some(finding) = workers_busy(case, at, (acceptor, &name), &rows)
        {
            return Some(finding);
        }
        let text = format!(
            "Nobody accepted the connection for {waited}: thread {name} ({acceptor}), which accepts, \
             was {}{by}",
            state.label()
        );
        let shown = rows.iter().fold(0u64, |sum, (_, part)| sum.saturating_add(part.len()));
        // Who waits for the interpreter, a lock or a CPU is not to blame for that.
        let victim = is_gil(state) || state == State::LockWait || state.class() == Class::CpuWait;
        let itself = || Culprit {
            place: case.place_in(acceptor, at, state),
            ..case.thread(acceptor, &name, shown.min(ns), at)
        };
        let by_quota = (state == State::Throttled).then(|| quota(case, shown.min(ns)));
        let culprit = culprit.or(by_quota).or_else(|| (!victim).then(itself));
        let text = match state {
            State::Throttled => format!("{text}{}", of_cgroup(culprit.as_ref())),
            _ => text,
        };
        let rows = rows.iter().map(|(w, part)| (part.len(), wait_row(w))).collect();
        let relation = if culprit.is_some() { Relation::Caused } else { Relation::Unknown };
        let draft = draft.relation(relation).culprit(culprit).rows(rows);
        let advice = match state {
            State::Throttled => String::from(RAISE_QUOTA),
            state if state.class() == Class::CpuWait => String::from(MORE_CPUS),
            _ => keep_free(case),
        };
        return Some(draft.say(text, advice));
    }
    let late = Late::of(case, acceptor, at, &[State::PollWait], true);
    if let Some(doing) = late.words("accepts", ns).filter(|_| proven(late.shown.total(), ns)) {
        let culprit = case.blame(&late.holders, ns, at);
        let throttled = late.throttled();
        let culprit = culprit.or_else(|| proven(late.own, ns).then(|| late.itself(case, at)));
        let culprit = culprit.or_else(|| proven(throttled, ns).then(|| quota(case, throttled)));
        let relation = if culprit.is_some() { Relation::Caused } else { Relation::Unknown };
        let advice = match (late.lacked_cpu(), late.was_stopped()) {
            _ if throttled > ns / 2 => String::from(RAISE_QUOTA),
            (true, _) => String::from(MORE_CPUS),
            (_, true) => String::from(WHO_STOPS),
            _ => keep_free(case),
        };
        let draft = draft.relation(relation).culprit(culprit).rows(late.rows);
        let text = format!("Nobody accepted the connection for {waited}: {doing}");
        return Some(draft.say(text, advice));
    }
    let text = match late.words("accepts", ns) {
        Some(doing) => format!(
            "The connection waited {waited} to be accepted: {doing}; nothing recorded shows why it \
             waited for the rest"
        ),
        None => {
            format!("The connection waited {waited} to be accepted; nothing recorded shows why")
        }
    };
    let advice = match late.was_stopped() {
        true => String::from(WHO_STOPS),
        false => format!(
            "Look at how many processes accept on this address{} and whether the listen backlog \
             overflows (nstat TcpExtListenOverflows)",
            case.server().processes()
        ),
    };
    Some(draft.rows(late.rows).say(text, advice))
}

/// A server that accepts only when a worker is free waits for one on a condition, as puma does: meanwhile its
/// threads served other requests.
fn workers_busy(
    case: &Case<'_>,
    at: &Cover,
    (acceptor, name): (u32, &str),
    waits: &[(&Wait, Interval)],
) -> Option<Finding> {
    let ns = at.total();
    let pool = Pool::during(case, at);
    let served: Vec<_> = pool.served.iter().filter(|(_, s)| s.tid != acceptor).collect();
    let busy: Cover = served.iter().map(|(_, s)| Window::of(s).handler).collect();
    let (_, longest) = served.iter().max_by_key(|(ns, s)| (*ns, &s.request_id))?;
    if !proven(busy.bridged(SWITCH_NS).intersect(at).total(), ns) {
        return None;
    }
    let threads: BTreeSet<_> = served.iter().map(|(_, s)| s.tid).collect();
    let text = format!(
        "Nobody accepted the connection for {}: thread {name} ({acceptor}), which accepts, was waiting for a \
         lock or condition, while {} of its process served {}. A server that accepts only when a worker is \
         free waits so",
        words::duration(ns),
        words::count(threads.len(), "other thread"),
        words::count(served.len(), "request"),
    );
    let what = match route(longest) {
        route if route.is_empty() => String::from("the longest"),
        route => format!("the longest, {route}"),
    };
    let advice = format!(
        "More worker threads{}; or look at why those requests took so long: `underspan explain {}` ({what})",
        case.server().threads(pool.needed()),
        longest.request_id,
    );
    let mut rows: Vec<_> = served.iter().map(|(ns, s)| (*ns, request_row(s))).collect();
    rows.extend(waits.iter().map(|(w, part)| (part.len(), wait_row(w))));
    let draft = case.draft(Kind::AcceptQueue, &[("accept_queue", ns)]).located(case, at);
    Some(draft.rows(rows).say(text, advice))
}

fn move_work(case: &Case<'_>) -> String {
    format!(
        "Move what keeps the interpreter to another process (a task queue, ProcessPoolExecutor), or run \
         more worker processes with fewer threads each{}",
        case.server().processes()
    )
}

/// ` (/shop)`, if it is known which cgroup has the quota, or is below the one that has.
fn of_cgroup(culprit: Option<&Culprit>) -> String {
    let cgroup = culprit.map(|culprit| culprit.cgroup.as_str()).filter(|cgroup| !cgroup.is_empty());
    cgroup.map(|cgroup| format!(" ({cgroup}, or one above it)")).unwrap_or_default()
}

fn keep_free(case: &Case<'_>) -> String {
    // Other threads are in its way by the interpreter only.
    let nothing = match case.is_no_python() {
        true => "nothing but accepting on it",
        false => "nothing heavy in its process's other threads",
    };
    let workers = case.server().processes();
    format!("Keep the accepting thread free: {nothing}, or more processes that accept{workers}")
}

/// Who had what an accepting thread waited for.
fn holders(
    case: &Case<'_>,
    acceptor: u32,
    state: State,
    rows: &[(&Wait, Interval)],
    at: &Cover,
) -> BTreeMap<u32, Suspect> {
    // A row of `waits` names the GIL's last holder only, and not how long it held.
    if is_gil(state) {
        return Late::of(case, acceptor, at, &[], false).holders;
    }
    let mut holders: BTreeMap<u32, Suspect> = BTreeMap::new();
    // It may have waited for its turn to accept: who gave it that held nothing.
    if state == State::LockWait && is_held(case, acceptor, case.window.accept_queue) {
        for (wait, part) in rows.iter().filter(|(w, _)| w.holder_tid != 0) {
            holders.entry(wait.holder_tid).or_default().add(&wait.holder_thread, part.len());
        }
    }
    holders
}

/// Whether a thread's stacks show that it waited for a lock that somebody holds. A pool's thread without
/// work waits for what looks like one.
fn is_held(case: &Case<'_>, tid: u32, during: Interval) -> bool {
    Lock::of(case, tid, during) == Lock::Exclusive
}

/// In which state, if any one, a thread was blocked for enough of the time.
fn blocked<'a>(
    case: &Case<'a>,
    tid: u32,
    phase: Interval,
    at: &Cover,
) -> Option<(State, Vec<(&'a Wait, Interval)>)> {
    // Polling is what an acceptor does when it is free: that blames nobody. Nor is it to blame for
    // having been stopped.
    let mut waits = case.waits_of(tid, phase, |state| state != State::PollWait);
    waits.retain(|(wait, _)| !stopped(wait));
    let states: BTreeSet<State> = waits.iter().map(|(w, _)| w.state).collect();
    states.into_iter().find_map(|state| {
        let rows: Vec<_> = waits.iter().filter(|(w, _)| w.state == state).copied().collect();
        let cover: Cover = rows.iter().map(|(_, part)| *part).collect();
        proven(cover.intersect(at).total(), at.total()).then_some((state, rows))
    })
}

/// The wait for a thread to read the request, as far as collections do not explain it.
pub(super) fn handoff(case: &Case<'_>, explained: &Cover) -> Option<Finding> {
    let at = Cover::from(case.window.handoff).subtract(explained);
    let ns = at.total();
    if !case.worth(ns, INTERFERENCE) {
        return None;
    }
    if let Some(finding) = behind_another(case, &at) {
        return Some(finding);
    }
    let pool = Pool::during(case, &at);
    let rows = pool.served.iter().map(|(ns, s)| (*ns, request_row(s))).collect();
    let draft = case.draft(Kind::Handoff, &[("handoff", ns)]).located(case, &at).rows(rows);
    let waited = words::duration(ns);
    if !pool.saturated() {
        if let Some(finding) = own_thread_blocked(case, &at, &waited) {
            return Some(finding);
        }
        let (late, doing) = handed_on_late(case, &at);
        if let Some(doing) = doing.as_ref().filter(|_| proven(late.shown, ns)) {
            let culprit = case.blame(&late.holders, ns, &at);
            let by_quota = || proven(late.throttled, ns).then(|| quota(case, late.throttled));
            let culprit = culprit.or_else(by_quota);
            let relation = if culprit.is_some() { Relation::Caused } else { Relation::Unknown };
            let advice = match (late.lacked_cpu, late.holders.is_empty()) {
                _ if late.throttled > ns / 2 => String::from(RAISE_QUOTA),
                (true, _) => String::from(MORE_CPUS),
                (false, true) if late.was_stopped => String::from(WHO_STOPS),
                (false, true) => keep_free(case),
                (false, false) => move_work(case),
            };
            let draft = draft.relation(relation).culprit(culprit).rows(late.rows);
            return Some(
                draft.say(format!("No thread read the request for {waited}: {doing}"), advice),
            );
        }
        let idle = pool.idle();
        let mut text = if pool.served.is_empty() || idle == 0 {
            format!(
                "No thread read the request for {waited}; nothing recorded shows that all of them were busy"
            )
        } else {
            format!(
                "No thread read the request for {waited}, though {idle} of {} threads that serve \
                 requests {} free for part of it: too few threads were not the reason",
                pool.threads(),
                if idle == 1 { "was" } else { "were" },
            )
        };
        if let Some(doing) = doing {
            text += &format!("; {doing}");
        }
        return Some(draft.say(
            text,
            "Look at what the dispatching thread did meanwhile (`underspan sql`, table \
             thread_states)",
        ));
    }
    if let Some(finding) = exhausted(case, &pool, &at, &waited) {
        return Some(finding);
    }
    let threads = pool.threads();
    let (_, longest) = pool.served.iter().max_by_key(|(ns, s)| (*ns, &s.request_id))?;
    let culprit = Culprit {
        host: case.request.host.clone(),
        pid: case.request.pid,
        tid: if threads == 1 { longest.tid } else { 0 },
        thread: if threads == 1 { longest.thread.clone() } else { all_of(threads) },
        request_id: longest.request_id.clone(),
        route: route(longest),
        ..Culprit::new(ns)
    };
    let text = format!(
        "No thread was free to read the request for {waited}: {} in its process {} busy {:.0} % of \
         that time ({}). {} ahead of it. {}{} at {} each can serve {:.1} a second",
        all_of(threads),
        if threads == 1 { "was" } else { "were" },
        pool.busy_fraction() * 100.0,
        pool.doing(),
        match pool.ahead {
            1 => String::from("1 request was"),
            n => format!("{n} requests were"),
        },
        pool.arrivals(),
        words::count(threads, "thread"),
        words::duration(pool.mean_handler_ns),
        pool.served_per_second(),
    );
    Some(draft.relation(Relation::Caused).culprit(Some(culprit)).say(text, pool.advice(case)))
}

fn all_of(threads: usize) -> String {
    match threads {
        1 => String::from("the one worker thread"),
        2 => String::from("both worker threads"),
        _ => format!("all {threads} worker threads"),
    }
}

/// A connection's requests are answered one after another. One that came while another was not answered
/// yet has waited for that, however many threads were free.
fn behind_another(case: &Case<'_>, at: &Cover) -> Option<Finding> {
    let request = case.request;
    let before = case
        .siblings
        .iter()
        .filter(|s| is_same_connection(s, request) && s.conn_request < request.conn_request);
    let before: Vec<_> = before
        .map(|s| (at.within(Window::of(s).handler).total(), *s))
        .filter(|(ns, _)| *ns > 0)
        .collect();
    let handlers: Cover = before.iter().map(|(_, s)| Window::of(s).handler).collect();
    let busy = handlers.bridged(SWITCH_NS).intersect(at);
    let (_, longest) = before.iter().max_by_key(|(ns, s)| (*ns, &s.request_id))?;
    if !proven(busy.total(), at.total()) {
        return None;
    }
    let culprit = Culprit {
        request_id: longest.request_id.clone(),
        route: route(longest),
        ..case.thread(longest.tid, &longest.thread, busy.total(), &busy)
    };
    let them = match before.len() {
        1 => String::from("the request before it on its connection was"),
        n => format!("{n} requests before it on its connection were"),
    };
    let text = format!(
        "Came {} before it was read: {them} not answered yet, by {}{}",
        words::duration(at.total()),
        culprit.named(),
        doing_words(&culprit),
    );
    let rows = before.iter().map(|(ns, s)| (*ns, request_row(s))).collect();
    let draft = case.draft(Kind::Handoff, &[("handoff", at.total())]).located(case, at);
    let draft = draft.relation(Relation::Caused).culprit(Some(culprit)).rows(rows);
    Some(draft.say(
        text,
        "Answer that request sooner, or have the client open more connections instead of sending on one \
         that waits for an answer (pipelining). More threads would not help",
    ))
}

/// Of connections over Unix sockets nothing tells one from another.
fn is_same_connection(one: &Request, other: &Request) -> bool {
    let ends = (&one.local, &one.peer);
    ends == (&other.local, &other.peer) && one.peer.parse::<SocketAddr>().is_ok()
}

/// What both threads did that a request goes through between accept and read.
struct HandedOn {
    shown: u64,
    lacked_cpu: bool,
    throttled: u64,
    was_stopped: bool,
    holders: BTreeMap<u32, Suspect>,
    rows: Vec<(u64, RowRef)>,
}

/// Until the reading thread was woken, the one that accepts had not handed the request on; from then on
/// it is the reader that was late. What the other did in its time held nobody up.
fn handed_on_late(case: &Case<'_>, at: &Cover) -> (HandedOn, Option<String>) {
    let (request, phase) = (case.request, case.window.handoff);
    let one = request.accept_tid == request.tid || request.accept_tid == 0;
    let woken = match woken(case, request.tid, phase) {
        Some(woken) if !one => woken,
        _ => phase.start,
    };
    let before = at.within(Interval::between(phase.start, woken));
    let after = at.within(Interval::between(woken, phase.end));
    let dispatcher = Late::of(case, request.accept_tid, &before, &IDLE, false);
    let reader = Late::of(case, request.tid, &after, &IDLE, false);
    let ns = at.total();
    let words = [dispatcher.words("hands requests on", ns), reader.words("took it up", ns)];
    let words: Vec<_> = words.into_iter().flatten().collect();
    let longest =
        if dispatcher.shown.total() > reader.shown.total() { &dispatcher } else { &reader };
    let (lacked_cpu, was_stopped) = (longest.lacked_cpu(), longest.was_stopped());
    let throttled = dispatcher.throttled() + reader.throttled();
    let shown = dispatcher.shown.total() + reader.shown.total();
    let mut holders = dispatcher.holders;
    for (tid, suspect) in reader.holders {
        holders.entry(tid).or_default().add(&suspect.name, suspect.ns);
    }
    let rows = dispatcher.rows.into_iter().chain(reader.rows).collect();
    let words = (!words.is_empty()).then(|| words.join("; "));
    (HandedOn { shown, lacked_cpu, throttled, was_stopped, holders, rows }, words)
}

/// Every thread that serves requests waited for one and the same thing: more threads would too.
fn exhausted(case: &Case<'_>, pool: &Pool<'_>, at: &Cover, waited: &str) -> Option<Finding> {
    let (stuck, rows) = pool.stuck_on(case, at)?;
    let threads = all_of(pool.threads());
    let (what, culprit, advice) = match &stuck {
        Stuck::Peer(peer) => (
            format!("for {peer}"),
            Culprit { peer: peer.clone(), ..Culprit::new(at.total()) },
            "Look at that peer first; a time limit on its answers and a bound on how many threads may \
             wait for it at once (a bulkhead) keep the others free. More threads would wait for it too",
        ),
        Stuck::Lock { releasers } => {
            let culprit = case.blame(releasers, at.total(), at);
            let by = culprit.as_ref().map(|c| format!(" that {} released", c.named()));
            let place = culprit.as_ref().map(doing_words).unwrap_or_default();
            (
                format!("for one lock{}{place}", by.unwrap_or_default()),
                culprit.unwrap_or_else(|| Culprit {
                    thread: threads.clone(),
                    ..Culprit::new(at.total())
                }),
                "Hold that lock for less, or, if it is a pool's condition, enlarge that pool. More \
                 threads would wait for it too",
            )
        }
    };
    let text = format!(
        "No thread was free to read the request for {waited}: {threads} waited {what}, {} of that time",
        words::percent(rows.shown, rows.capacity)
    );
    let draft = case.draft(Kind::Handoff, &[("handoff", at.total())]).located(case, at);
    let draft = draft.pattern("pool_exhausted").relation(Relation::Caused);
    Some(draft.culprit(Some(culprit)).rows(rows.rows).say(text, advice))
}

/// Where one thread accepts and reads, what it waited for in between explains the handoff.
fn own_thread_blocked(case: &Case<'_>, at: &Cover, waited: &str) -> Option<Finding> {
    let request = case.request;
    if request.accept_tid != request.tid {
        return None;
    }
    let (state, rows) = blocked(case, request.tid, case.window.handoff, at)?;
    let shown: Cover = rows.iter().map(|(_, part)| *part).collect();
    // Who waits for the interpreter or for a CPU is not to blame for that, nor who waits for work.
    let idle = state == State::LockWait && !is_held(case, request.tid, case.window.handoff);
    if is_gil(state) || state.class() == Class::CpuWait || idle {
        return None;
    }
    let culprit = Culprit {
        place: case.place_in(request.tid, at, state),
        ..case.thread(request.tid, &request.thread, shown.intersect(at).total(), at)
    };
    let text = format!(
        "Thread {} ({}) accepted the connection and read the request {waited} later; it was {} in \
         between",
        request.thread,
        request.tid,
        state.label()
    );
    let draft = case.draft(Kind::Handoff, &[("handoff", at.total())]).located(case, at);
    let rows = rows.iter().map(|(w, part)| (part.len(), wait_row(w))).collect();
    let draft = draft.relation(Relation::Caused).culprit(Some(culprit)).rows(rows);
    Some(draft.say(text, "Let nothing that blocks run between accepting and reading"))
}
