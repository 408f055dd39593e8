//! The threads that serve requests, and what they did while one request waited for them.

use std::collections::BTreeMap;

use underspan_model::{Request, STATES, State, Wait};

use crate::case::{Case, Suspect, blocked, proven, wait_row};
use crate::finding::RowRef;
use crate::interval::{Cover, Interval};
use crate::rules::contention::is_foreign;
use crate::server::Server;
use crate::window::Window;
use crate::words;

/// Going from one request to the next takes a thread some time. While a request waits, a gap this
/// short between two others is that, and not idleness: a free thread would have taken the waiting one.
pub(super) const SWITCH_NS: u64 = 5_000_000;

/// A thread that was busy for less than this share could have taken the request.
const BUSY: f64 = 0.5;

/// What every thread of a pool waited for.
pub(super) enum Stuck {
    /// Bytes from this address.
    Peer(String),
    /// One lock, which these threads released.
    Lock {
        /// By thread.
        releasers: BTreeMap<u32, Suspect>,
    },
}

/// What shows it.
pub(super) struct Shown {
    pub(super) rows: Vec<(u64, RowRef)>,
    /// Nanoseconds of all threads together that the rows show,
    pub(super) shown: u64,
    /// and how many there were.
    pub(super) capacity: u64,
}

/// Waits with the same cause are for the same thing.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Cause<'a> {
    Peer(&'a str),
    Lock(u64),
}

impl<'a> Cause<'a> {
    fn of(wait: &'a Wait) -> Option<Self> {
        match wait.state {
            State::NetRead | State::NetWrite | State::NetConnect if !wait.peer.is_empty() => {
                Some(Cause::Peer(&wait.peer))
            }
            State::LockWait if wait.futex_addr != 0 => Some(Cause::Lock(wait.futex_addr)),
            _ => None,
        }
    }
}

/// The waits of each thread, and when they were.
type OfThreads<'a> = BTreeMap<u32, Vec<(&'a Wait, Interval)>>;

pub(super) struct Pool<'a> {
    /// Requests served meanwhile, with how long.
    pub(super) served: Vec<(u64, &'a Request)>,
    /// Requests of the process that had come before and were not done.
    pub(super) ahead: usize,
    /// Requests that came from the first of those ahead until this one, both included,
    arrived: usize,
    /// and from the one to the other.
    arrived_within_ns: u64,
    pub(super) mean_handler_ns: u64,
    /// Requests whose handlers would have run at once, at the most, had each been read when it came.
    at_once: usize,
    busy: BTreeMap<u32, u64>,
    /// When the thread that read the request in the end was last seen busy, if it was.
    reader_busy_until: Option<u64>,
    /// When it read.
    end: u64,
    window_ns: u64,
}

impl<'a> Pool<'a> {
    pub(super) fn during(case: &Case<'a>, at: &Cover) -> Self {
        let siblings: Vec<_> =
            case.siblings.iter().filter(|s| s.shared_thread == 0).copied().collect();
        let mut busy: BTreeMap<u32, Vec<Interval>> = BTreeMap::from([(case.request.tid, vec![])]);
        let mut served = Vec::new();
        for sibling in &siblings {
            let handler = Window::of(sibling).handler;
            let intervals = busy.entry(sibling.tid).or_default();
            let ns = at.within(handler).total();
            if ns > 0 {
                intervals.push(handler);
                served.push((ns, *sibling));
            }
        }
        let reader = busy.get(&case.request.tid).into_iter().flatten();
        let reader_busy_until = reader.map(|handler| handler.end).max();
        let busy_ns = |intervals: Vec<Interval>| {
            let cover: Cover = intervals.into_iter().collect();
            cover.bridged(SWITCH_NS).intersect(at).total()
        };
        let busy = busy.into_iter().map(|(tid, intervals)| (tid, busy_ns(intervals))).collect();

        let whole = |r: &Request| Interval::new(r.start_time, r.duration_ns);
        let ready = case.window.whole.start;
        let ahead: Vec<_> = siblings.iter().filter(|s| whole(s).contains(ready)).collect();

        // What came later than this one did not keep it waiting.
        let first = ahead.iter().map(|s| s.start_time).min().unwrap_or(ready);
        let came = siblings.iter().filter(|s| (first..=ready).contains(&s.start_time)).copied();
        let handled = came.chain([case.request]);
        let handled: Vec<_> =
            handled.map(|r| Interval::new(r.start_time, Window::of(r).handler.len())).collect();
        let handlers: u128 =
            served.iter().map(|(_, s)| u128::from(Window::of(s).handler.len())).sum();
        let mean = handlers / u128::try_from(served.len().max(1)).unwrap_or(1);
        Pool {
            ahead: ahead.len(),
            arrived: handled.len(),
            arrived_within_ns: ready.saturating_sub(first),
            mean_handler_ns: u64::try_from(mean).unwrap_or(u64::MAX),
            at_once: most_at_once(handled),
            served,
            busy,
            reader_busy_until,
            end: case.window.handoff.end,
            window_ns: at.total(),
        }
    }

