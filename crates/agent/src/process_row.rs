//! A watched process, as the table `processes` has it.

use procfs::process::Process;
use underspan_trackers::Context as _;

use crate::namer::Namer;
use crate::processes::{Python, Watched};
use crate::rows::ProcessRow;

/// Reads what `/proc` says of it; `None` if it is gone.
pub(crate) fn read(pid: u32, watched: &Watched, namer: &Namer, now: u64) -> Option<ProcessRow> {
    let process = Process::new(i32::try_from(pid).ok()?).ok()?;
    let stat = process.stat().ok()?;
    let status = process.status().ok()?;
    let ticks = procfs::ticks_per_second();
    // Ticks since boot; the clock that counts them also counts suspended time, which we ignore.
    let started = stat.starttime.saturating_mul(1_000_000_000) / ticks.max(1);
    let (python, gil) = match &watched.python {
        Python::Starting { why, .. } if why.is_empty() => (String::new(), "starting".to_owned()),
        Python::Starting { why, .. } => (String::new(), format!("not read yet: {why}")),
        Python::None => (String::new(), String::new()),
        Python::Known { version, gil, .. } => (version.clone(), gil.clone()),
        Python::Refused(why) => (String::new(), why.clone()),
    };
    Some(ProcessRow {
        host: namer.host().to_owned(),
        pid,
        start_time: namer.unix_ns(started),
        seen: namer.unix_ns(now),
        ns_pid: innermost(status.nspid, stat.pid),
        ppid: u32::try_from(stat.ppid).unwrap_or(0),
        process: stat.comm,
        exe: process.exe().map(|path| path.display().to_string()).unwrap_or_default(),
        cmdline: process.cmdline().map(|words| words.join(" ")).unwrap_or_default(),
        cgroup: cgroup(&process),
        python,
        gil,
        gc_rung: watched.gc.name().to_owned(),
        why: watched.why.to_string(),
    })
}

fn innermost(pids: Option<Vec<i32>>, pid: i32) -> u32 {
    u32::try_from(pids.and_then(|pids| pids.last().copied()).unwrap_or(pid)).unwrap_or(0)
}

/// Its cgroup: v2's if it is in one below the root, else the one of v1's CPU controller.
fn cgroup(process: &Process) -> String {
    let Ok(groups) = process.cgroups() else { return String::new() };
    let v2 = groups.0.iter().find(|group| group.hierarchy == 0 && group.pathname != "/");
    let cpu = || groups.0.iter().find(|group| group.controllers.iter().any(|c| c == "cpu"));
    v2.or_else(cpu).map(|group| group.pathname.clone()).unwrap_or_default()
}
