//! How much memory a look-up takes: no library tells how large what it has parsed is.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes allocated by this thread, less those it has freed. What one thread allocates and another frees
    /// stays in it, so only differences over what stays within the thread mean anything.
    static IN_USE: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, counting. A program whose `#[global_allocator]` this is names stacks within the
/// bounds that [`Symbolizer`](crate::Symbolizer) speaks of; with another they are bounds of number and time
/// only. Counting is an addition to a number of the thread's own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

fn count(bytes: isize) {
    // Without a destructor it is there as long as the thread is.
    let _ = IN_USE.try_with(|in_use| in_use.set(in_use.get().wrapping_add(bytes)));
}

// SAFETY: all is the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: as the caller says.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: as the caller says.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.cast_signed() - layout.size().cast_signed());
        // SAFETY: as the caller says.
        unsafe { System.realloc(start, layout, size) }
    }
}

/// What `work` returns, and how many more bytes are in use after it.
pub(crate) fn measured<T>(work: impl FnOnce() -> T) -> (T, isize) {
    let before = IN_USE.get();
    let result = work();
    (result, IN_USE.get().wrapping_sub(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_in_use_is_measured() {
        let (kept, bytes) = measured(|| {
            drop(std::hint::black_box(vec![1u8; 5000]));
            let mut kept = vec![1u8; 1000];
            kept.reserve_exact(2000);
            kept
        });
        assert_eq!(bytes, 3000);
        let ((), bytes) = measured(|| drop(kept));
        assert_eq!(bytes, -3000);
    }
}
