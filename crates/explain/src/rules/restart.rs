//! Processes that were started only after a connection had come that they accepted in the end.

use underspan_model::Request;

use crate::case::{Case, proven};
use crate::finding::{Culprit, Finding, INTERFERENCE, Kind, Relation};
use crate::interval::{Cover, Interval};
use crate::window::Window;
use crate::words;

/// When the process that accepted the connection was not there yet, and when it did not accept yet.
pub(super) struct Restart {
    absent: Cover,
    /// A connection was waiting: had it been ready, it would have accepted.
    starting: Cover,
}

impl Restart {
    /// `None` as well if another process may have accepted, as one does that forks for each connection.
    pub(super) fn of(case: &Case<'_>, at: &Cover) -> Option<Restart> {
        let (request, window) = (case.request, &case.window);
        let started = case.evidence.process.as_ref().map_or(0, |process| process.started);
        if started <= window.whole.start || started >= window.accept_queue.end {
            return None;
        }
        let of_acceptor = |host: &str, pid: u32, tid: u32| {
            host == request.host && pid == request.pid && tid == request.accept_tid
        };
        let accepts_itself = request.accept_tid == request.tid
            || case.accepts.iter().any(|a| of_acceptor(&a.host, a.pid, a.tid))
            || case.waits.iter().any(|w| of_acceptor(&w.host, w.pid, w.tid));
        let absent = at.within(Interval::between(window.whole.start, started));
        if request.accept_tid == 0 || !accepts_itself || !case.worth(absent.total(), INTERFERENCE) {
            return None;
        }
        let accepted = |r: &&Request| Window::of(r).accept_queue.end;
        let others = case.siblings.iter().map(accepted).filter(|accepted| *accepted >= started);
        let first = others.chain([window.accept_queue.end]).min()?;
        Some(Restart { absent, starting: at.within(Interval::between(started, first)) })
    }

    /// Whether that explains the wait.
    pub(super) fn is_all(&self, at: &Cover) -> bool {
        proven(self.absent.union(&self.starting).total(), at.total())
    }

    /// Whether others were there that could have accepted is not known: no more than that it coincided.
    pub(super) fn finding(&self, case: &Case<'_>, at: &Cover) -> Option<Finding> {
        let ns = at.total();
        if !case.worth(ns, INTERFERENCE) {
            return None;
        }
        let (request, shown) = (case.request, self.absent.union(&self.starting).total());
        let culprit = Culprit {
            host: request.host.clone(),
            pid: request.pid,
            thread: request.process.clone(),
            ..Culprit::new(shown.min(ns))
        };
        let draft = case.draft(Kind::AcceptQueue, &[("accept_queue", ns)]).located(case, at);
        let draft = draft.relation(Relation::Coincided).culprit(Some(culprit));
        let text = format!("Nobody accepted the connection for {}", words::duration(ns));
        Some(draft.say(text, String::new()))
    }

    /// Says so in the finding about that wait.
    pub(super) fn add_to(&self, case: &Case<'_>, mut finding: Finding) -> Finding {
        if finding.relation == Relation::Caused {
            return finding;
        }
        let rest = ["; nothing recorded shows why", " it waited for the rest"];
        for unknown in [rest.concat().as_str(), rest[0]] {
            if let Some(text) = finding.text.strip_suffix(unknown) {
                finding.text.truncate(text.len());
            }
        }
        let starting = match self.starting.total() {
            ns if ns < INTERFERENCE.ns => String::new(),
            ns => format!(", and took {} until it accepted a first one", words::duration(ns)),
        };
        finding.text += &format!(
            "{} the process that accepted it in the end, {} ({}), was started only {} after it had \
             come{starting}",
            if finding.text.contains(": ") { ";" } else { ":" },
            case.request.process,
            case.request.pid,
            words::duration(self.absent.total()),
        );
        let advice = format!(
            "Keep workers up: restart them one after another, have them load the application before they \
             are forked, and look for why they ended{}",
            case.server().restarts()
        );
        finding.advice = match finding.advice.is_empty() {
            true => advice,
            false => format!("{}. {advice}", finding.advice),
        };
        finding
    }
}
