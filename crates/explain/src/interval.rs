//! Half-open intervals of time and sets of them. Nothing here overflows or panics, whatever the rows say.

/// `start..end` in nanoseconds since the Unix epoch; empty when they are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Interval {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Interval {
    /// Cut off at the end of time when the sum does not fit.
    pub(crate) fn new(start: u64, duration: u64) -> Self {
        Interval { start, end: start.saturating_add(duration) }
    }

    /// Empty when `end` lies before `start`.
    pub(crate) fn between(start: u64, end: u64) -> Self {
        Interval { start, end: end.max(start) }
    }

    pub(crate) fn len(self) -> u64 {
        self.end - self.start
    }

    pub(crate) fn overlap(self, other: Interval) -> Interval {
        Interval::between(self.start.max(other.start), self.end.min(other.end))
    }

    pub(crate) fn contains(self, time: u64) -> bool {
        self.start <= time && time < self.end
    }
}

/// A set of instants: disjoint intervals in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cover(Vec<Interval>);

impl Cover {
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().map(|interval| interval.len()).sum()
    }

    /// From its first instant to its last.
    pub(crate) fn hull(&self) -> Option<Interval> {
        let (first, last) = (self.0.first()?, self.0.last()?);
        Some(Interval::between(first.start, last.end))
    }

    pub(crate) fn union(&self, other: &Cover) -> Cover {
        self.0.iter().chain(&other.0).copied().collect()
    }

    pub(crate) fn intersect(&self, other: &Cover) -> Cover {
        let (mut a, mut b) = (self.0.as_slice(), other.0.as_slice());
        let mut both = Vec::new();
        while let ([first_a, rest_a @ ..], [first_b, rest_b @ ..]) = (a, b) {
            both.push(first_a.overlap(*first_b));
            if first_a.end <= first_b.end { a = rest_a } else { b = rest_b }
        }
        both.into_iter().collect()
    }

    pub(crate) fn within(&self, window: Interval) -> Cover {
        self.touching(window).map(|interval| interval.overlap(window)).collect()
    }

    /// The intervals that overlap the window: found by bisection, as there can be many.
    fn touching(&self, window: Interval) -> impl Iterator<Item = &Interval> {
        let first = self.0.partition_point(|interval| interval.end <= window.start);
        self.0.iter().skip(first).take_while(move |interval| interval.start < window.end)
    }

    pub(crate) fn subtract(&self, other: &Cover) -> Cover {
        let mut left = Vec::new();
        for interval in &self.0 {
            let mut from = interval.start;
            for hole in other.touching(*interval) {
                left.push(Interval::between(from, hole.start));
                from = from.max(hole.end);
            }
            left.push(Interval::between(from, interval.end));
        }
        left.into_iter().collect()
    }

    /// The same set with its inner gaps of at most `gap` filled.
    pub(crate) fn bridged(&self, gap: u64) -> Cover {
        let mut bridged: Vec<Interval> = Vec::new();
        for interval in &self.0 {
            match bridged.last_mut() {
                Some(last) if interval.start - last.end <= gap => last.end = interval.end,
                _ => bridged.push(*interval),
            }
        }
        Cover(bridged)
    }
}

impl From<Interval> for Cover {
    fn from(interval: Interval) -> Self {
        [interval].into_iter().collect()
    }
}

impl FromIterator<Interval> for Cover {
    fn from_iter<I: IntoIterator<Item = Interval>>(intervals: I) -> Self {
        let mut sorted: Vec<_> = intervals.into_iter().filter(|i| i.len() > 0).collect();
        sorted.sort_unstable();
        let mut merged: Vec<Interval> = Vec::new();
        for interval in sorted {
            match merged.last_mut() {
                Some(last) if interval.start <= last.end => last.end = last.end.max(interval.end),
                _ => merged.push(interval),
            }
        }
        Cover(merged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cover(pairs: &[(u64, u64)]) -> Cover {
        pairs.iter().map(|&(start, end)| Interval::between(start, end)).collect()
    }

    fn any_cover() -> impl Strategy<Value = Cover> {
        proptest::collection::vec((0u64..200, 0u64..40), 0..12)
            .prop_map(|v| v.into_iter().map(|(s, d)| Interval::new(s, d)).collect())
    }

    /// The slow and obvious way.
    fn instants(cover: &Cover) -> std::collections::BTreeSet<u64> {
        cover.0.iter().flat_map(|i| i.start..i.end).collect()
    }

    #[test]
    fn touching_intervals_merge_and_gaps_can_be_bridged() {
        assert_eq!(cover(&[(5, 9), (0, 5)]), cover(&[(0, 9)]));
        assert_eq!(cover(&[(0, 5), (7, 9)]).bridged(2), cover(&[(0, 9)]));
        assert_eq!(cover(&[(0, 5), (8, 9)]).bridged(2), cover(&[(0, 5), (8, 9)]));
    }

    #[test]
    fn the_end_of_time_is_the_end() {
        assert_eq!(Interval::new(u64::MAX - 1, 9).len(), 1);
        assert_eq!(Interval::between(9, 3).len(), 0);
    }

    proptest! {
        #[test]
        fn sets_of_intervals_are_sets(a in any_cover(), b in any_cover()) {
            let (set_a, set_b) = (instants(&a), instants(&b));
            prop_assert_eq!(a.total() as usize, set_a.len());
            prop_assert_eq!(instants(&a.union(&b)), &set_a | &set_b);
            prop_assert_eq!(instants(&a.intersect(&b)), &set_a & &set_b);
            prop_assert_eq!(instants(&a.subtract(&b)), &set_a - &set_b);
            let window = Interval::new(60, 70);
            let inside = instants(&a).into_iter().filter(|i| window.contains(*i)).collect();
            prop_assert_eq!(instants(&a.within(window)), inside);
        }
    }
}
