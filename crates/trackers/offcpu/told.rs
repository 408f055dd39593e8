//! Threads wait in the same places again and again. A stack that was told is not told again: its record
//! says as which earlier one the thread stands (`stack/again.bpf.h`).

use std::collections::HashMap;

use underspan_model::StackEnd;

use crate::record::{DecodeError, STACK_PLACES, stack_event, stack_moment};
use crate::stack::{Ends, RawStack, raw_stack};

/// The last stack of each place of a thread, for each kind of moment: the only one that is referred to.
#[derive(Debug, Default)]
pub(super) struct Told {
    last: HashMap<(u32, u8, u8), (u64, RawStack)>,
}

impl Told {
    /// A record's stack. One that refers to what never came says that it was missed.
    pub(super) fn stack(
        &mut self,
        event: &stack_event,
        bytes: &[u8],
    ) -> Result<RawStack, DecodeError> {
        let key = (event.h.tid, event.moment, event.place);
        if event.again == 0 {
            let stack = raw_stack(event, bytes)?;
            self.last.insert(key, (event.h.time, stack.clone()));
            return Ok(stack);
        }
        let told = self.last.get(&key).filter(|(time, _)| *time == event.again);
        Ok(told.map_or_else(|| missed(event.h.tgid), |(_, stack)| stack.clone()))
    }

    /// A thread is gone.
    pub(super) fn ended(&mut self, tid: u32) {
        for moment in [stack_moment::STACK_AFTER_WAIT, stack_moment::STACK_OF_WAKER] {
            for place in 0..STACK_PLACES {
                self.last.remove(&(tid, moment as u8, place as u8));
            }
        }
    }
}

fn missed(pid: u32) -> RawStack {
    let ends = Ends { native: StackEnd::Missed, ..Ends::default() };
    RawStack { pid, ends, ..RawStack::default() }
}
