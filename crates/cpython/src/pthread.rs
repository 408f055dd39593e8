//! From a pthread id to the kernel's thread id, on glibc and x86-64.

use crate::memory::{Memory, word};
use crate::process::Process;

/// `struct pthread.header.self`: points to the structure itself.
const SELF: usize = 16;
/// `struct pthread.tid`: after the 704 bytes of the header and a list node. Unchanged since glibc
/// 2.4.
const TID: usize = 720;

/// The tid as the process itself sees it. A pthread id is the address of glibc's `struct pthread`.
pub(crate) fn tid(memory: Memory, pthread_id: u64) -> Option<u32> {
    let block: [u8; 728] = memory.block(pthread_id).ok()?;
    if word(&block, SELF) != pthread_id {
        return None;
    }
    match word(&block, TID) as u32 {
        0 => None,
        tid => Some(tid),
    }
}

/// The kernel's id, in our pid namespace, of the thread that `pthread_id` names in process `pid`;
/// `None` if there is no such thread, or its C library is not glibc. It costs one memory read and
/// a listing of the process's threads.
pub fn pthread_tid(pid: i32, pthread_id: u64) -> Option<u32> {
    let tid = tid(Memory::new(pid), pthread_id)?;
    Process { pid }.threads().ok()?.get(&tid).copied()
}
