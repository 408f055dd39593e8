//! Garbage collection: by another thread (which stops this one), and by the thread itself.

use std::collections::BTreeMap;

use underspan_model::{GcPause, State};

use crate::case::{Case, Draft, Suspect, clipped, doing_words, gc_row, proven};
use crate::finding::{Culprit, Finding, INTERFERENCE, Kind, Relation};
use crate::interval::{Cover, Interval};
use crate::place::{Place, asks_to_collect};
use crate::words;

fn freeze(case: &Case<'_>) -> String {
    format!(
        "Take what lives for ever out of the collector's sight: call gc.freeze() once start-up is done{}. \
         In the job that collects, switch the collector off with gc.disable() while it runs, or raise \
         gc.set_threshold()",
        case.server().after_fork()
    )
}

/// What is told of collections that code asked for, and what helps against these.
struct Asked {
    text: String,
    advice: String,
}

impl Asked {
    /// If stacks show it for most of what was sampled of these collections.
    fn of<'a>(case: &Case<'_>, pauses: impl Iterator<Item = &'a GcPause>) -> Option<Self> {
        let (mut places, mut total) = (BTreeMap::<Place, u64>::new(), 0u64);
        for pause in pauses {
            for sample in case.samples.iter().filter(|s| s.pid == pause.pid && s.tid == pause.tid) {
                let taken = Interval::new(sample.start_time, sample.duration_ns);
                let ns = taken.overlap(interval(pause)).len();
                total = total.saturating_add(ns);
                if let Some(place) = asks_to_collect(&sample.stack).filter(|_| ns > 0) {
                    let sum = places.entry(place).or_default();
                    *sum = sum.saturating_add(ns);
                }
            }
        }
        let asked = places.values().fold(0u64, |sum, ns| sum.saturating_add(*ns));
        let (place, _) = places.iter().max_by_key(|(_, ns)| **ns)?;
        (words::fraction(asked, total) > 0.5).then(|| Asked {
            text: format!("; it was told to: gc.collect() is called in {}", place.words()),
            advice: format!(
                "Take what lives for ever out of the collector's sight: call gc.freeze() once start-up is \
                 done{}; then gc.collect() in {} ({}:{}) looks only at what came since. Or take that call \
                 away: the interpreter collects by itself when enough objects are new",
                case.server().after_fork(),
                place.caller,
                place.file,
                place.line
            ),
        })
    }
}

/// Collections by other threads, and the part of the queues that they explain.
pub(super) fn siblings(case: &Case<'_>) -> (Option<Finding>, Cover) {
    let request = case.request;
    let queues = explained_queues(case);
    let waited = case.window.ledger[State::GcWait];
    let rows = case.gil_cover(request.tid, case.window.handler);
    let others = case.pauses.iter().filter(|p| p.tid != request.tid);
    let in_handler = others.map(|p| interval(p)).collect::<Cover>().intersect(&rows);

    let parts = [
        ("accept_queue", queues.within(case.window.accept_queue).total()),
        ("handoff", queues.within(case.window.handoff).total()),
        (State::GcWait.name(), waited),
    ];
    let ns = parts.iter().map(|(_, ns)| ns).sum();
    if !case.worth(ns, INTERFERENCE) {
        return (None, Cover::default());
    }
    let at: Cover = queues.union(&in_handler);
    let (culprit, rows) = collectors(case, &at, ns);
    let meanwhile = case.pauses.iter().filter(|p| p.tid != request.tid);
    let overlapping =
        !clipped(meanwhile.map(|p| (*p, interval(p))), case.window.handler).is_empty();
    let draft = case.draft(Kind::GcWait, &parts).located(case, &at).rows(rows);
    let finding = match culprit {
        Some(culprit) => caused(case, draft, culprit, &at, ns),
        None if overlapping => draft.relation(Relation::Coincided).say(
            format!(
                "It waited {} for a collection by another thread. Collections were seen meanwhile, \
                 but rows show them for less than four fifths of that time",
                words::duration(ns)
            ),
            freeze(case),
        ),
        None => draft.say(
            format!(
                "It waited {} for a collection by another thread; no row says which",
                words::duration(ns)
            ),
            freeze(case),
        ),
    };
    (Some(finding), queues)
}

/// The collections of which the thread itself was the victim and the author.
pub(super) fn own(case: &Case<'_>) -> Option<Finding> {
    let ns = case.window.ledger[State::GcRun];
    if !case.worth(ns, INTERFERENCE) {
        return None;
    }
    let request = case.request;
    let own = case.pauses.iter().filter(|p| p.tid == request.tid);
    let own = clipped(own.map(|p| (*p, interval(p))), case.window.handler);
    let at: Cover = own.iter().map(|(_, part)| *part).collect();
    let counted: Vec<_> = own.iter().map(|(p, part)| (*p, part.len())).collect();
    let culprit = Culprit {
        host: request.host.clone(),
        pid: request.pid,
        tid: request.tid,
        thread: request.thread.clone(),
        ..describe(&counted, Culprit::new(ns))
    };
    let text = format!(
        "Its own thread collected garbage for {} ({})",
        words::duration(ns),
        summary(&counted, &culprit)
    );
    let asked = Asked::of(case, own.iter().map(|(pause, _)| *pause));
    let rows = own.iter().map(|(p, part)| (part.len(), gc_row(p))).collect();
    let draft = case.draft(Kind::GcRun, &[(State::GcRun.name(), ns)]);
    let draft = draft.relation(Relation::Caused).culprit(Some(culprit));
    let advice = format!(
        "Call gc.freeze() once start-up is done{}, and raise gc.set_threshold(); look for what creates \
         many cyclic objects in this handler",
        case.server().after_fork()
    );
    let draft = draft.located(case, &at).rows(rows);
    Some(match asked {
        Some(asked) => draft.say(text + &asked.text, asked.advice),
        None => draft.say(text, advice),
    })
}

