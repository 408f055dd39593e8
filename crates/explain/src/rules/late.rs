//! What kept a thread from going on with a request that waited for it, where no single thing did for
//! long enough.

use std::collections::{BTreeMap, BTreeSet};

use underspan_model::State;

use crate::case::{
    Case, STOPPED, Suspect, blocked, doing_words, gc_row, gil_row, ready, request_row, stopped,
    wait_row,
};
use crate::finding::{Culprit, RowRef};
use crate::interval::{Cover, Interval};
use crate::rules::contention::{held, without_cpu};
use crate::window::{Window, is_gil};
use crate::words;

/// Parts that are less than this share of what is to be explained are not told.
const TOLD: f64 = 0.05;

/// States in which a thread that has nothing to do waits for work.
pub(super) const IDLE: [State; 2] = [State::PollWait, State::LockWait];

/// A thread for some time: what rows show of it. No two parts share an instant.
pub(super) struct Late<'a> {
    tid: u32,
    thread: &'a str,
    parts: Vec<Part>,
    pub(super) rows: Vec<(u64, RowRef)>,
    /// Who held the interpreter or collected meanwhile.
    pub(super) holders: BTreeMap<u32, Suspect>,
    /// What the thread did of its own, or for other requests.
    pub(super) own: u64,
    pub(super) shown: Cover,
}

struct Part {
    ns: u64,
    text: String,
    why: Why,
}

#[derive(Clone, Copy, PartialEq)]
enum Why {
    /// It waited for a CPU.
    Cpu,
    /// A quota held it back.
    Quota,
    /// It was stopped or frozen.
    Stopped,
    Else,
}

