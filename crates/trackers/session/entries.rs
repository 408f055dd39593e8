//! A whole map at once.

use libbpf_rs::{MapCore, MapFlags};

/// Every key and value of a hash map, in one call to the kernel.
///
/// In several, libbpf-rs takes the first batch that is not full for the last one; and few are full, since
/// the kernel begins no bucket that does not fit in whole.
pub(super) fn entries(map: &impl MapCore) -> libbpf_rs::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let all = map.max_entries();
    Ok(map.lookup_batch(all, MapFlags::ANY, MapFlags::ANY)?.collect())
}
