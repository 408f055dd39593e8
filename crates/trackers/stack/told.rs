//! Threads wait in the same places again and again. A stack that was told is not told again: its record
//! says as which earlier one the thread stands (`again.bpf.h`).

use std::collections::HashMap;

use underspan_model::StackEnd;

use super::{Ends, RawStack, raw_stack};
use crate::record::{DecodeError, STACK_PLACES, stack_event, stack_moment};

/// The last stack of each place of a thread, for each kind of moment: the only one that is referred to.
/// One that became an event loop refers to none from before.
#[derive(Debug, Default)]
pub(crate) struct Told {
    last: HashMap<Key, (u64, RawStack)>,
}

/// Thread, moment, place, and whether the thread is a loop.
type Key = (u32, u8, u8, bool);

impl Told {
    /// A record's stack. One that refers to what never came says that it was missed.
    pub(crate) fn stack(
        &mut self,
        event: &stack_event,
        bytes: &[u8],
    ) -> Result<RawStack, DecodeError> {
        let key = (event.h.tid, event.moment, event.place, event.loop_ != 0);
        if event.again == 0 {
            let stack = raw_stack(event, bytes)?;
            self.last.insert(key, (event.h.time, stack.clone()));
            return Ok(stack);
        }
        let told = self.last.get(&key).filter(|(time, _)| *time == event.again);
        Ok(told.map_or_else(|| missed(event.h.tgid), |(_, stack)| stack.clone()))
    }

    /// A thread is gone.
    pub(crate) fn ended(&mut self, tid: u32) {
        for moment in [stack_moment::STACK_AFTER_WAIT, stack_moment::STACK_OF_WAKER] {
            for place in 0..STACK_PLACES {
                for is_loop in [false, true] {
                    self.last.remove(&(tid, moment as u8, place as u8, is_loop));
                }
            }
        }
    }
}

fn missed(pid: u32) -> RawStack {
    let ends = Ends { native: StackEnd::Missed, ..Ends::default() };
    RawStack { pid, ends, ..RawStack::default() }
}