impl<'a> Late<'a> {
    /// Waiting in one of the states in `idle` is no reason to be late, but what followed it is: the
    /// thread was woken, and then waited for a CPU.
    pub(super) fn of(
        case: &Case<'a>,
        tid: u32,
        at: &Cover,
        idle: &[State],
        serves: bool,
    ) -> Late<'a> {
        let served = case.siblings.iter().filter(|s| s.tid == tid && s.shared_thread == 0);
        let served: Vec<_> = served
            .map(|s| (at.within(Window::of(s).handler), *s))
            .filter(|(part, _)| serves && part.total() > 0)
            .collect();
        let waits: Vec<_> = case.waits.iter().filter(|w| w.tid == tid).copied().collect();
        let gil_waits: Vec<_> = case.gil_waits.iter().filter(|w| w.tid == tid).copied().collect();
        let names = waits.iter().map(|w| &w.thread).chain(gil_waits.iter().map(|w| &w.thread));
        let mut names = names.chain(served.iter().map(|(_, s)| &s.thread));
        let own_name = (tid == case.request.tid).then_some(&case.request.thread);
        let thread = names.find(|name| !name.is_empty()).or(own_name).map_or("", String::as_str);
        let mut late = Late {
            tid,
            thread,
            parts: Vec::new(),
            rows: Vec::new(),
            holders: BTreeMap::new(),
            own: 0,
            shown: Cover::default(),
        };
        late.interpreter(case, at, &gil_waits);
        if !served.is_empty() {
            let cover = served.iter().fold(Cover::default(), |all, (part, _)| all.union(part));
            let ns = late.take(&cover);
            late.own += ns;
            late.rows.extend(served.iter().map(|(part, s)| (part.total(), request_row(s))));
            let what = words::count(served.len(), "other request");
            late.add(ns, format!("busy with {what} for {}", words::duration(ns)), Why::Else);
        }
        // How the time of a wait for the GIL splits, its row does not tell.
        let mut states: BTreeMap<(State, bool), Cover> = BTreeMap::new();
        for wait in waits.iter().filter(|w| !is_gil(w.state)) {
            let mut shown = 0;
            let mut count = |state, interval| {
                let part = at.within(interval);
                shown += part.total();
                let held = state == wait.state && stopped(wait);
                let cover = states.entry((state, held)).or_default();
                *cover = cover.union(&part);
            };
            match wait.state {
                State::Runnable | State::Throttled => count(wait.state, ready(wait)),
                state => {
                    count(State::Runnable, ready(wait));
                    if !idle.contains(&state) {
                        count(state, blocked(wait));
                    }
                }
            }
            if shown > 0 {
                late.rows.push((shown, wait_row(wait)));
            }
        }
        for ((state, held), cover) in states {
            let ns = late.take(&cover);
            let (why, what) = match state {
                State::Runnable => (Why::Cpu, state.label()),
                State::Throttled => (Why::Quota, state.label()),
                _ if held => (Why::Stopped, STOPPED),
                _ => (Why::Else, state.label()),
            };
            // Neither is its own doing.
            if why == Why::Else {
                late.own += ns;
            }
            late.add(ns, format!("{what} for {}", words::duration(ns)), why);
        }
        late.parts.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.text.cmp(&b.text)));
        late
    }

    /// Waits for the GIL, those for a collection apart.
    fn interpreter(
        &mut self,
        case: &Case<'a>,
        at: &Cover,
        gil_waits: &[&'a underspan_model::GilWait],
    ) {
        let Some(hull) = at.hull() else { return };
        let waited = case.gil_cover(self.tid, hull).intersect(at);
        let mut collectors: BTreeMap<u32, Suspect> = BTreeMap::new();
        let mut collecting = Cover::default();
        for pause in case.pauses.iter().filter(|p| p.tid != self.tid) {
            let part = waited.within(Interval::new(pause.start_time, pause.duration_ns));
            if part.total() > 0 {
                collectors.entry(pause.tid).or_default().add(&pause.thread, part.total());
                self.rows.push((part.total(), gc_row(pause)));
                collecting = collecting.union(&part);
            }
        }
        let mut holders: BTreeMap<u32, Suspect> = BTreeMap::new();
        for wait in gil_waits.iter().filter(|w| w.holder_tid != self.tid) {
            let part = Interval::new(wait.start_time, wait.duration_ns).overlap(hull);
            let ns = at.within(part).total();
            if ns > 0 {
                self.rows.push((ns, gil_row(wait)));
            }
            if wait.holder_tid != 0 {
                let suspect = holders.entry(wait.holder_tid).or_default();
                // Who had no CPU was a victim as well.
                let starved = without_cpu(case, wait.holder_tid, part).intersect(at).total();
                suspect.add(&wait.holder_thread, held(wait, part).min(ns.saturating_sub(starved)));
            }
        }
        let covers =
            [(State::GcWait, collecting.clone()), (State::GilWait, waited.subtract(&collecting))];
        for (state, cover) in covers {
            let ns = self.take(&cover);
            let suspects = if state == State::GcWait { &collectors } else { &holders };
            let who = case.blame(suspects, ns, &cover).map(|c| (c.named(), doing_words(&c)));
            let who = match who {
                None => String::new(),
                Some((who, doing)) if state == State::GcWait => format!(" (by {who}{doing})"),
                Some((who, doing)) => format!(" (held by {who}{doing})"),
            };
            self.add(ns, format!("{} for {}{who}", state.label(), words::duration(ns)), Why::Else);
        }
        // The same thread may have collected and held it.
        for (tid, suspect) in collectors.into_iter().chain(holders) {
            self.holders.entry(tid).or_default().add(&suspect.name, suspect.ns);
        }
    }

    /// What of this is not told yet.
    fn take(&mut self, cover: &Cover) -> u64 {
        let new = cover.subtract(&self.shown);
        self.shown = self.shown.union(&new);
        new.total()
    }

    fn add(&mut self, ns: u64, text: String, why: Why) {
        if ns > 0 {
            self.parts.push(Part { ns, text, why });
        }
    }

    /// Most of what is shown is waiting for a CPU.
    pub(super) fn lacked_cpu(&self) -> bool {
        self.mostly(Why::Cpu)
    }

    /// For how long a quota held it back.
    pub(super) fn throttled(&self) -> u64 {
        self.sum(Why::Quota)
    }

    /// Most of what is shown is that the thread was stopped or frozen.
    pub(super) fn was_stopped(&self) -> bool {
        self.mostly(Why::Stopped)
    }

    fn mostly(&self, why: Why) -> bool {
        words::fraction(self.sum(why), self.shown.total()) > 0.5
    }

    fn sum(&self, why: Why) -> u64 {
        self.parts.iter().filter(|p| p.why == why).map(|p| p.ns).sum()
    }

    /// `thread MainThread (4711), which accepts, was reading from a socket for 21.6 ms and …`, unless
    /// there is nothing to tell.
    pub(super) fn words(&self, role: &str, of_ns: u64) -> Option<String> {
        let told = self.parts.iter().filter(|p| words::fraction(p.ns, of_ns) >= TOLD);
        let told: Vec<_> = told.map(|p| p.text.as_str()).collect();
        let (last, others) = told.split_last()?;
        let all = match others {
            [] => (*last).to_owned(),
            others => format!("{} and {last}", others.join(", ")),
        };
        Some(format!("thread {} ({}), which {role}, was {all}", self.thread, self.tid))
    }

    /// The thread itself, if what it did of its own fills enough of the time.
    pub(super) fn itself(&self, case: &Case<'_>, at: &Cover) -> Culprit {
        // It did several things: its stacks are of some of them only.
        Culprit { place: None, ..case.thread(self.tid, self.thread, self.own, at) }
    }
}

/// When a thread that waited for work was given some, as an instant of this phase: before, whoever
/// hands out the work was late, and afterwards the thread itself.
pub(super) fn woken(case: &Case<'_>, tid: u32, phase: Interval) -> Option<u64> {
    let idle = case.waits.iter().filter(|w| w.tid == tid && IDLE.contains(&w.state));
    let ends: BTreeSet<u64> = idle
        .map(|w| blocked(w))
        .filter(|wait| wait.overlap(phase).len() > 0)
        .map(|wait| wait.end.min(phase.end))
        .collect();
    ends.last().copied()
}
