//! Idle is not blocked.

use underspan_flame::Sample;

/// Marks samples that merely waited for something to do.
pub(super) fn mark(sample: &mut Sample, in_request: bool) {
    sample.idle = !in_request && sample.state.is_blocked();
}
