//! How this process keeps memory.

use underspan_symbols::Counting;

/// Who names stacks must know how much it takes.
#[global_allocator]
static HEAP: Counting = Counting;

/// What is larger is given back as soon as it is freed. By default glibc learns from the first large one to keep
/// those that are as large; but a binary's symbols are read once.
#[cfg(target_env = "gnu")]
const GIVEN_BACK: libc::c_int = 256 << 10;

/// All threads allocate from one heap. By default glibc gives each its own, and what one has freed no other
/// uses: the agent, whose threads seldom allocate at the same time, would keep a third more than it needs.
pub(crate) fn share() {
    #[cfg(target_env = "gnu")]
    // SAFETY: changes nothing but how malloc() behaves from now on; called before there are threads.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, GIVEN_BACK);
    }
}
