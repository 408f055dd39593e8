//! The self-check: a wrong offset must not pass for a goroutine.

use std::collections::HashSet;

use crate::Error;
use crate::goroutine::{Fields, Life, Status};
use crate::layout::Layout;
use crate::runtime::Runtime;

/// Goroutines that are looked at.
const LOOKED_AT: u64 = 512;
/// Ids are handed out in order; a process that makes a million a second needs ten years for these.
const LARGEST_GOID: u64 = 1 << 48;
/// Stacks are powers of two: at least 2 KiB, at most 1 GiB unless `SetMaxStack` says otherwise.
const STACK: std::ops::RangeInclusive<u64> = 2048..=1 << 34;
/// Of so many goroutines this share may be torn between fields: they run while they are read.
const TORN: usize = 8;

pub(crate) fn check(runtime: &Runtime) -> Result<(), Error> {
    let (pointer, length) = runtime.extent()?;
    let step = length.div_ceil(LOOKED_AT).max(1);
    let indexes: Vec<u64> = (0..length).step_by(step as usize).collect();
    let addresses = runtime.addresses(pointer, &indexes)?;
    let blocks = runtime.blocks(&addresses)?;
    let unreadable = blocks.iter().filter(|block| block.is_none()).count();
    if unreadable > 0 {
        return fail("runtime.allgs", "pointers to goroutines", format!("{unreadable} to nothing"));
    }
    let layout = &runtime.layout;
    let read: Vec<_> = blocks.iter().flatten().map(|g| Fields::read(g, layout)).collect();
    let text = runtime.binary.functions.module().text;
    let code = text.0.wrapping_add(runtime.bias)..text.1.wrapping_add(runtime.bias);
    plausible(&read, runtime.reasons.len(), |pc| code.contains(&pc))?;
    threads(runtime, layout, &read, &addresses)
}

/// What holds for every goroutine of every Go program.
fn plausible(read: &[Fields], reasons: usize, is_code: impl Fn(u64) -> bool) -> Result<(), Error> {
    let (mut ids, mut alive, mut torn) = (HashSet::new(), 0usize, Vec::new());
    for g in read {
        let status = match g.life() {
            Life::Unknown => return fail("status", "a known status", format!("{:#x}", g.status)),
            Life::Not => continue,
            Life::Alive(status) => status,
        };
        alive += 1;
        if g.goid == 0 || g.goid > LARGEST_GOID {
            return fail("goid", "a small number", format!("{:#x}", g.goid));
        }
        if !ids.insert(g.goid) {
            return fail("goid", "no number twice", g.goid.to_string());
        }
        let (low, high) = g.stack;
        let size = high.wrapping_sub(low);
        if low == 0 || !STACK.contains(&size) || low % 8 != 0 {
            return fail("stack bounds", "a stack", format!("{low:#x} to {high:#x}"));
        }
        // From here on it may have changed while it was read.
        let stopped = matches!(status, Status::Waiting | Status::Runnable);
        let wrong = if !is_code(g.start_pc) {
            Some(("startpc", "the address of a function", g.start_pc))
        } else if stopped && !(low < g.sp && g.sp <= high) {
            Some(("sched.sp", "an address in its stack", g.sp))
        } else if stopped && !is_code(g.pc) {
            Some(("sched.pc", "the address of code", g.pc))
        } else if status == Status::Waiting
            && (g.wait_reason == 0 || usize::from(g.wait_reason) >= reasons)
        {
            Some(("wait reason", "a known one", u64::from(g.wait_reason)))
        } else {
            None
        };
        torn.extend(wrong);
    }
    if alive == 0 {
        return Err(Error::NotReady("none of its goroutines lives yet".into()));
    }
    match torn.first() {
        Some(&(what, expected, found)) if torn.len() > alive / TORN => {
            fail(what, expected, format!("{found:#x} (and {} more)", torn.len() - 1))
        }
        _ => Ok(()),
    }
}

/// Those that are on a thread must name a thread of this process, and none is a scheduler's own `g0`.
fn threads(
    runtime: &Runtime,
    layout: &Layout,
    read: &[Fields],
    addresses: &[u64],
) -> Result<(), Error> {
    let on_thread = read.iter().zip(addresses).filter(|(g, _)| {
        g.m != 0 && matches!(g.life(), Life::Alive(Status::Running | Status::Syscall))
    });
    let (mut known, mut unknown) = (0, None);
    let threads = runtime.process.threads();
    for (g, address) in on_thread {
        let field = |offset: usize| runtime.memory.u64(g.m.saturating_add(offset as u64));
        let (Ok(g0), Ok(id)) = (field(layout.g0), field(layout.procid)) else {
            return fail("m", "a pointer to a thread's m", format!("{:#x}", g.m));
        };
        if g0 == *address {
            return fail("g0", "not in the list of goroutines", format!("{g0:#x}"));
        }
        match u32::try_from(id).ok().filter(|id| threads.contains_key(id)) {
            Some(_) => known += 1,
            None => unknown = Some(id),
        }
    }
    match unknown {
        Some(id) if known == 0 && !threads.is_empty() => {
            fail("m.procid", "a thread of the process", id.to_string())
        }
        _ => Ok(()),
    }
}

fn fail(what: &'static str, expected: &'static str, found: String) -> Result<(), Error> {
    Err(Error::SelfCheck { what, expected, found })
}
