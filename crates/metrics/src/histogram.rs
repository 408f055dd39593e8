//! Durations, counted in two kinds of buckets at once.
//!
//! Classic buckets have fixed bounds. A native histogram's grow by a factor of 2^(1/8), from 1 ns on:
//! a quantile read from them is off by 4.4 % at most.

use std::collections::BTreeMap;

/// Native buckets' resolution: there are 2^3 between a power of two and the next.
pub const SCHEMA: i32 = 3;
const PER_DOUBLING: i32 = 1 << SCHEMA;
/// Shorter ones are in the bucket of zero, in seconds.
const ZERO_THRESHOLD: f64 = 1e-9;

/// Upper bounds of the classic buckets, in seconds.
pub(crate) const BOUNDS: [f64; 17] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0,
];

/// Counts durations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    count: u64,
    sum_ns: u128,
    /// How many were in each classic bucket and in none below; the last is without bound.
    classic: [u64; BOUNDS.len() + 1],
    zero: u64,
    native: BTreeMap<i32, u64>,
}

/// A distribution at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buckets {
    /// How many values there were.
    pub count: u64,
    /// Their sum, in seconds.
    pub sum: f64,
    /// Upper bounds in seconds, ascending and without infinity, and how many values were not above
    /// each.
    pub classic: Vec<(f64, u64)>,
    /// A native histogram's resolution and what is in its bucket of zero.
    pub native: Option<Native>,
}

/// Exponential buckets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Native {
    /// Buckets grow by a factor of 2^(2^-schema).
    pub schema: i32,
    /// Up to where values count as zero.
    pub zero_threshold: f64,
    /// How many do.
    pub zero_count: u64,
    /// By bucket: the one numbered n ends at 2^(n * 2^-schema).
    pub buckets: BTreeMap<i32, u64>,
}

impl Histogram {
    /// Counts a duration.
    pub fn observe_ns(&mut self, ns: u64) {
        let seconds = ns as f64 / 1e9;
        self.count += 1;
        self.sum_ns += u128::from(ns);
        self.classic[BOUNDS.partition_point(|bound| *bound < seconds)] += 1;
        if seconds <= ZERO_THRESHOLD {
            self.zero += 1;
        } else {
            *self.native.entry(native_index(seconds)).or_default() += 1;
        }
    }

    /// What has been counted.
    pub fn buckets(&self) -> Buckets {
        let mut below = 0;
        let classic = BOUNDS.iter().zip(self.classic).map(|(bound, count)| {
            below += count;
            (*bound, below)
        });
        let classic = classic.collect();
        Buckets {
            count: self.count,
            sum: self.sum_ns as f64 / 1e9,
            classic,
            native: Some(Native {
                schema: SCHEMA,
                zero_threshold: ZERO_THRESHOLD,
                zero_count: self.zero,
                buckets: self.native.clone(),
            }),
        }
    }
}

/// The bucket whose upper bound is the first that is not less. Exact at the bounds themselves.
fn native_index(value: f64) -> i32 {
    let guess = (value.log2() * f64::from(PER_DOUBLING)).ceil() as i32;
    // The logarithm is rounded.
    (guess - 1..=guess + 1).find(|index| value <= native_bound(*index)).unwrap_or(guess)
}

fn native_bound(index: i32) -> f64 {
    (f64::from(index) / f64::from(PER_DOUBLING)).exp2()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[u64]) -> Buckets {
        let mut histogram = Histogram::default();
        values.iter().for_each(|ns| histogram.observe_ns(*ns));
        histogram.buckets()
    }

    #[test]
    fn a_value_on_a_bound_is_below_it() {
        let buckets = of(&[1_000_000, 1_000_001, 500_000_000]);
        let at = |bound| buckets.classic.iter().find(|(b, _)| *b == bound).unwrap().1;
        assert_eq!((at(0.000_5), at(0.001), at(0.002_5), at(0.5), at(10.0)), (0, 1, 2, 3, 3));
        let native = buckets.native.unwrap();
        // Half a second is 2^-1, the bound of bucket -8.
        assert_eq!(native.buckets[&-8], 1);
        assert_eq!((buckets.count, buckets.sum), (3, 0.502_000_001));
    }

    #[test]
    fn zero_has_a_bucket_of_its_own_and_what_is_long_is_in_none() {
        let buckets = of(&[0, 1, u64::MAX]);
        let native = buckets.native.unwrap();
        assert_eq!(native.zero_count, 2);
        assert_eq!(native.buckets.len(), 1);
        assert_eq!(buckets.classic.last().unwrap().1, 2);
    }

    proptest! {
        #[test]
        fn every_value_is_in_the_one_native_bucket_around_it(ns in 2u64..) {
            let seconds = ns as f64 / 1e9;
            let index = native_index(seconds);
            prop_assert!(seconds <= native_bound(index));
            prop_assert!(seconds > native_bound(index - 1));
        }

        #[test]
        fn both_kinds_count_everything(values in proptest::collection::vec(any::<u64>(), 0..50)) {
            let buckets = of(&values);
            let native = buckets.native.clone().unwrap();
            let total = native.zero_count + native.buckets.values().sum::<u64>();
            prop_assert_eq!(total, values.len() as u64);
            prop_assert_eq!(buckets.count, values.len() as u64);
            let counts: Vec<_> = buckets.classic.iter().map(|(_, count)| *count).collect();
            prop_assert!(counts.is_sorted());
            prop_assert!(counts.last().unwrap() <= &buckets.count);
        }
    }
}
