//! The buckets: those of Prometheus' native histograms of schema 2, so that no bound is ever moved.

use crate::record::{NETSTACK_BOUNDS, NETSTACK_BUCKETS, NETSTACK_CELLS, NETSTACK_FIRST_OCTAVE};

/// How many buckets there are. The last has no upper bound.
pub const BUCKETS: usize = NETSTACK_BUCKETS as usize;

const BOUNDS: usize = NETSTACK_BOUNDS as usize;

/// Buckets to the octave: each bound is 2^(1/4), or 19 %, above the one before.
pub const SCHEMA: u32 = 2;

/// The first bucket goes up to 2^-24 s, some 60 ns.
const FIRST_EXPONENT: i32 = -24;

/// In Prometheus' native histograms of schema 2, the index of the bucket after the first: the first
/// is the bucket of zeros, with a threshold of 2^-24 s.
pub const NATIVE_OFFSET: i32 = FIRST_EXPONENT * 4 + 1;

/// The largest value of a bucket, in seconds; `None`: it has no bound.
pub fn upper_bound_seconds(bucket: usize) -> Option<f64> {
    let quarters = i32::try_from(bucket).ok().filter(|_| bucket < BOUNDS)?;
    Some((f64::from(FIRST_EXPONENT) + f64::from(quarters) / 4.0).exp2())
}

/// The same in whole nanoseconds. No whole number lies between the two.
pub fn upper_bound_ns(bucket: usize) -> Option<u64> {
    upper_bound_seconds(bucket).map(|seconds| (seconds * 1e9) as u64)
}

/// The bucket of a value in nanoseconds.
pub fn bucket_of(ns: u64) -> usize {
    (0..BOUNDS)
        .find(|bucket| upper_bound_ns(*bucket).is_some_and(|bound| ns <= bound))
        .unwrap_or(BOUNDS)
}

/// All bounds, for the programs.
pub(super) fn bounds() -> [u64; BOUNDS] {
    std::array::from_fn(|bucket| upper_bound_ns(bucket).unwrap_or(u64::MAX))
}

/// For each eighth of each octave, the bucket in which it begins.
pub(super) fn cells() -> [u8; NETSTACK_CELLS as usize] {
    std::array::from_fn(|cell| match (cell / 8).checked_sub(NETSTACK_FIRST_OCTAVE as usize) {
        None => 0,
        Some(shift) => bucket_of(((8 + cell % 8) as u64) << shift) as u8,
    })
}
