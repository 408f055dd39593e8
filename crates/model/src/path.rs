//! The critical path of a stretch of a thread's time: who ran, or what was waited for, at each moment
//! that it could not have gone on earlier.
//!
//! Walked backwards. While the thread ran, it is on the path itself. While it slept, whoever ended the
//! sleep is: what that thread did meanwhile is why the sleep took so long. A sleep that no task ended
//! (a timer, the network, a disk) is on the path itself: the interrupt's bystander is no culprit.

use std::collections::{HashMap, VecDeque};

use crate::State;

/// A wait of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// When it left the CPU.
    pub start: u64,
    /// When it was woken; `start` if it was never blocked.
    pub woken: u64,
    /// When it was back on a CPU.
    pub end: u64,
    /// What it waited for.
    pub state: State,
    /// The thread that ended the sleep, 0 if none did.
    pub waker_tid: u32,
}

/// What happens on a step of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// The thread ran, or waited for less than the threshold from which waits are told.
    Run,
    /// It was ready and had no CPU.
    Runnable,
    /// It waited for something that no task ended, or whose waker is not known further.
    Wait,
    /// Nothing is known of the thread at that time: its waits have been forgotten, or are too many.
    Unknown,
}

impl StepKind {
    /// As in the column `kind`.
    pub const fn name(self) -> &'static str {
        match self {
            StepKind::Run => "run",
            StepKind::Runnable => "runnable",
            StepKind::Wait => "wait",
            StepKind::Unknown => "unknown",
        }
    }
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// When it begins.
    pub start: u64,
    /// When it ends.
    pub end: u64,
    /// The thread that is on the path.
    pub tid: u32,
    /// What it does.
    pub kind: StepKind,
    /// In which state.
    pub state: State,
    /// How many wakers away from the first thread.
    pub depth: u16,
}

/// Waits by thread, each thread's in order of time and not overlapping.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    by_thread: HashMap<u32, VecDeque<Blocked>>,
    /// Since when every wait of a thread is known.
    watched: HashMap<u32, u64>,
    /// What was before this may have been forgotten.
    horizon: u64,
}

/// Wakers that are followed one from another.
const MAX_DEPTH: u16 = 16;
/// Steps of one path. Beyond them the rest is told as one step of its thread, of which nothing is known.
const MAX_STEPS: usize = 256;

impl Waits {
    /// The threads of which every wait is known, and since when. Others are not followed, nor these to
    /// before that: that nothing is known of a thread does not mean that it ran.
    pub fn watch(&mut self, threads: impl Iterator<Item = (u32, u64)>) {
        self.watched.clear();
        self.watched.extend(threads);
    }

    /// One more.
    pub fn watch_one(&mut self, thread: u32, since: u64) {
        self.watched.insert(thread, since);
    }

    /// Whether every wait of this thread is known, from some time on.
    pub fn knows(&self, thread: u32) -> bool {
        self.watched.contains_key(&thread)
    }

    /// Adds a wait. Waits of a thread may come in any order; one that overlaps another is left out,
    /// since only one of them can be true.
    pub fn push(&mut self, tid: u32, wait: Blocked) {
        if wait.end <= wait.start || wait.woken < wait.start || wait.woken > wait.end {
            return;
        }
        let waits = self.by_thread.entry(tid).or_default();
        // Nearly always it is the latest.
        let at = match waits.back() {
            Some(last) if last.start >= wait.start => {
                waits.partition_point(|other| other.start < wait.start)
            }
            _ => waits.len(),
        };
        let before = at.checked_sub(1).and_then(|at| waits.get(at));
        if before.is_some_and(|other| other.end > wait.start)
            || waits.get(at).is_some_and(|other| other.start < wait.end)
        {
            return;
        }
        waits.insert(at, wait);
    }