    /// Threads known to serve requests.
    pub(super) fn threads(&self) -> usize {
        self.busy.len()
    }

    /// Those that could have taken the request.
    pub(super) fn idle(&self) -> usize {
        self.busy.values().filter(|&&ns| words::fraction(ns, self.window_ns) < BUSY).count()
    }

    pub(super) fn busy_fraction(&self) -> f64 {
        let total: f64 = self.busy.values().map(|&ns| ns as f64).sum();
        total / (self.window_ns.max(1) as f64 * self.threads() as f64)
    }

    /// Every thread was busy, and all of them together for enough of the time, and the one that read
    /// the request in the end did so when it was done with another. A pool has threads that have served
    /// nothing lately and are not known: had the dispatcher been late, this one would have been free
    /// for a while as well.
    pub(super) fn saturated(&self) -> bool {
        let all: u64 = self.busy.values().fold(0, |sum, &ns| sum.saturating_add(ns));
        let capacity = self.window_ns.saturating_mul(self.threads() as u64);
        self.idle() == 0 && proven(all, capacity) && self.reader_was_busy()
    }

    fn reader_was_busy(&self) -> bool {
        let free = self.reader_busy_until.map(|until| self.end.saturating_sub(until));
        free.is_some_and(|ns| ns <= SWITCH_NS.max(self.window_ns / 5))
    }

    /// What all threads waited for, if rows show one such thing for enough of the time of each.
    pub(super) fn stuck_on(&self, case: &Case<'_>, at: &Cover) -> Option<(Stuck, Shown)> {
        let mut by_cause: BTreeMap<Cause<'_>, OfThreads<'_>> = BTreeMap::new();
        let mut capacity = 0u64;
        for tid in self.busy.keys() {
            capacity = capacity.saturating_add(self.window_ns);
            for wait in case.waits.iter().filter(|w| w.tid == *tid) {
                let blocked = blocked(wait);
                if let Some(cause) = Cause::of(wait)
                    && at.within(blocked).total() > 0
                {
                    let of_thread = by_cause.entry(cause).or_default().entry(*tid).or_default();
                    of_thread.push((wait, blocked));
                }
            }
        }
        let shown = |waits: &[(&Wait, Interval)]| {
            waits.iter().map(|(_, whole)| *whole).collect::<Cover>().intersect(at).total()
        };
        let (cause, threads) = by_cause.into_iter().find(|(cause, threads)| {
            // Many short waits for a peer are its normal use: each thread must be stuck in one.
            let stuck = |waits: &[(&Wait, Interval)]| {
                let longest = waits.iter().map(|(_, whole)| at.within(*whole).total()).max();
                matches!(cause, Cause::Lock(_))
                    || longest.is_some_and(|ns| ns >= self.window_ns / 2)
            };
            threads.len() == self.threads()
                && threads
                    .values()
                    .all(|waits| proven(shown(waits), self.window_ns) && stuck(waits))
        })?;
        let rows = threads.values().flatten();
        let rows = rows.map(|(wait, whole)| (at.within(*whole).total(), wait_row(wait))).collect();
        let total = threads.values().fold(0u64, |sum, waits| sum.saturating_add(shown(waits)));
        let stuck = match cause {
            Cause::Peer(peer) => Stuck::Peer(peer.to_owned()),
            Cause::Lock(_) => {
                let mut releasers: BTreeMap<u32, Suspect> = BTreeMap::new();
                let ended = |w: &Wait| w.waker_tid != 0 && !is_foreign(w);
                for (wait, whole) in threads.values().flatten().filter(|(w, _)| ended(w)) {
                    let ns = at.within(*whole).total() / threads.len() as u64;
                    releasers.entry(wait.waker_tid).or_default().add(&wait.waker_thread, ns);
                }
                Stuck::Lock { releasers }
            }
        };
        Some((stuck, Shown { rows, shown: total, capacity }))
    }

