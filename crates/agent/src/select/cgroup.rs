//! Cgroup paths: is a process in this cgroup or in one below it?

use std::fmt;
use std::path::{Path, PathBuf};

use procfs::process::{Process, all_processes};

use crate::error::{Error, Result};

/// A cgroup as `/proc/PID/cgroup` writes it: absolute, without a slash at its end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CgroupPath(String);

impl CgroupPath {
    /// From what a user gives: a path as in `/proc/PID/cgroup`, with or without its first slash, or
    /// a directory of the mounted cgroup file system.
    ///
    /// # Errors
    /// [`Error::Cgroup`] if it is empty or has `..` in it.
    pub fn parse(path: &str) -> Result<Self> {
        Self::below_mounts(path, &mounts())
    }

    fn below_mounts(path: &str, mounts: &[Mount]) -> Result<Self> {
        let wrong = || Error::Cgroup { path: path.to_owned() };
        if path.trim().is_empty() || path.split('/').any(|part| part == "..") {
            return Err(wrong());
        }
        let mounted = mounts
            .iter()
            .filter_map(|mount| Some((mount, Path::new(path).strip_prefix(&mount.point).ok()?)))
            .max_by_key(|(mount, _)| mount.point.as_os_str().len());
        let absolute = match mounted {
            Some((mount, below)) => mount.root.join(below),
            None => Path::new("/").join(path),
        };
        // Without doubled slashes, `.` and the slash at the end.
        let clean: PathBuf = absolute.components().collect();
        Ok(CgroupPath(clean.to_str().ok_or_else(wrong)?.trim_end_matches('/').to_owned()))
    }

    /// Whether there is such a cgroup now: in a mounted hierarchy, or because a process is in it where
    /// the one that it is in is not mounted here.
    pub fn exists(&self) -> bool {
        let whole = Path::new("/").join(self.0.trim_start_matches('/'));
        let is_mounted = mounts().into_iter().any(|mount| {
            whole.strip_prefix(&mount.root).is_ok_and(|below| mount.point.join(below).is_dir())
        });
        is_mounted
            || all_processes().is_ok_and(|mut all| {
                all.any(|process| process.is_ok_and(|process| self.holds(&process)))
            })
    }

    /// Whether `path`, as in `/proc/PID/cgroup`, is this cgroup or below it.
    pub fn contains(&self, path: &str) -> bool {
        path.strip_prefix(&self.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Whether the process is in this cgroup or below it, in any hierarchy (v2, or one of v1's).
    pub(super) fn holds(&self, process: &Process) -> bool {
        let Ok(cgroups) = process.cgroups() else { return false };
        cgroups.into_iter().any(|cgroup| self.contains(&cgroup.pathname))
    }
}

impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "/" } else { &self.0 })
    }
}

/// A mounted cgroup hierarchy.
struct Mount {
    point: PathBuf,
    /// The cgroup that is visible at the mount point.
    root: PathBuf,
}

fn mounts() -> Vec<Mount> {
    // Without mountinfo, a directory given as a cgroup simply matches nothing.
    let Ok(mounts) = Process::myself().and_then(|process| process.mountinfo()) else {
        return Vec::new();
    };
    mounts
        .into_iter()
        .filter(|mount| matches!(mount.fs_type.as_str(), "cgroup" | "cgroup2"))
        .map(|mount| Mount { point: mount.mount_point, root: PathBuf::from(mount.root) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str) -> String {
        let mounts = [
            Mount { point: "/sys/fs/cgroup".into(), root: "/".into() },
            Mount { point: "/sys/fs/cgroup/cpu".into(), root: "/docker/1".into() },
        ];
        CgroupPath::below_mounts(path, &mounts).unwrap().to_string()
    }

    #[test]
    fn every_way_to_write_it_means_the_same() {
        for path in ["/a/b", "a/b", "/a/b/", "/a//./b", "/sys/fs/cgroup/a/b"] {
            assert_eq!(parse(path), "/a/b", "{path}");
        }
        assert_eq!(parse("/sys/fs/cgroup/cpu/web"), "/docker/1/web");
        assert_eq!(parse("/"), "/");
        for path in ["", " ", "/a/../b"] {
            let error = CgroupPath::parse(path).unwrap_err().to_string();
            assert!(error.contains("/proc/PID/cgroup"), "{error}");
        }
    }

    #[test]
    fn a_cgroup_contains_itself_and_what_is_below() {
        let web = CgroupPath::parse("/system.slice/web").unwrap();
        assert!(web.contains("/system.slice/web"));
        assert!(web.contains("/system.slice/web/worker"));
        assert!(!web.contains("/system.slice/website"));
        assert!(!web.contains("/system.slice"));
        assert!(CgroupPath::parse("/").unwrap().contains("/anything"));
    }

    #[test]
    fn this_process_is_in_its_own_cgroups_and_in_no_other() {
        let me = Process::myself().unwrap();
        for cgroup in me.cgroups().unwrap() {
            assert!(CgroupPath::parse(&cgroup.pathname).unwrap().holds(&me), "{cgroup:?}");
        }
        assert!(!CgroupPath::parse("/no/such/cgroup").unwrap().holds(&me));
    }

    #[test]
    fn only_cgroups_that_are_there_exist() {
        for cgroup in Process::myself().unwrap().cgroups().unwrap() {
            assert!(CgroupPath::parse(&cgroup.pathname).unwrap().exists(), "{cgroup:?}");
        }
        assert!(CgroupPath::parse("/").unwrap().exists());
        assert!(!CgroupPath::parse("/no/such/cgroup").unwrap().exists());
    }
}
