//! Which processes to watch.
//!
//! By default those that run Python or accept TCP connections. Naming processes (`--pid`, `--comm`,
//! `--cgroup`, or the root of a tree) watches those instead: each kind that is given must match.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use glob::Pattern;
use procfs::process::{Process, Stat, StatFlags};

use crate::error::{Error, Result};

mod cgroup;
mod listeners;
mod own;
mod python;
#[cfg(test)]
mod tests;
mod verdict;

pub use cgroup::CgroupPath;
use listeners::{Listeners, Listens};
pub(crate) use python::runs_python;
pub use verdict::{Ignored, Verdict, Why};

/// The kernel cuts a comm to this many bytes.
const COMM_BYTES: usize = 15;

/// A process without a libpython may load one later (uWSGI, mod_wsgi), so look again.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// What a user asked to watch. Within one kind, any entry may match.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// These processes.
    pub pids: Vec<u32>,
    /// Processes with these names (comm, or the executable's file name), exact or glob.
    pub comms: Vec<Pattern>,
    /// Processes in these cgroups or below.
    pub cgroups: Vec<CgroupPath>,
    /// This process and all its descendants, also those whose parent has ended.
    pub root: Option<u32>,
    /// Of those that match, only the ones that run Python or accept TCP connections. Always so when
    /// nothing is named.
    pub all_default: bool,
}

impl Selection {
    fn names_any(&self) -> bool {
        let named = self.pids.is_empty() && self.comms.is_empty() && self.cgroups.is_empty();
        !named || self.root.is_some()
    }
}

/// A `--comm` argument.
///
/// # Errors
/// [`Error::Pattern`] if it is no glob.
pub fn comm_pattern(pattern: &str) -> Result<Pattern> {
    let wrong = |reason: &str| Error::Pattern { pattern: pattern.into(), reason: reason.into() };
    if pattern.is_empty() {
        return Err(wrong("it is empty"));
    }
    Pattern::new(pattern).map_err(|error| wrong(error.msg))
}

/// What is remembered of a process between scans.
#[derive(Debug)]
struct Known {
    /// With the pid, the process's identity: pids are used again.
    starttime: u64,
    exe: PathBuf,
    python: bool,
    looked: Instant,
    /// Belongs to the tree of [`Selection::root`].
    member: bool,
}

/// Decides, and remembers what is costly to find out.
#[derive(Debug)]
pub struct Selector {
    selection: Selection,
    never: HashSet<u32>,
    known: HashMap<u32, Known>,
}

impl Selector {
    /// For a selection. Never watches this process.
    pub fn new(selection: Selection) -> Self {
        let never = HashSet::from([std::process::id()]);
        Selector { selection, never, known: HashMap::new() }
    }

    /// Never watch this process either: Underspan's own helpers, such as the embedded store.
    pub fn never(&mut self, pid: u32) {
        self.never.insert(pid);
    }

    /// A watched process forked. In a tree the child then belongs to it, even if the parent ends
    /// before anybody looks at the child.
    pub fn forked(&mut self, parent: u32, child: u32) {
        let member = self.selection.root == Some(parent)
            || self.known.get(&parent).is_some_and(|known| known.member);
        if member && let Ok(stat) = Process::new(child as i32).and_then(|child| child.stat()) {
            self.remember(child, &stat, PathBuf::new()).member = true;
        }
    }

    /// Whether to watch a process, as it is now. About 50 µs; a few hundred for one never seen.
    pub fn decide(&mut self, pid: u32) -> Verdict {
        self.examine(pid, &mut Listeners::default())
    }

    /// All processes to watch but those that are `watched` already, and forgets those that have ended.
    pub fn scan(&mut self, watched: impl Fn(u32) -> bool) -> Vec<(u32, Why)> {
        let mut listeners = Listeners::default();
        let pids = pids();
        let mut chosen = Vec::new();
        for pid in pids.iter().copied().filter(|pid| !watched(*pid)) {
            if let Verdict::Watch { why } = self.examine(pid, &mut listeners) {
                chosen.push((pid, why));
            }
        }
        let alive: HashSet<u32> = pids.into_iter().collect();
        self.known.retain(|pid, _| alive.contains(pid));
        chosen
    }

    fn examine(&mut self, pid: u32, listeners: &mut Listeners) -> Verdict {
        match self.try_examine(pid, listeners) {
            Ok(why) => Verdict::Watch { why },
            Err(why) => Verdict::Ignore { why },
        }
    }