/// A queue is explained by collections if they fill it, and if a thread that was needed to go on is
/// seen waiting for the interpreter meanwhile.
fn explained_queues(case: &Case<'_>) -> Cover {
    let (window, request) = (&case.window, case.request);
    let all: Cover = case.pauses.iter().map(|p| interval(p)).collect();
    let explained = |phase: Interval| {
        let collecting = all.within(phase);
        let acceptor = case.gil_cover(request.accept_tid, phase);
        let witnessed = acceptor.union(&case.gil_cover(request.tid, phase)).intersect(&collecting);
        let yes = proven(collecting.total(), phase.len())
            && proven(witnessed.total(), collecting.total());
        if yes { collecting } else { Cover::default() }
    };
    explained(window.accept_queue).union(&explained(window.handoff))
}

/// Who collected during `at`, if that accounts for `ns`.
fn collectors(
    case: &Case<'_>,
    at: &Cover,
    ns: u64,
) -> (Option<Culprit>, Vec<(u64, crate::finding::RowRef)>) {
    let mut by_thread: BTreeMap<u32, (&str, Vec<Interval>)> = BTreeMap::new();
    let mut rows = Vec::new();
    for pause in &case.pauses {
        let part = at.within(interval(pause));
        if part.total() > 0 {
            rows.push((part.total(), gc_row(pause)));
            let entry = by_thread.entry(pause.tid).or_insert((&pause.thread, Vec::new()));
            entry.1.push(interval(pause));
        }
    }
    let suspects: BTreeMap<u32, Suspect> = by_thread
        .into_iter()
        .map(|(tid, (name, pauses))| {
            let ns = pauses.into_iter().collect::<Cover>().intersect(at).total();
            (tid, Suspect { name: name.to_owned(), ns })
        })
        .collect();
    let culprit = case.blame(&suspects, ns, at);
    (culprit.map(|culprit| describe(&by(case, &culprit, at), culprit)), rows)
}

/// The culprit's collections, each with how much of it lies in the time it is blamed for.
fn by<'a>(case: &Case<'a>, culprit: &Culprit, at: &Cover) -> Vec<(&'a GcPause, u64)> {
    let pauses = case.pauses.iter().filter(|p| culprit.tid == 0 || p.tid == culprit.tid);
    let pauses = pauses.map(|p| (*p, at.within(interval(p)).total()));
    pauses.filter(|(_, ns)| *ns > 0).collect()
}

fn caused(case: &Case<'_>, draft: Draft, culprit: Culprit, at: &Cover, ns: u64) -> Finding {
    let pauses = by(case, &culprit, at);
    let mut who = culprit.named();
    if let Some(first) = who.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let mut doing = doing_words(&culprit);
    if !doing.is_empty() {
        doing.push(',');
    }
    let text = format!(
        "{who} collected garbage{doing} and stopped every other thread: this request lost {} ({})",
        words::duration(ns),
        summary(&pauses, &culprit),
    );
    let asked = Asked::of(case, pauses.iter().map(|(pause, _)| *pause));
    let draft = draft.relation(Relation::Caused).culprit(Some(culprit));
    match asked {
        Some(asked) => draft.say(text + &asked.text, asked.advice),
        None => draft.say(text, freeze(case)),
    }
}

/// Adds the generation that took longest and the number of objects collected.
fn describe(pauses: &[(&GcPause, u64)], culprit: Culprit) -> Culprit {
    let mut by_generation: BTreeMap<i8, u64> = BTreeMap::new();
    for (pause, part) in pauses {
        let ns = by_generation.entry(pause.generation).or_default();
        *ns = ns.saturating_add(*part);
    }
    let generation = by_generation.into_iter().max_by_key(|(_, ns)| *ns).map(|(g, _)| g);
    let known: Vec<_> = pauses.iter().map(|(p, _)| p.collected).filter(|&n| n >= 0).collect();
    let collected = known.iter().fold(0i64, |sum, n| sum.saturating_add(*n));
    Culprit {
        generation: generation.unwrap_or(-1),
        collected: if known.is_empty() { -1 } else { collected },
        ..culprit
    }
}

/// `2 collections, generation 2, 41 objects collected, the longest 1210.0 ms`.
fn summary(pauses: &[(&GcPause, u64)], culprit: &Culprit) -> String {
    let Some(longest) = pauses.iter().map(|(p, _)| p.duration_ns).max() else {
        return String::from("no row of its own: seen in the ledger");
    };
    let mut words = vec![words::count(pauses.len(), "collection")];
    if culprit.generation >= 0 {
        let all = pauses.iter().all(|(p, _)| p.generation == culprit.generation);
        let mostly = if all { "" } else { "mostly " };
        words.push(format!("{mostly}generation {}", culprit.generation));
    }
    if culprit.collected >= 0 {
        let objects = usize::try_from(culprit.collected).unwrap_or(usize::MAX);
        words.push(format!("{} collected", words::count(objects, "object")));
    }
    words.push(format!("the longest {}", words::duration(longest)));
    words.join(", ")
}

fn interval(pause: &GcPause) -> Interval {
    Interval::new(pause.start_time, pause.duration_ns)
}
