//! What the agent costs: its own CPU time and memory, and the run time of its BPF programs.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::{SysconfVar, sysconf};

use crate::error::{Error, Result};

mod bpf;
mod budget;

pub use bpf::{BpfPrograms, BpfStats, ProgramCost};
pub use budget::{Budget, Excess, Meter, Verdict};

/// What this process has used. Helpers it started (the embedded store) are not in it; BPF programs
/// neither: they run in the context, and at the cost, of what they watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time since the process started, user and system.
    pub cpu: Duration,
    /// Resident memory now, in bytes.
    pub rss_bytes: u64,
}

impl Usage {
    /// Reads both. Takes a few µs.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn read() -> Result<Self> {
        let usage = getrusage(UsageWho::RUSAGE_SELF).map_err(Error::system("getrusage"))?;
        let cpu = [usage.user_time(), usage.system_time()].into_iter().map(|time| {
            // Both are never negative.
            Duration::from_secs(time.tv_sec() as u64) + Duration::from_micros(time.tv_usec() as u64)
        });
        Ok(Usage { cpu: cpu.sum(), rss_bytes: rss_bytes()? })
    }
}

fn rss_bytes() -> Result<u64> {
    let path = std::path::Path::new("/proc/self/statm");
    let statm = std::fs::read_to_string(path).map_err(Error::file("read", path))?;
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    let page = sysconf(SysconfVar::PAGE_SIZE).map_err(Error::system("sysconf"))?;
    Ok(pages * page.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(4096))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn work_and_memory_show() {
        let before = Usage::read().unwrap();
        let memory = std::hint::black_box(vec![1u8; 32 << 20]);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(50) {
            std::hint::black_box(&memory);
        }
        let after = Usage::read().unwrap();
        assert!(after.cpu - before.cpu >= Duration::from_millis(20), "{before:?} {after:?}");
        assert!(after.rss_bytes >= before.rss_bytes + (24 << 20), "{before:?} {after:?}");
    }
}
