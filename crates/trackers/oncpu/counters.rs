//! The processor's own counters: a group on each CPU, which the sampling program reads.

use std::hint::black_box;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};

use perf_event_open_sys::bindings::{
    PERF_COUNT_HW_BRANCH_MISSES, PERF_COUNT_HW_CACHE_MISSES, PERF_COUNT_HW_CPU_CYCLES,
    PERF_COUNT_HW_INSTRUCTIONS, PERF_TYPE_HARDWARE, perf_event_attr,
};

use super::clock::{EVERYBODY, NO_GROUP, open};

/// What is counted, in the order of the program's cells. The first leads the group: the kernel
/// counts all of them or none, so that their ratios are of the same time.
const COUNTERS: [(u32, &str); PER_CPU] = [
    (PERF_COUNT_HW_CPU_CYCLES, "cycles"),
    (PERF_COUNT_HW_INSTRUCTIONS, "instructions"),
    (PERF_COUNT_HW_CACHE_MISSES, "cache misses"),
    (PERF_COUNT_HW_BRANCH_MISSES, "branch misses"),
];

/// Cells that each CPU has in the program's map.
pub(crate) const PER_CPU: usize = 4;

/// Which counters this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counters([bool; PER_CPU]);

impl Counters {
    /// Counts a little work of this thread. A virtual machine may let counters be opened and never
    /// count: those are not taken.
    ///
    /// # Errors
    /// Says why there are none.
    pub(crate) fn probe() -> Result<Self, String> {
        let (myself, any_cpu) = (0, -1);
        let group = open_group([true; PER_CPU], myself, any_cpu)
            .map_err(|error| format!("unavailable: no PMU ({error})"))?;
        work();
        let counts = group.map(|counter| counter.and_then(|counter| count(counter).ok()));
        Self::judge(counts)
    }

    /// From what was counted; `None` could not be opened or read.
    pub(super) fn judge(counts: [Option<u64>; PER_CPU]) -> Result<Self, String> {
        let counts = counts.map(|count| count.is_some_and(|count| count > 0));
        if !counts[0] || !counts[1] {
            return Err("unavailable: no PMU (its counters stay 0)".to_owned());
        }
        Ok(Counters(counts))
    }

    /// Names of those that this machine lacks.
    pub(crate) fn missing(self) -> Vec<&'static str> {
        let counters = COUNTERS.iter().zip(self.0);
        counters.filter(|(_, there)| !there).map(|((_, name), _)| *name).collect()
    }

    /// Opens the group on a CPU, for whoever runs there.
    ///
    /// # Errors
    /// What the kernel says of the leader; a counter that cannot be had beside it is `None`.
    pub(crate) fn open(self, cpu: u32) -> io::Result<[Option<OwnedFd>; PER_CPU]> {
        open_group(self.0, EVERYBODY, i32::try_from(cpu).map_err(io::Error::other)?)
    }
}

fn open_group(
    wanted: [bool; PER_CPU],
    pid: libc::pid_t,
    cpu: i32,
) -> io::Result<[Option<OwnedFd>; PER_CPU]> {
    let leader = counter(COUNTERS[0].0, pid, cpu, NO_GROUP)?;
    let group = leader.as_raw_fd();
    let mut opened = [Some(leader), None, None, None];
    for (index, cell) in opened.iter_mut().enumerate().skip(1) {
        if wanted[index] {
            *cell = counter(COUNTERS[index].0, pid, cpu, group).ok();
        }
    }
    Ok(opened)
}

fn counter(config: u32, pid: libc::pid_t, cpu: i32, group: i32) -> io::Result<OwnedFd> {
    let mut attr = perf_event_attr {
        type_: PERF_TYPE_HARDWARE,
        config: config.into(),
        size: size_of::<perf_event_attr>() as u32,
        ..Default::default()
    };
    open(&mut attr, pid, cpu, group)
}

fn count(counter: OwnedFd) -> io::Result<u64> {
    let mut bytes = [0; size_of::<u64>()];
    std::fs::File::from(counter).read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// About a millisecond of instructions, with branches that no processor foresees and memory that no
/// cache has.
fn work() {
    let mut memory = vec![1_u8; 4 << 20];
    let mut random = 88_172_645_463_325_252_u64;
    let mut odd = 0_u32;
    for _ in 0..200_000 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let cell = &mut memory[random as usize % (4 << 20)];
        if black_box(random) & 1 == 1 {
            *cell = cell.wrapping_mul(3);
        } else {
            odd += u32::from(*cell);
        }
    }
    black_box((memory, odd));
}
