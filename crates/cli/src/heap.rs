//! How this process keeps memory.

/// All threads allocate from one heap. By default glibc gives each its own, and what one has freed no other
/// uses: the agent, whose threads seldom allocate at the same time, would keep a third more than it needs.
pub(crate) fn share() {
    #[cfg(target_env = "gnu")]
    // SAFETY: changes nothing but how malloc() behaves from now on; called before there are threads.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
