//! Which cgroups may hold a process back, and where their files are.

use std::path::{Path, PathBuf};

/// A cgroup with a CPU controller that may have a quota.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cgroup {
    /// Its path, as `/proc/PID/cgroup` has it.
    pub(super) path: String,
    /// Its directory in the file system.
    pub(super) directory: PathBuf,
}

/// Where a hierarchy that accounts CPU time is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// v2's, rather than v1's `cpu`.
    v2: bool,
    /// The cgroup that is visible at the mount point.
    root: String,
    point: PathBuf,
}

/// Reads `/proc/self/mountinfo`. Lines that cannot be read are of no use, and left out.
pub(super) fn mounts(mountinfo: &str) -> Vec<Mount> {
    mountinfo.lines().filter_map(mount).collect()
}

fn mount(line: &str) -> Option<Mount> {
    // id parent dev root point options [tags…] - type source super-options
    let (first, second) = line.split_once(" - ")?;
    let mut first = first.split(' ').skip(3);
    let (root, point) = (unescape(first.next()?), unescape(first.next()?));
    let mut second = second.split(' ');
    let v2 = match second.next()? {
        "cgroup2" => true,
        "cgroup" => {
            if !second.nth(1)?.split(',').any(|option| option == "cpu") {
                return None;
            }
            false
        }
        _ => return None,
    };
    Some(Mount { v2, root, point: PathBuf::from(point) })
}

/// Blanks and backslashes are written as octal numbers.
fn unescape(field: &str) -> String {
    field.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

/// The cgroups in `/proc/PID/cgroup` whose quota the process is under: its own, and all above.
/// The root of a hierarchy has none.
pub(super) fn above(text: &str, mounts: &[Mount]) -> Vec<Cgroup> {
    let mut found = Vec::new();
    for line in text.lines() {
        // hierarchy:controllers:path
        let mut parts = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(path)) =
            (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let v2 = hierarchy == "0" && controllers.is_empty();
        if !v2 && !controllers.split(',').any(|controller| controller == "cpu") {
            continue;
        }
        // Outside of this process's cgroup namespace: it cannot be reached by any mount.
        if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
            continue;
        }
        let mut path = path.trim_end_matches('/');
        while !path.is_empty() {
            if let Some(directory) = directory(v2, path, mounts) {
                found.push(Cgroup { path: path.to_owned(), directory });
            }
            path = path.rsplit_once('/').map_or("", |(above, _)| above);
        }
    }
    found
}

fn directory(v2: bool, path: &str, mounts: &[Mount]) -> Option<PathBuf> {
    mounts.iter().filter(|mount| mount.v2 == v2).find_map(|mount| {
        let below = Path::new(path).strip_prefix(&mount.root).ok()?;
        // The visible root of a container is a cgroup like others.
        Some(mount.point.join(below))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &str = "\
24 1 0:20 / / rw - ext4 /dev/vda rw
30 24 0:25 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
31 24 0:26 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
32 24 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";

    fn paths(text: &str, mountinfo: &str) -> Vec<(String, String)> {
        let show = |cgroup: Cgroup| (cgroup.path, cgroup.directory.display().to_string());
        above(text, &mounts(mountinfo)).into_iter().map(show).collect()
    }

    #[test]
    fn a_process_is_under_its_cgroup_and_all_above_it() {
        let text = "3:cpuset:/x\n2:cpu,cpuacct:/kube/pod/app\n1:name=systemd:/y\n0::/slice\n";
        let expected = [
            ("/kube/pod/app", "/sys/fs/cgroup/cpu,cpuacct/kube/pod/app"),
            ("/kube/pod", "/sys/fs/cgroup/cpu,cpuacct/kube/pod"),
            ("/kube", "/sys/fs/cgroup/cpu,cpuacct/kube"),
            ("/slice", "/sys/fs/cgroup/unified/slice"),
        ];
        let expected = expected.map(|(path, at)| (path.to_owned(), at.to_owned()));
        assert_eq!(paths(text, BOTH), expected);
    }

    #[test]
    fn the_root_has_no_quota_and_what_is_outside_cannot_be_reached() {
        assert!(paths("2:cpu:/\n0::/\n", BOTH).is_empty());
        assert!(paths("0::/../other\n", BOTH).is_empty());
        assert!(paths("0::/slice\n", "").is_empty());
        assert!(paths("nonsense\n0:\n::\n", BOTH).is_empty());
    }

    #[test]
    fn a_containers_mount_shows_its_own_part_only() {
        let container = "5 4 0:27 /docker/1\\0402 /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        let expected = [
            ("/docker/1 2/app".to_owned(), "/sys/fs/cgroup/app".to_owned()),
            ("/docker/1 2".to_owned(), "/sys/fs/cgroup/".to_owned()),
        ];
        assert_eq!(paths("0::/docker/1 2/app\n", container), expected);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "[0-9:/,.a-z\\\\ \n-]{0,200}") {
            above(&text, &mounts(&text));
            above(&text, &mounts(BOTH));
        }
    }
}
