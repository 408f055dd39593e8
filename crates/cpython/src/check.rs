//! The self-check: what memory holds must be what an interpreter of this version holds.

use crate::interpreter::{GenerationStats, GilLayout, Libc};
use crate::layout::Layout;
use crate::memory::{Memory, after, word};
use crate::process::Process;
use crate::{InspectError, pthread};

/// More interpreters and threads than any process has; bounds against cycles in damaged memory.
const MAX_INTERPRETERS: usize = 256;
pub(crate) const MAX_THREADS: usize = 16_384;
/// Threads that are checked: more say no more.
pub(crate) const CHECKED: usize = 32;
/// Tries to see the GIL held by the same thread twice in a row.
const STABLE: u32 = 16;

/// Addresses to check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) runtime: u64,
    pub(crate) main: u64,
    pub(crate) gil: u64,
    pub(crate) gc: u64,
}

/// A thread as CPython knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadState {
    pub(crate) address: u64,
    pub(crate) thread_id: u64,
    pub(crate) native_id: Option<u32>,
}

fn failed<T>(
    what: &'static str,
    expected: impl Into<String>,
    found: impl ToString,
) -> Result<T, InspectError> {
    Err(InspectError::SelfCheck { what, expected: expected.into(), found: found.to_string() })
}

/// Checks everything that is handed out. The process runs on meanwhile: the caller tries again
/// before it believes a failure.
pub(crate) fn check(
    process: Process,
    memory: Memory,
    layout: &Layout,
    at: Addresses,
    libc: Libc,
) -> Result<(), InspectError> {
    let before = collector(memory, layout, at)?;
    let id = memory.u64(after(at.main, layout.interp_id))?;
    if id != 0 {
        return failed("the main interpreter", "id 0", id);
    }
    holder(memory, layout, at.gil, &interpreters(memory, layout, at)?)?;
    let main_threads = thread_states(memory, layout, at.main, CHECKED)?;
    threads_are_real(process, memory, &main_threads, libc)?;
    let after = collector(memory, layout, at)?;
    for (before, after) in before.iter().zip(after) {
        if after.collections < before.collections || after.collected < before.collected {
            return failed("gc.generation_stats", "counts that only grow", format!("{after:?}"));
        }
    }
    Ok(())
}

/// While the GIL is held, its holder is a thread of one of the interpreters. While it is free, its
/// last holder may have been freed, and says nothing.
fn holder(
    memory: Memory,
    layout: &Layout,
    gil: u64,
    interpreters: &[u64],
) -> Result<(), InspectError> {
    let mut found = 0;
    for _ in 0..STABLE {
        let Some(holder) = locked_by(memory, gil)? else { return Ok(()) };
        let interpreter = memory.u64(after(holder, layout.tstate_interp));
        // It may have passed the GIL on, and ended, before the second read.
        if locked_by(memory, gil)? != Some(holder) {
            continue;
        }
        found = interpreter?;
        if interpreters.contains(&found) {
            return Ok(());
        }
    }
    failed(
        "the interpreter of the GIL's holder",
        format!("{interpreters:x?}"),
        format!("{found:#x}"),
    )
}

/// The holder, if the GIL is held.
fn locked_by(memory: Memory, gil: u64) -> Result<Option<u64>, InspectError> {
    let block: [u8; 24] = memory.block(gil)?;
    let interval = word(&block, GilLayout::INTERVAL as usize);
    if !(1..=10_000_000).contains(&interval) {
        return failed("gil.interval", "1 to 10,000,000 µs", interval);
    }
    let holder = word(&block, GilLayout::KNOWN.last_holder as usize);
    match word(&block, GilLayout::KNOWN.locked as usize) as u32 as i32 {
        -1 => Err(InspectError::NotReady("its GIL is not yet created".into())),
        0 => Ok(None),
        1 => Ok(Some(holder)),
        other => failed("gil.locked", "-1, 0 or 1", other),
    }
}

fn collector(
    memory: Memory,
    layout: &Layout,
    at: Addresses,
) -> Result<[GenerationStats; 3], InspectError> {
    let collecting = memory.i32(after(at.gc, layout.gc_collecting))?;
    if !(0..=1).contains(&collecting) {
        return failed("gc.collecting", "0 or 1", collecting);
    }
    // Directly before the statistics: the list of frozen objects, a ring that starts there.
    let stats = after(at.gc, layout.gc_stats);
    let ring = stats.saturating_sub(24);
    let next = memory.u64(ring)? & !3;
    let back = memory.u64(after(next, 8))? & !3;
    if back != ring {
        return failed("gc.permanent_generation", format!("a ring through {ring:#x}"), back);
    }
    let stats = generation_stats(memory, stats)?;
    let plausible = |count: i64| (0..1 << 48).contains(&count);
    for generation in &stats {
        if !plausible(generation.collections)
            || !plausible(generation.collected)
            || !plausible(generation.uncollectable)
        {
            return failed("gc.generation_stats", "counts", format!("{generation:?}"));
        }
    }
    Ok(stats)
}

