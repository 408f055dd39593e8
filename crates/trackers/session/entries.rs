//! A whole map at once.

use std::os::fd::AsRawFd as _;
use std::ptr;

use libbpf_rs::MapCore;
use libbpf_sys::{bpf_map_batch_opts, bpf_map_lookup_batch};

/// Entries asked for in one call.
const AT_ONCE: usize = 256;

/// Every key and value of a hash map, in few calls to the kernel.
///
/// Not with libbpf-rs, which takes the first batch that is not full for the last one: few are full, since the
/// kernel begins no bucket that does not fit in whole. Nor with room for as many entries as the map may have:
/// clearing that would take longer than reading those that there are.
pub(super) fn entries(map: &impl MapCore) -> libbpf_rs::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let (key_size, value_size) = (map.key_size() as usize, map.value_size() as usize);
    let opts =
        bpf_map_batch_opts { sz: size_of::<bpf_map_batch_opts>() as _, ..Default::default() };
    let mut room = AT_ONCE;
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    // Where the kernel is. A hash's is a number, other maps' a key.
    let mut next = vec![0u8; key_size.max(size_of::<u32>())];
    let mut from: Option<Vec<u8>> = None;
    let mut entries = Vec::new();
    loop {
        keys.resize(room * key_size, 0u8);
        values.resize(room * value_size, 0u8);
        let mut count = u32::try_from(room).unwrap_or(u32::MAX);
        // SAFETY: there is room for as many keys and values as `count` says, and for the place; all of it
        // outlives the call.
        let code = unsafe {
            bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                from.as_mut().map_or(ptr::null_mut(), |from| from.as_mut_ptr().cast()),
                next.as_mut_ptr().cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                &raw const opts,
            )
        };
        match -code {
            0 | libc::ENOENT => {}
            // The next bucket alone is larger.
            libc::ENOSPC => {
                room *= 2;
                continue;
            }
            error => return Err(libbpf_rs::Error::from_raw_os_error(error)),
        }
        let read = keys.chunks_exact(key_size).zip(values.chunks_exact(value_size));
        let read = read.take(count as usize);
        entries.extend(read.map(|(key, value)| (key.to_vec(), value.to_vec())));
        if code != 0 {
            return Ok(entries);
        }
        from = Some(next.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use libbpf_rs::{MapFlags, MapHandle, MapType};
    use libbpf_sys::bpf_map_create_opts;

    use super::*;

    fn hash(entries: u32, value_size: u32) -> MapHandle {
        let opts =
            bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as _, ..Default::default() };
        MapHandle::create(MapType::Hash, Some("entries"), 4, value_size, entries, &opts).unwrap()
    }

    #[test]
    fn all_of_few_and_of_many() {
        // Many to a bucket, in as many batches as it takes.
        for (count, room) in [(0, 1), (1, 16384), (AT_ONCE as u32, 256), (5000, 5000)] {
            let map = hash(room, 12);
            let expected: BTreeMap<_, _> =
                (0..count).map(|n| (n.to_ne_bytes().to_vec(), vec![n as u8; 12])).collect();
            for (key, value) in &expected {
                map.update(key, value, MapFlags::ANY).unwrap();
            }
            let read = entries(&map).unwrap();
            assert_eq!(read.len(), expected.len());
            assert_eq!(read.into_iter().collect::<BTreeMap<_, _>>(), expected);
        }
    }

    #[test]
    fn what_is_no_hash_is_refused() {
        let opts =
            bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as _, ..Default::default() };
        let stack = MapHandle::create(MapType::Stack, Some("stack"), 0, 4, 4, &opts).unwrap();
        assert!(entries(&stack).is_err());
    }
}
