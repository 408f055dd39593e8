//! Stacks on their way to names: each gets its id at once, and waits to be looked up.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use underspan_trackers::stack::RawStack;

/// Gives stacks their ids.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    known: HashSet<u64>,
    new: Vec<(u64, RawStack)>,
}

impl Stacks {
    /// The id of a stack: the same for the same addresses of the same process.
    pub(crate) fn id(&mut self, stack: RawStack) -> u64 {
        if stack.kernel.is_empty() && stack.native.is_empty() && stack.python.is_empty() {
            return 0;
        }
        let mut hasher = DefaultHasher::new();
        stack.hash(&mut hasher);
        let id = hasher.finish().max(1);
        if self.known.insert(id) {
            self.new.push((id, stack));
        }
        id
    }

    /// Stacks that nobody has looked up yet.
    pub(crate) fn take_new(&mut self) -> Vec<(u64, RawStack)> {
        std::mem::take(&mut self.new)
    }
}