    /// With so many threads none of the requests so far would have waited.
    pub(super) fn needed(&self) -> usize {
        self.at_once.max(self.threads() + 1)
    }

    pub(super) fn served_per_second(&self) -> f64 {
        self.threads() as f64 / (self.mean_handler_ns.max(1) as f64 / 1e9)
    }

    /// `9 requests came within 73.0 ms; `, unless none was ahead.
    pub(super) fn arrivals(&self) -> String {
        match (self.arrived, self.arrived_within_ns) {
            (1, _) => String::new(),
            (n, 0) => format!("{n} requests came at once; "),
            (n, ns) => format!("{n} requests came within {}; ", words::duration(ns)),
        }
    }

    /// `reading from a socket 92.0 %, on CPU 5.1 %`: what serving consisted of.
    pub(super) fn doing(&self) -> String {
        let states = self.states();
        let all: u64 = states.iter().fold(0, |sum, (_, ns)| sum.saturating_add(*ns));
        let top = states.iter().filter(|(_, ns)| words::fraction(*ns, all) >= 0.05).take(3);
        let top: Vec<_> =
            top.map(|(s, ns)| format!("{} {}", s.label(), words::percent(*ns, all))).collect();
        if top.is_empty() { String::from("in states not recorded") } else { top.join(", ") }
    }

    pub(super) fn advice(&self, case: &Case<'_>) -> String {
        let threads = self.threads();
        let needed = self.needed();
        let states = self.states();
        let all: f64 = states.iter().map(|(_, ns)| *ns as f64).sum();
        let on_cpu = |state: &State| {
            use State::*;
            matches!(state, Running | GcRun | Runnable | Throttled | GilWait | GcWait)
        };
        let sum = |of: &dyn Fn(&State) -> bool| -> f64 {
            states.iter().filter(|(state, _)| of(state)).map(|(_, ns)| *ns as f64).sum()
        };
        let mostly = |of: &dyn Fn(&State) -> bool| all > 0.0 && sum(of) / all > 0.5;
        let serving = match threads {
            1 => String::from("one thread serves them"),
            threads => format!("{threads} threads serve them"),
        };
        let advice = format!(
            "Had each been read when it came, {needed} requests would have been handled at once, and {serving}: "
        );
        let no_python = case.is_no_python();
        let server = case.server();
        let raise = match server {
            // It has no threads.
            Server::PhpFpm => format!("raise the worker processes{}", server.processes()),
            _ => format!("raise the worker threads to about {needed}{}", server.threads(needed)),
        };
        if mostly(&on_cpu) && no_python {
            // Elsewhere threads compute side by side.
            advice
                + "they mostly compute or wait for a CPU, so more threads help only as far as CPUs \
                   are free; else more CPUs, or handlers that compute less"
        } else if mostly(&on_cpu) {
            advice
                + "they mostly compute or wait for the interpreter, so more processes help, not \
                   more threads"
                + server.processes()
        } else if mostly(&|state| *state == State::LockWait) {
            // Not every futex is a lock: Java sleeps on one, and waits for a connection of a pool.
            advice
                + &raise
                + " unless they all wait for one thing (a lock, a connection pool), which \
                   `underspan explain` of one of them tells"
        } else {
            advice + &raise + ", or make the handler shorter"
        }
    }

    /// The ledgers of what was served, each by how much of it lies in the window; largest first.
    fn states(&self) -> Vec<(State, u64)> {
        let mut sums = [0f64; STATES];
        for (ns, request) in &self.served {
            let window = Window::of(request);
            let share = *ns as f64 / window.handler.len().max(1) as f64;
            for (state, cell) in window.ledger.iter() {
                sums[state.index()] += cell as f64 * share;
            }
        }
        let mut states: Vec<_> = State::ALL.into_iter().zip(sums.map(|ns| ns as u64)).collect();
        states.sort_by_key(|(state, ns)| (std::cmp::Reverse(*ns), *state));
        states
    }
}

/// How many of these overlap, at the most.
fn most_at_once(handled: Vec<Interval>) -> usize {
    let begins = handled.iter().map(|one| (one.start, true));
    let mut changes: Vec<_> = begins.chain(handled.iter().map(|one| (one.end, false))).collect();
    // Who is done makes room for who comes at the same moment.
    changes.sort_unstable();
    let (mut now, mut most) = (0usize, 0);
    for (_, begins) in changes {
        now = if begins { now + 1 } else { now.saturating_sub(1) };
        most = most.max(now);
    }
    most
}
