//! The rules. Each looks at parts of the request's time that no other rule looks at.

mod claims;
mod contention;
mod cpu;
mod gc;
mod go;
mod io;
mod late;
mod listener;
mod lock_kind;
mod loop_lag;
mod meanwhile;
mod pool;
mod queue;
mod reader;
mod restart;
mod stalls;
mod unpooled;
mod worker;

pub use meanwhile::Circumstance;

use underspan_model::State;

use crate::case::Case;
use crate::finding::Finding;
use crate::interval::Cover;
use crate::place::Place;
use crate::rules::claims::Claims;

/// All findings, longest first. What one of them advises the next do not say again.
pub(crate) fn all(case: &Case<'_>) -> Vec<Finding> {
    let mut findings = found(case);
    let mut said: Vec<(String, usize)> = Vec::new();
    for (n, finding) in findings.iter_mut().enumerate() {
        let sentences: Vec<_> = finding.advice.split(". ").map(str::to_owned).collect();
        let before = |sentence: &String| said.iter().find(|(known, _)| known == sentence);
        let earlier = sentences.iter().find_map(|sentence| before(sentence).map(|(_, n)| *n));
        let new: Vec<_> = sentences.into_iter().filter(|s| before(s).is_none()).collect();
        finding.advice = match (new.is_empty(), earlier) {
            (true, Some(earlier)) => format!("As for finding {earlier}"),
            _ => new.join(". "),
        };
        said.extend(new.into_iter().map(|sentence| (sentence, n + 1)));
    }
    findings
}

fn found(case: &Case<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_go = go::is_go(case);
    if case.request.shared_thread != 0 {
        if is_go {
            findings.extend(go::queues(case, &Cover::default()));
        } else {
            findings.extend(loop_lag::find(case));
            // That the loop stood still meanwhile is of no matter to who waited for a worker.
            findings.extend(worker::find(case).or_else(|| loop_lag::in_handler(case)));
        }
        findings.sort_by_key(|finding| (std::cmp::Reverse(finding.ns), finding.kind));
        return findings;
    }
    // Collections stop every thread of the process, also those that accept and hand off: what they
    // explain of the queues is no longer the queues' to explain.
    let (collections, explained) = gc::siblings(case);
    findings.extend(collections);
    if is_go {
        findings.extend(go::queues(case, &explained));
    } else if let Some(lag) = loop_lag::before_its_turn(case, &explained) {
        findings.push(lag);
    } else {
        findings.extend(queue::accept_queue(case, &explained));
        findings.extend(queue::handoff(case, &explained));
    }
    findings.extend(gc::own(case));
    findings.extend(contention::gil(case));
    findings.extend(contention::lock(case));
    findings.extend(cpu::find(case));
    // What happened on single sockets; the rest of these states is the peers' own time.
    let mut claims = Claims::default();
    findings.extend(stalls::find(case, &mut claims));
    findings.extend(unpooled::find(case, &mut claims));
    findings.extend(io::find(case, &claims));
    if is_go {
        findings = findings.into_iter().map(|finding| go::doubted(case, finding)).collect();
    }
    for finding in &mut findings {
        finding.place = own_place(case, finding);
    }
    findings.sort_by_key(|finding| (std::cmp::Reverse(finding.ns), finding.kind));
    findings
}

/// Connections that were dropped at the request's listener shortly before it came.
pub(crate) fn dropped_before(case: &Case<'_>) -> u64 {
    listener::dropped_before(case)
}

/// What went on in the host meanwhile.
pub(crate) fn meanwhile(case: &Case<'_>, findings: &[Finding]) -> Vec<Circumstance> {
    meanwhile::find(case, findings)
}

/// Where the request's own thread was in the states that a finding is about.
fn own_place(case: &Case<'_>, finding: &Finding) -> Option<Place> {
    let states: Vec<_> =
        finding.parts.iter().filter_map(|part| State::from_name(part.part)).collect();
    case.own_place(&Cover::from(case.window.handler), |state| states.contains(&state))
}