    fn try_examine(
        &mut self,
        pid: u32,
        listeners: &mut Listeners,
    ) -> std::result::Result<Why, Ignored> {
        if self.never.contains(&pid) {
            return Err(Ignored::Underspan);
        }
        let process = i32::try_from(pid).map_err(|_| Ignored::Gone)?;
        let process = Process::new(process).map_err(|_| Ignored::Gone)?;
        let stat = process.stat().map_err(|_| Ignored::Gone)?;
        if StatFlags::from_bits_truncate(stat.flags).contains(StatFlags::PF_KTHREAD) {
            return Err(Ignored::KernelThread);
        }
        if matches!(stat.state, 'Z' | 'X') {
            return Err(Ignored::Gone);
        }
        let named = self.selection.names_any();
        if named && !self.selects(&process, &stat) {
            return Err(Ignored::NotSelected);
        }
        let exe = process.exe().map_err(|_| match process.is_alive() {
            true => Ignored::Unreadable,
            false => Ignored::Gone,
        })?;
        let by_default = self.selection.all_default || !named;
        let known = self.remember(pid, &stat, exe);
        if !known.python && known.looked.elapsed() >= LOOK_AGAIN {
            known.python = runs_python(&process, &known.exe);
            known.looked = Instant::now();
        }
        let python = known.python;
        if by_default && own::is_own(&process, &known.exe) {
            return Err(Ignored::Underspan);
        }
        let Listens { tcp, unix } = listeners.of(pid, python);
        if by_default && !python && !tcp {
            return Err(Ignored::NeitherPythonNorServer);
        }
        Ok(Why { named, python, tcp, unix })
    }

    /// The entry of a process. It starts anew when the pid names another process or program.
    fn remember(&mut self, pid: u32, stat: &Stat, exe: PathBuf) -> &mut Known {
        let now = Instant::now();
        let new = || Known {
            starttime: stat.starttime,
            exe: PathBuf::new(),
            python: false,
            looked: now,
            member: false,
        };
        let known = self.known.entry(pid).or_insert_with(new);
        if known.starttime != stat.starttime {
            *known = new();
        }
        if known.exe != exe {
            known.python = Process::new(stat.pid).is_ok_and(|p| runs_python(&p, &exe));
            known.exe = exe;
            known.looked = now;
        }
        known
    }

    fn selects(&mut self, process: &Process, stat: &Stat) -> bool {
        let selection = &self.selection;
        let pid = stat.pid as u32;
        (selection.pids.is_empty() || selection.pids.contains(&pid))
            && (selection.comms.is_empty()
                || selection.comms.iter().any(|p| is_called(process, stat, p)))
            && (selection.cgroups.is_empty() || selection.cgroups.iter().any(|c| c.holds(process)))
            && selection.root.is_none_or(|root| self.is_below(root, stat))
    }

    /// Whether a process is `root` or descends from it, now or when it was last looked at.
    fn is_below(&mut self, root: u32, stat: &Stat) -> bool {
        let mut line = vec![];
        let mut current = stat.clone();
        // A cycle would need pids that are used again in between; a depth limit ends it.
        let below = loop {
            let pid = current.pid as u32;
            let member = |k: &Known| k.member && k.starttime == current.starttime;
            if pid == root || self.known.get(&pid).is_some_and(member) {
                break true;
            }
            let parent = current.ppid;
            line.push(current);
            if parent <= 1 || line.len() > 256 {
                break false;
            }
            match Process::new(parent).and_then(|parent| parent.stat()) {
                Ok(stat) => current = stat,
                Err(_) => break false,
            }
        };
        if below {
            for stat in line {
                let exe = self.known.get(&(stat.pid as u32)).map(|k| k.exe.clone());
                self.remember(stat.pid as u32, &stat, exe.unwrap_or_default()).member = true;
            }
        }
        below
    }
}

/// Whether the process's comm or its executable's name matches. A name longer than the kernel keeps
/// matches by what the kernel keeps of it.
fn is_called(process: &Process, stat: &Stat, pattern: &Pattern) -> bool {
    let cut = pattern.as_str().get(..COMM_BYTES);
    let name = |exe: PathBuf| Some(exe.file_name()?.to_string_lossy().into_owned());
    pattern.matches(&stat.comm)
        || cut == Some(stat.comm.as_str())
        || process.exe().ok().and_then(name).is_some_and(|name| pattern.matches(&name))
}

fn pids() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
