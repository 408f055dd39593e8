//! The ids of stacks.

use twox_hash::XxHash3_64;
use underspan_symbols::Incarnation;
use underspan_trackers::stack::{PythonFrame, RawStack};

/// Makes ids. A few thousand stacks a second, of some kilobyte each, get one, so it is not the standard
/// library's hash, which is slow for its safety from whoever chooses the keys: nobody gains anything from two
/// of his own stacks that look like one.
#[derive(Debug, Default)]
pub(super) struct Ids {
    words: Vec<u8>,
}

impl Ids {
    /// The same for the same addresses, and ends, of the same process. Never 0.
    pub(super) fn of(&mut self, process: Incarnation, stack: &RawStack) -> u64 {
        let RawStack { pid: _, kernel, native, python, ends } = stack;
        let words = &mut self.words;
        words.clear();
        words.extend_from_slice(&process.started.to_le_bytes());
        // Lengths come first, so that no address of one part is taken for another's.
        let lengths = [kernel.len() as u32, native.len() as u32, python.len() as u32];
        for number in lengths.into_iter().chain([process.pid, process.execs]) {
            words.extend_from_slice(&number.to_le_bytes());
        }
        words.extend([ends.kernel, ends.native, ends.python].map(|end| end as u8));
        for address in kernel.iter().chain(native) {
            words.extend_from_slice(&address.to_le_bytes());
        }
        for PythonFrame { code, check, lasti, entry } in python {
            words.extend_from_slice(&code.to_le_bytes());
            words.extend_from_slice(&check.to_le_bytes());
            words.extend_from_slice(&(lasti << 1 | u32::from(*entry)).to_le_bytes());
        }
        XxHash3_64::oneshot(words).max(1)
    }
}

#[cfg(test)]
mod tests {
    use underspan_model::StackEnd;
    use underspan_trackers::stack::Ends;

    use super::*;

    #[test]
    fn whatever_differs_makes_another_id() {
        let process = Incarnation { pid: 1, started: 2, execs: 3 };
        let frame = PythonFrame { code: 1, check: 2, lasti: 3, entry: true };
        let stack = RawStack {
            pid: 1,
            kernel: vec![1, 2],
            native: vec![3],
            python: vec![frame],
            ends: Ends::default(),
        };
        let mut ids = Ids::default();
        let id = ids.of(process, &stack);
        assert_eq!(ids.of(process, &stack.clone()), id);
        let python = |frame| RawStack { python: vec![frame], ..stack.clone() };
        let others = [
            RawStack { kernel: vec![1], native: vec![2, 3], ..stack.clone() },
            RawStack { kernel: vec![2, 1], ..stack.clone() },
            RawStack { native: vec![4], ..stack.clone() },
            RawStack { ends: Ends { native: StackEnd::Missed, ..stack.ends }, ..stack.clone() },
            python(PythonFrame { code: 2, ..frame }),
            python(PythonFrame { check: 3, ..frame }),
            python(PythonFrame { lasti: 4, ..frame }),
            python(PythonFrame { entry: false, ..frame }),
        ];
        let mut all: Vec<_> = others.iter().map(|other| ids.of(process, other)).collect();
        for other in [
            Incarnation { pid: 2, ..process },
            Incarnation { started: 3, ..process },
            Incarnation { execs: 4, ..process },
        ] {
            all.push(ids.of(other, &stack));
        }
        all.push(id);
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
