//! Requests that have no answer yet: who waits for one now cannot wait for the row that comes with it.

use std::collections::HashMap;

use underspan_model::{Ledger, State};

use super::assemble::{Asked, Assembler, Told};
use crate::record::ThreadSnapshot;

/// A request that is not answered for this long is told, in nanoseconds,
const LONG: u64 = 1_000_000_000;
/// and again each time after this part of its age, but not more often than that.
const AGAIN: u64 = 16;
/// Of so many in a second at the most, the oldest first.
const AT_ONCE: usize = 256;

/// Hands out requests that are to be told, as far as they have come.
pub(super) fn tell(
    assembler: &mut Assembler,
    threads: &[ThreadSnapshot],
    now: u64,
    mut each: impl FnMut(&Asked, &Told),
) {
    let mut of_thread: HashMap<u32, usize> = HashMap::new();
    let mut due = Vec::new();
    for asked in assembler.unanswered() {
        *of_thread.entry(asked.tid).or_default() += 1;
        let age = now.saturating_sub(asked.read);
        let since_told = now.saturating_sub(asked.open_told.max(asked.read));
        // Nobody knows whether it is one.
        let is_one = !asked.unsure || !asked.head.method.is_empty();
        if is_one && since_told >= LONG.max(age / AGAIN) {
            due.push(asked);
        }
    }
    if due.is_empty() {
        return;
    }
    due.sort_by_key(|asked| (asked.read, asked.id));
    due.truncate(AT_ONCE);
    let threads: HashMap<u32, &ThreadSnapshot> =
        threads.iter().map(|thread| (thread.tid, thread)).collect();
    for asked in due {
        asked.open_told = now;
        let thread = threads.get(&asked.tid).filter(|thread| thread.born == asked.born);
        let mut told = so_far(asked, thread.copied(), now);
        told.shared_thread = of_thread.get(&asked.tid).is_some_and(|requests| *requests > 1);
        each(asked, &told);
    }
}

/// What its thread has done since it read the request.
fn so_far(asked: &Asked, thread: Option<&ThreadSnapshot>, now: u64) -> Told {
    let known = thread.and_then(|thread| {
        let mut ledger = thread.ledger;
        let state = State::from_index(thread.state)?;
        ledger[state] = ledger[state].saturating_add(now.saturating_sub(thread.since));
        Some((thread.born.saturating_add(ledger.total()), ledger.since(&asked.at_read)?))
    });
    let (until, ledger) = known.unwrap_or_else(|| {
        let mut unknown = Ledger::default();
        unknown[State::Other] = now.saturating_sub(asked.read);
        (now, unknown)
    });
    Told { until, ledger, bytes_in: asked.bytes, ..Told::default() }
}
