//! Room in an array, handed out in extents.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A walk that began before an extent was given back may still read it: it stays as it is for this
/// long. Walks take microseconds; user space hears of a fork, whose child shares its parent's
/// extent, a tenth of a second later.
const REST: Duration = Duration::from_secs(2);

/// Some neighbouring places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) first: u32,
    pub(super) count: u32,
}

/// The places `1..limit`. Place 0 means "none".
#[derive(Debug)]
pub(super) struct Space {
    /// First place to number of places. Neighbours are joined.
    free: BTreeMap<u32, u32>,
    resting: Vec<(Instant, Extent)>,
}

impl Space {
    pub(super) fn new(limit: u32) -> Self {
        Space { free: BTreeMap::from([(1, limit - 1)]), resting: Vec::new() }
    }

    /// Takes the first extent that is large enough.
    pub(super) fn take(&mut self, count: u32) -> Option<Extent> {
        let (&first, &size) = self.free.iter().find(|&(_, &size)| size >= count)?;
        self.free.remove(&first);
        if size > count {
            self.free.insert(first + count, size - count);
        }
        Some(Extent { first, count })
    }

    /// Gives the end of an extent back that was never used.
    pub(super) fn trim(&mut self, extent: &mut Extent, count: u32) {
        if count < extent.count {
            self.join(Extent { first: extent.first + count, count: extent.count - count });
            extent.count = count;
        }
    }

    /// Gives an extent back, that nobody refers to any more.
    pub(super) fn give(&mut self, extent: Extent, now: Instant) {
        self.resting.push((now + REST, extent));
    }

    /// Makes extents that have rested usable again. Says whether there were any.
    pub(super) fn wake(&mut self, now: Instant) -> bool {
        let rested = self.resting.partition_point(|&(until, _)| until <= now);
        let rested: Vec<_> = self.resting.drain(..rested).collect();
        for &(_, extent) in &rested {
            self.join(extent);
        }
        !rested.is_empty()
    }

    /// Whether all of an extent's places can be taken.
    pub(super) fn is_free(&self, extent: Extent) -> bool {
        let before = self.free.range(..=extent.first).next_back();
        before.is_some_and(|(&first, &size)| first + size >= extent.first + extent.count)
    }

    fn join(&mut self, mut extent: Extent) {
        if let Some((&first, &size)) = self.free.range(..extent.first).next_back()
            && first + size == extent.first
        {
            self.free.remove(&first);
            extent = Extent { first, count: extent.count + size };
        }
        if let Some(size) = self.free.remove(&(extent.first + extent.count)) {
            extent.count += size;
        }
        self.free.insert(extent.first, extent.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_rests_first() {
        let mut space = Space::new(100);
        let now = Instant::now();
        let one = space.take(40).unwrap();
        let two = space.take(50).unwrap();
        assert_eq!((one.first, two.first), (1, 41));
        assert_eq!(space.take(10), None);
        space.give(one, now);
        assert!(!space.wake(now) && space.take(40).is_none());
        assert!(space.wake(now + REST) && space.is_free(one));
        space.give(two, now);
        assert!(space.wake(now + REST));
        assert_eq!(space.take(99), Some(Extent { first: 1, count: 99 }), "neighbours are joined");
    }

    #[test]
    fn an_extents_unused_end_is_given_back_at_once() {
        let mut space = Space::new(100);
        let mut extent = space.take(99).unwrap();
        space.trim(&mut extent, 60);
        assert_eq!(extent, Extent { first: 1, count: 60 });
        assert_eq!(space.take(39), Some(Extent { first: 61, count: 39 }));
    }
}
