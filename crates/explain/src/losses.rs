//! What was lost of what could have told more about a request.

use std::collections::{BTreeMap, BTreeSet};

use underspan_model::{LostEvents, Sample, StackEnd};

use crate::case::Case;
use crate::finding::Finding;
use crate::interval::Interval;

/// Losses on the request's host that overlap it. Of stacks that are not whole the table counts those
/// of every thread of the host; here only those count that could tell of this request.
pub(crate) fn losses(case: &Case<'_>, findings: &[Finding]) -> Vec<LostEvents> {
    let mut lost: Vec<_> = gaps(case).cloned().collect();
    lost.extend(stacks(case, findings));
    lost.sort_by(|a, b| {
        let key = |r: &LostEvents| (r.tracker.clone(), r.reason.clone(), r.start_time, r.count);
        key(a).cmp(&key(b))
    });
    lost
}

/// Losses that leave a gap in what is known of the request.
pub(crate) fn gaps<'a>(case: &Case<'a>) -> impl Iterator<Item = &'a LostEvents> {
    let (request, whole) = (case.request, case.window.whole);
    let overlaps = move |row: &&LostEvents| {
        let interval = Interval::new(row.start_time, row.duration_ns);
        // A counter that was read at one instant still says that something was lost.
        interval.overlap(whole).len() > 0 || whole.contains(row.start_time)
    };
    let rows = case.evidence.lost.iter();
    rows.filter(|row| row.host == request.host && row.count > 0 && !row.leaves_no_gap())
        .filter(overlaps)
}

/// Stacks without their outer frames: of the request's own thread, of the one that accepted it, and of
/// those that are to blame.
fn stacks(case: &Case<'_>, findings: &[Finding]) -> Vec<LostEvents> {
    let (request, whole) = (case.request, case.window.whole);
    let culprits = findings.iter().filter_map(|finding| finding.culprit.as_ref());
    let threads: BTreeSet<_> =
        culprits.map(|culprit| culprit.tid).chain([request.tid, request.accept_tid]).collect();
    let concerns = |sample: &&&Sample| {
        let interval = Interval::new(sample.start_time, sample.duration_ns);
        threads.contains(&sample.tid) && interval.overlap(whole).len() > 0
    };
    let mut counts = BTreeMap::new();
    for sample in case.samples.iter().filter(concerns) {
        for end in ends(sample) {
            *counts.entry(end.name()).or_default() += 1;
        }
    }
    let row = |(reason, count): (&str, u64)| LostEvents {
        host: request.host.clone(),
        start_time: whole.start,
        duration_ns: whole.len(),
        tracker: LostEvents::STACK.to_owned(),
        reason: reason.to_owned(),
        count,
    };
    counts.into_iter().map(row).collect()
}

/// Why a sample's stacks are not whole, each reason once.
fn ends(sample: &Sample) -> impl Iterator<Item = StackEnd> {
    let reasons = |text: &str| -> Vec<_> { text.split(", ").map(str::to_owned).collect() };
    let told = [reasons(&sample.stack.truncated), reasons(&sample.waker_stack.truncated)].concat();
    let truncated = StackEnd::ALL.into_iter().filter(|end| end.is_truncated());
    truncated.filter(move |end| told.iter().any(|reason| reason == end.name()))
}
