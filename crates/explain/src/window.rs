//! A request's time, made safe to count with: parts that always sum to the whole.

use underspan_model::{Ledger, Request, STATES, State};

use crate::interval::Interval;

/// The three phases of a request and the split of the last. Whatever the row said, the phases sum to
/// the whole, and the ledger and `unaccounted` to the handler.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) whole: Interval,
    pub(crate) accept_queue: Interval,
    pub(crate) handoff: Interval,
    pub(crate) handler: Interval,
    pub(crate) ledger: Ledger,
    /// Handler time that no cell of the ledger has.
    pub(crate) unaccounted: u64,
    /// What was wrong with the row, in words.
    pub(crate) notes: Vec<String>,
}

impl Window {
    pub(crate) fn of(request: &Request) -> Self {
        let whole = Interval::new(request.start_time, request.duration_ns);
        let accept_ns = request.accept_queue_ns.min(whole.len());
        let accept_queue = Interval::new(whole.start, accept_ns);
        let handoff_ns = request.handoff_ns.min(whole.len() - accept_ns);
        let handoff = Interval::new(accept_queue.end, handoff_ns);
        let handler = Interval::between(handoff.end, whole.end);

        let mut notes = Vec::new();
        let phases = [request.accept_queue_ns, request.handoff_ns, request.handler_ns];
        if sum(&phases) != u128::from(request.duration_ns) || whole.len() != request.duration_ns {
            notes.push(String::from(
                "the request's row is inconsistent: its phases do not sum to its duration",
            ));
        }
        let recorded = sum(request.ledger.cells());
        let mut ledger = request.ledger;
        if recorded > u128::from(handler.len()) {
            notes.push(String::from(
                "the ledger holds more than the handler's time; it was scaled down",
            ));
            ledger = scaled(&ledger, handler.len(), recorded);
        }
        let unaccounted = handler.len() - ledger.total();
        Window { whole, accept_queue, handoff, handler, ledger, unaccounted, notes }
    }
}

/// Cells can be absurd, and then `Ledger::total` would overflow.
fn sum(cells: &[u64]) -> u128 {
    cells.iter().map(|&ns| u128::from(ns)).sum()
}

/// Every cell times `target / recorded`, rounded down.
fn scaled(ledger: &Ledger, target: u64, recorded: u128) -> Ledger {
    let mut cells = [0; STATES];
    for (state, ns) in ledger.iter() {
        let share = u128::from(ns) * u128::from(target) / recorded.max(1);
        cells[state.index()] = u64::try_from(share).unwrap_or(0);
    }
    Ledger::new(cells)
}

/// The states whose ledger cells belong together as "waiting for the GIL".
pub(crate) const fn is_gil(state: State) -> bool {
    matches!(state, State::GilWait | State::GcWait)
}
