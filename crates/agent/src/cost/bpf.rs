//! How long BPF programs ran, as the kernel counts it while BPF statistics are on.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_sys::{BPF_STATS_RUN_TIME, bpf_enable_stats, bpf_prog_get_info_by_fd, bpf_prog_info};

use crate::error::{Error, Result};

/// Keeps BPF statistics on. They cost some 20 ns on every run of every BPF program of the host, so
/// they are on only while someone holds this.
#[derive(Debug)]
pub struct BpfStats(
    #[expect(dead_code, reason = "closing it switches the statistics off")] OwnedFd,
);

impl BpfStats {
    /// Switches the statistics on until this is dropped. Needs CAP_SYS_ADMIN: do it before
    /// privileges are dropped. Since Linux 5.8.
    ///
    /// # Errors
    /// If that is not permitted or the kernel is older.
    pub fn enable() -> Result<Self> {
        // SAFETY: takes a number and returns a new descriptor or an error.
        let fd = unsafe { bpf_enable_stats(BPF_STATS_RUN_TIME) };
        if fd < 0 {
            let hint = "; it takes root and Linux 5.8, or sysctl kernel.bpf_stats_enabled=1";
            return Err(Error::System { call: "BPF_ENABLE_STATS", source: errno(fd), hint });
        }
        // SAFETY: the descriptor is new, so nobody else owns it.
        Ok(BpfStats(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Whether the administrator has switched them on for good.
    pub fn always_on() -> bool {
        let setting = fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled");
        setting.is_ok_and(|setting| setting.trim() == "1")
    }
}

/// What one program has used since it was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramCost {
    /// Run time in ns; 0 unless statistics were on.
    pub run_ns: u64,
    /// Runs while statistics were on.
    pub runs: u64,
    /// Runs the kernel left out because the program was already running on that CPU. Counted always:
    /// each is a lost event.
    pub recursion_misses: u64,
}

impl ProgramCost {
    /// What was added since `earlier`.
    pub fn since(&self, earlier: &ProgramCost) -> ProgramCost {
        ProgramCost {
            run_ns: self.run_ns.saturating_sub(earlier.run_ns),
            runs: self.runs.saturating_sub(earlier.runs),
            recursion_misses: self.recursion_misses.saturating_sub(earlier.recursion_misses),
        }
    }
}

/// The agent's BPF programs, by name. Reading them needs no privilege, only the descriptors.
#[derive(Debug, Default)]
pub struct BpfPrograms {
    programs: Vec<(String, OwnedFd)>,
}

impl BpfPrograms {
    /// Adds a program.
    ///
    /// # Errors
    /// If its descriptor cannot be duplicated.
    pub fn add(&mut self, name: &str, program: BorrowedFd<'_>) -> Result<()> {
        let owned = program.try_clone_to_owned().map_err(Error::system("dup"))?;
        self.programs.push((name.to_owned(), owned));
        Ok(())
    }

    /// Adds all that `each` hands out. The cost of those that cannot be added is not known; that is
    /// said, and is no reason not to run.
    pub(crate) fn add_each(&mut self, each: impl FnOnce(&mut dyn FnMut(&str, BorrowedFd<'_>))) {
        let mut failed = None;
        each(&mut |name, program| failed = self.add(name, program).err().or(failed.take()));
        if let Some(error) = failed {
            tracing::warn!("the programs' cost cannot be read: {error}");
        }
    }

    /// What each program has used. Programs of one name are added up.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn read(&self) -> Result<BTreeMap<String, ProgramCost>> {
        let mut costs = BTreeMap::<_, ProgramCost>::new();
        for (name, program) in &self.programs {
            let cost = read_one(program)?;
            let sum = costs.entry(name.clone()).or_default();
            sum.run_ns += cost.run_ns;
            sum.runs += cost.runs;
            sum.recursion_misses += cost.recursion_misses;
        }
        Ok(costs)
    }

    /// What all of them have used together.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn total(&self) -> Result<ProgramCost> {
        Ok(self.read()?.values().fold(ProgramCost::default(), |sum, cost| ProgramCost {
            run_ns: sum.run_ns + cost.run_ns,
            runs: sum.runs + cost.runs,
            recursion_misses: sum.recursion_misses + cost.recursion_misses,
        }))
    }
}

fn read_one(program: &OwnedFd) -> Result<ProgramCost> {
    let mut info = bpf_prog_info::default();
    let mut size = size_of::<bpf_prog_info>() as u32;
    // SAFETY: `info` is as large as `size` says, and all its pointers are null, so the kernel fills
    // in numbers only.
    let code =
        unsafe { bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut size) };
    if code < 0 {
        return Err(Error::system("BPF_OBJ_GET_INFO_BY_FD")(errno(code)));
    }
    Ok(ProgramCost {
        run_ns: info.run_time_ns,
        runs: info.run_cnt,
        recursion_misses: info.recursion_misses,
    })
}

/// libbpf returns the error's number, negated.
fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(-code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_sys::{
        BPF_PROG_TYPE_SOCKET_FILTER, bpf_insn, bpf_prog_load, bpf_prog_test_run_opts,
        bpf_test_run_opts,
    };
    use std::os::fd::AsFd;
    use std::ptr;

    /// `r0 = 0; exit`, as a socket filter.
    fn load() -> OwnedFd {
        let mut instructions = [bpf_insn::default(); 2];
        instructions[0].code = 0xb7;
        instructions[1].code = 0x95;
        // SAFETY: name and licence are C strings, and the instructions as many as said.
        let fd = unsafe {
            bpf_prog_load(
                BPF_PROG_TYPE_SOCKET_FILTER,
                c"test".as_ptr(),
                c"GPL".as_ptr(),
                instructions.as_ptr(),
                2,
                ptr::null_mut(),
            )
        };
        assert!(fd >= 0, "needs root: {}", errno(fd));
        // SAFETY: the descriptor is new.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    fn run(program: &OwnedFd, times: i32) {
        let packet = [0u8; 64];
        let mut options = bpf_test_run_opts {
            sz: size_of::<bpf_test_run_opts>() as u64,
            data_in: packet.as_ptr().cast(),
            data_size_in: packet.len() as u32,
            ..Default::default()
        };
        for _ in 0..times {
            // SAFETY: the options point to the packet, which outlives the call.
            let code = unsafe { bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
            assert_eq!(code, 0);
        }
    }

    #[test]
    fn runs_are_counted_while_statistics_are_on() {
        let (first, second) = (load(), load());
        let mut programs = BpfPrograms::default();
        programs.add("filter", first.as_fd()).unwrap();
        programs.add("filter", second.as_fd()).unwrap();
        let before = programs.total().unwrap();
        let stats = BpfStats::enable().unwrap();
        run(&first, 10);
        run(&second, 5);
        drop(stats);
        let cost = programs.read().unwrap()["filter"].since(&before);
        assert_eq!((cost.runs, cost.recursion_misses), (15, 0));
        assert!(cost.run_ns > 0 && cost.run_ns < 1_000_000_000, "{cost:?}");
    }
}