pub(crate) fn generation_stats(
    memory: Memory,
    address: u64,
) -> Result<[GenerationStats; 3], InspectError> {
    let block: [u8; 72] = memory.block(address)?;
    let count = |index: usize| word(&block, index * 8) as i64;
    Ok([0, 3, 6].map(|first| GenerationStats {
        collections: count(first),
        collected: count(first + 1),
        uncollectable: count(first + 2),
    }))
}

/// All interpreters; the main one must be among them.
fn interpreters(memory: Memory, layout: &Layout, at: Addresses) -> Result<Vec<u64>, InspectError> {
    let mut found = Vec::new();
    let mut next = memory.u64(after(at.runtime, layout.interpreters_head))?;
    while next != 0 {
        if found.len() == MAX_INTERPRETERS {
            return failed("the list of interpreters", "an end", "more than 256");
        }
        found.push(next);
        next = memory.u64(after(next, layout.interp_next))?;
    }
    if !found.contains(&at.main) {
        return failed("the list of interpreters", "the main one in it", found.len());
    }
    Ok(found)
}

/// The threads of one interpreter, the latest first, `limit` at most. Every link is checked.
pub(crate) fn thread_states(
    memory: Memory,
    layout: &Layout,
    interpreter: u64,
    limit: usize,
) -> Result<Vec<ThreadState>, InspectError> {
    let mut found = Vec::new();
    let mut previous = 0;
    let mut next = memory.u64(after(interpreter, layout.interp_threads))?;
    while next != 0 && found.len() < limit {
        let block: [u8; 192] = memory.block(next)?;
        let field = |offset: u64| word(&block, offset as usize);
        if field(layout.tstate_interp) != interpreter {
            return failed(
                "tstate.interp",
                format!("{interpreter:#x}"),
                format!("{:#x}", field(layout.tstate_interp)),
            );
        }
        if field(layout.tstate_prev) != previous {
            return failed(
                "tstate.prev",
                format!("{previous:#x}"),
                format!("{:#x}", field(layout.tstate_prev)),
            );
        }
        found.push(ThreadState {
            address: next,
            thread_id: field(layout.tstate_thread_id),
            native_id: layout.tstate_native_id.map(|offset| field(offset) as u32),
        });
        previous = next;
        next = field(layout.tstate_next);
    }
    if found.is_empty() {
        return Err(InspectError::NotReady("it has no threads yet, or no longer".into()));
    }
    Ok(found)
}

/// At least one thread state must name a thread that the kernel knows too, by both of its ids. Not
/// all do: a thread can end without its state being cleared.
fn threads_are_real(
    process: Process,
    memory: Memory,
    threads: &[ThreadState],
    libc: Libc,
) -> Result<(), InspectError> {
    let pthread_tid = |thread: &ThreadState| pthread::tid(memory, thread.thread_id);
    let is_real = |thread: &ThreadState| match (thread.native_id, libc) {
        (Some(id), Libc::Glibc) => pthread_tid(thread) == Some(id) && process.has_thread(id),
        (Some(id), Libc::Musl) => process.has_thread(id),
        (None, Libc::Glibc) => pthread_tid(thread).is_some_and(|id| process.has_thread(id)),
        (None, Libc::Musl) => memory.u64(thread.thread_id).is_ok(),
    };
    if threads.iter().any(is_real) {
        return Ok(());
    }
    // Between fork and the interpreter's own clean-up, or exec, the states are the parent's.
    let parent = Process { pid: process.parent() };
    let is_parents = |thread: &ThreadState| {
        let id = thread.native_id.or_else(|| pthread_tid(thread));
        id.is_some_and(|id| parent.has_thread(id))
    };
    if parent.pid != 0 && threads.iter().any(is_parents) {
        return Err(InspectError::NotReady("it was forked just now".into()));
    }
    if process.has_ended() {
        return Err(InspectError::Gone);
    }
    let id = |thread: &ThreadState| thread.native_id.map_or(thread.thread_id, u64::from);
    let ids: Vec<_> = threads.iter().take(4).map(id).collect();
    failed("thread ids", "a thread of the process", format!("{ids:?}"))
}