    /// Forgets waits that ended before this time.
    pub fn forget_before(&mut self, time: u64) {
        self.horizon = self.horizon.max(time);
        self.by_thread.retain(|_, waits| {
            let keep = waits.partition_point(|wait| wait.end < time);
            waits.drain(..keep);
            !waits.is_empty()
        });
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_thread.values().map(VecDeque::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_thread.is_empty()
    }

    /// The latest wait of a thread that began before this time.
    fn before(&self, tid: u32, time: u64) -> Option<&Blocked> {
        let waits = self.by_thread.get(&tid)?;
        let at = waits.partition_point(|wait| wait.start < time);
        waits.get(at.checked_sub(1)?)
    }

    /// The path of a thread's time, in order. Its steps cover it without gap or overlap.
    pub fn path(&self, tid: u32, start: u64, end: u64) -> Vec<Step> {
        let mut steps = Vec::new();
        let known = self.horizon.clamp(start, end.max(start));
        self.walk(tid, known, end, 0, &mut vec![tid], &mut steps);
        if known > start {
            let (kind, state) = (StepKind::Unknown, State::Other);
            steps.push(Step { start, end: known, tid, kind, state, depth: 0 });
        }
        steps.reverse();
        steps
    }

    /// Adds the steps between two times, last first.
    fn walk(
        &self,
        tid: u32,
        start: u64,
        end: u64,
        depth: u16,
        chain: &mut Vec<u32>,
        steps: &mut Vec<Step>,
    ) {
        let mut until = end;
        let add = |steps: &mut Vec<Step>, from: u64, until: u64, kind, state| {
            if until > from {
                steps.push(Step { start: from, end: until, tid, kind, state, depth });
            }
        };
        while until > start {
            let wait = self.before(tid, until).filter(|wait| wait.end > start);
            let Some(wait) = wait else {
                add(steps, start, until, StepKind::Run, State::Running);
                return;
            };
            if steps.len() >= MAX_STEPS {
                add(steps, start, until, StepKind::Unknown, State::Other);
                return;
            }
            let (from, woken, back) =
                (wait.start.max(start), wait.woken.clamp(start, until), wait.end.min(until));
            add(steps, back, until, StepKind::Run, State::Running);
            add(steps, woken, back, StepKind::Runnable, State::Runnable);
            // A thread that is on the chain already waited for itself: a circle of wake-ups.
            let follow = depth < MAX_DEPTH && !chain.contains(&wait.waker_tid);
            let known = self.watched.get(&wait.waker_tid).filter(|_| follow && woken > from);
            // Until there was the waker, or anything was known of it, it is still this thread that waits.
            let since = known.map_or(woken, |since| (*since).clamp(from, woken));
            if since < woken {
                chain.push(wait.waker_tid);
                self.walk(wait.waker_tid, since, woken, depth + 1, chain, steps);
                chain.pop();
            }
            add(steps, from, since, StepKind::Wait, wait.state);
            until = from;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wait(start: u64, woken: u64, end: u64, state: State, waker_tid: u32) -> Blocked {
        Blocked { start, woken, end, state, waker_tid }
    }

    fn path(waits: &[(u32, Blocked)], end: u64) -> Vec<(u64, u64, u32, StepKind, State)> {
        let mut known = Waits::default();
        waits.iter().for_each(|(tid, wait)| known.push(*tid, *wait));
        known.watch((1..5).map(|tid| (tid, 0)));
        let steps = known.path(1, 0, end);
        steps.into_iter().map(|s| (s.start, s.end, s.tid, s.kind, s.state)).collect()
    }

    #[test]
    fn a_lock_is_explained_by_what_its_holder_did() {
        use StepKind::*;
        // 1 waits for 2, which reads from a socket meanwhile.
        let waits =
            [(1, wait(10, 90, 95, State::LockWait, 2)), (2, wait(20, 60, 60, State::NetRead, 0))];
        assert_eq!(
            path(&waits, 100),
            [
                (0, 10, 1, Run, State::Running),
                (10, 20, 2, Run, State::Running),
                (20, 60, 2, Wait, State::NetRead),
                (60, 90, 2, Run, State::Running),
                (90, 95, 1, Runnable, State::Runnable),
                (95, 100, 1, Run, State::Running),
            ]
        );
    }

    #[test]
    fn an_interrupts_bystander_is_never_on_the_path() {
        let waits =
            [(1, wait(10, 90, 90, State::Sleep, 0)), (2, wait(20, 60, 60, State::NetRead, 0))];
        let tids: Vec<_> = path(&waits, 100).into_iter().map(|step| step.2).collect();
        assert_eq!(tids, [1, 1, 1]);
    }

    #[test]
    fn chains_are_followed_and_circles_are_not() {
        let chain = [
            (1, wait(0, 100, 100, State::LockWait, 2)),
            (2, wait(10, 90, 90, State::LockWait, 3)),
            (3, wait(20, 80, 80, State::DiskIo, 0)),
        ];
        let tids: Vec<_> = path(&chain, 100).into_iter().map(|step| step.2).collect();
        assert_eq!(tids, [2, 3, 3, 3, 2]);
        let circle =
            [(1, wait(0, 100, 100, State::LockWait, 2)), (2, wait(10, 90, 90, State::LockWait, 1))];
        let steps = path(&circle, 100);
        assert_eq!(steps[1], (10, 90, 2, StepKind::Wait, State::LockWait));
    }

    #[test]
    fn who_is_not_watched_is_not_said_to_have_run() {
        let waits = [(1, wait(0, 100, 100, State::PipeIpc, 9))];
        assert_eq!(path(&waits, 100), [(0, 100, 1, StepKind::Wait, State::PipeIpc)]);
    }

    #[test]
    fn a_waker_did_nothing_before_it_was_born() {
        let mut known = Waits::default();
        known.watch([(1, 0), (2, 70)].into_iter());
        known.push(1, wait(10, 90, 90, State::LockWait, 2));
        let steps: Vec<_> = known.path(1, 0, 100);
        let steps: Vec<_> = steps.into_iter().map(|s| (s.start, s.end, s.tid, s.kind)).collect();
        assert_eq!(
            steps,
            [
                (0, 10, 1, StepKind::Run),
                (10, 70, 1, StepKind::Wait),
                (70, 90, 2, StepKind::Run),
                (90, 100, 1, StepKind::Run),
            ]
        );
    }

    #[test]
    fn what_has_been_forgotten_is_not_taken_for_running() {
        let mut known = Waits::default();
        known.watch([(1, 0), (2, 0)].into_iter());
        known.push(1, wait(10, 40, 40, State::Sleep, 0));
        known.push(2, wait(20, 50, 50, State::NetRead, 0));
        known.push(1, wait(60, 90, 90, State::LockWait, 2));
        known.forget_before(70);
        let steps: Vec<_> = known.path(1, 0, 100);
        let steps: Vec<_> = steps.into_iter().map(|s| (s.start, s.end, s.tid, s.kind)).collect();
        assert_eq!(
            steps,
            [
                (0, 70, 1, StepKind::Unknown),
                (70, 90, 2, StepKind::Run),
                (90, 100, 1, StepKind::Run)
            ]
        );
    }

    #[test]
    fn more_steps_than_are_told_are_not_taken_for_running() {
        let mut known = Waits::default();
        let last = 2 * MAX_STEPS as u64;
        for n in 0..last {
            known.push(1, wait(10 * n, 10 * n + 5, 10 * n + 5, State::Sleep, 0));
        }
        let steps = known.path(1, 0, 10 * last);
        assert_eq!((steps[0].kind, steps[0].start), (StepKind::Unknown, 0));
        assert!(steps[0].end > 10 && steps.len() <= MAX_STEPS + 1, "{}", steps.len());
    }

    #[test]
    fn a_wait_that_began_before_is_cut_off() {
        let mut known = Waits::default();
        known.push(1, wait(0, 90, 90, State::Sleep, 0));
        let steps = known.path(1, 50, 100);
        assert_eq!((steps[0].start, steps[0].end, steps[0].kind), (50, 90, StepKind::Wait));
    }

    #[test]
    fn what_cannot_be_is_left_out() {
        let mut known = Waits::default();
        known.push(1, wait(10, 5, 20, State::Sleep, 0));
        known.push(1, wait(10, 25, 20, State::Sleep, 0));
        known.push(1, wait(20, 20, 20, State::Sleep, 0));
        assert!(known.is_empty());
        known.push(1, wait(10, 20, 20, State::Sleep, 0));
        known.push(1, wait(15, 30, 30, State::Sleep, 0));
        assert_eq!(known.len(), 1);
        known.forget_before(21);
        assert!(known.is_empty());
    }

    proptest! {
        /// Whatever the waits are, the steps cover the time exactly.
        #[test]
        fn steps_cover_the_time(
            waits in proptest::collection::vec((1u32..6, 0u64..1000, 0u64..200, 0u64..50, 0u32..6), 0..60),
            start in 0u64..500,
            length in 0u64..800,
        ) {
            let mut known = Waits::default();
            known.watch((1..5).map(|tid| (tid, 0)));
            for (tid, start, blocked, ready, waker) in waits {
                let woken = start + blocked;
                known.push(tid, wait(start, woken, woken + ready, State::LockWait, waker));
            }
            let steps = known.path(1, start, start + length);
            let mut at = start;
            for step in &steps {
                prop_assert_eq!(step.start, at);
                prop_assert!(step.end > step.start && step.depth <= MAX_DEPTH);
                at = step.end;
            }
            prop_assert_eq!(at, start + length);
        }
    }
}
