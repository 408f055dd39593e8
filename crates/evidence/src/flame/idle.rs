//! Idle is not blocked.

use underspan_flame::{Place, Sample};

/// Marks samples that merely waited for something to do.
pub(super) fn mark(sample: &mut Sample, in_request: bool) {
    sample.idle = !in_request && sample.state.is_blocked();
}

/// Marks the time that no sample stands for, which scaling adds: in a picture of requests it is
/// theirs, in one of a time range it is judged by its state alone.
pub fn mark_rest(samples: &mut [Sample], of_requests: bool) {
    for sample in samples.iter_mut().filter(|sample| sample.place == Place::NotSampled) {
        mark(sample, of_requests);
    }
}
