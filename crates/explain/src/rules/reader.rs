//! Who did not read at the other end of a connection, and what it did instead.

use std::collections::BTreeMap;

use underspan_model::{Request, State, TcpLoss};

use crate::case::{Case, blocked, loss_row, request_row, route, wait_row};
use crate::finding::{Culprit, RowRef};
use crate::interval::{Cover, Interval};
use crate::rules::stalls::Part;
use crate::socket::Stall;
use crate::words;

/// What a thread did is told only if rows show it for at least this share of the time.
const MOSTLY: f64 = 0.5;

/// The thread whose lateness kept a window closed.
pub(super) struct Reader<'a> {
    loss: &'a TcpLoss,
    doing: Option<(State, u64)>,
    serving: Option<&'a Request>,
    pub(super) rows: Vec<(u64, RowRef)>,
}

/// The reader, if its own end tells of it.
pub(super) fn find<'a>(case: &Case<'a>, part: &Part<'_, 'a>) -> Option<Reader<'a>> {
    let at_its_end = part.socket.losses.iter().filter(|(stall, loss)| {
        *stall == Stall::ZeroWindow && loss.kind == "zero_window_local" && loss.tid != 0
    });
    let during =
        |loss: &TcpLoss| part.at.within(Interval::new(loss.start_time, loss.duration_ns)).total();
    let (_, loss) = at_its_end.max_by_key(|(_, loss)| (during(loss), loss.tid))?;
    let ns = during(loss);
    if ns == 0 {
        return None;
    }
    let mut rows = vec![(ns, loss_row(loss))];
    let mut states: BTreeMap<State, Cover> = BTreeMap::new();
    for wait in &case.reader_waits {
        let shown = part.at.within(blocked(wait));
        if wait.host == loss.host && wait.tid == loss.tid && shown.total() > 0 {
            rows.push((shown.total(), wait_row(wait)));
            let known = states.entry(wait.state).or_default();
            *known = known.union(&shown);
        }
    }
    let longest = states.into_iter().map(|(state, at)| (state, at.total()));
    let doing = longest.max_by_key(|(state, ns)| (*ns, *state));
    let doing = doing.filter(|(_, ns)| words::fraction(*ns, part.at.total()) >= MOSTLY);
    let served = case.peers.iter().chain(&case.siblings).filter(|r| {
        let whole = Interval::new(r.start_time, r.duration_ns);
        r.host == loss.host
            && r.tid == loss.tid
            && words::fraction(part.at.within(whole).total(), part.at.total()) >= MOSTLY
    });
    let serving = served.max_by_key(|r| &r.request_id).copied();
    rows.extend(serving.map(|request| (ns, request_row(request))));
    Some(Reader { loss, doing, serving, rows })
}

impl Reader<'_> {
    /// `Thread worker (4711) of python (4700), which reads there, was sleeping meanwhile (700.0 ms)`.
    pub(super) fn words(&self) -> String {
        let loss = self.loss;
        let who = format!(
            "Thread {} ({}) of {} ({}), which reads there, ",
            loss.thread, loss.tid, loss.process, loss.pid
        );
        let served = self
            .serving
            .map(|r| format!("{} (request {})", route(r), r.request_id).trim_start().to_owned());
        match (self.doing, served) {
            (Some((state, ns)), served) => {
                let served = served.map(|served| format!(", serving {served}")).unwrap_or_default();
                format!("{who}was in {} for {} of it{served}", state.name(), words::duration(ns))
            }
            (None, Some(served)) => format!("{who}was serving {served}"),
            (None, None) => format!("{who}did something else: nothing recorded shows what"),
        }
    }

    pub(super) fn blame(&self, culprit: &mut Culprit) {
        culprit.host.clone_from(&self.loss.host);
        culprit.pid = self.loss.pid;
        culprit.tid = self.loss.tid;
        culprit.thread.clone_from(&self.loss.thread);
        culprit.request_id = self.serving.map(|r| r.request_id.clone()).unwrap_or_default();
        culprit.route = self.serving.map(route).unwrap_or_default();
    }
}
