//! Cgroups by number, and by what people call them.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::error::{Error, Result};

/// Where Docker keeps what it knows of its containers.
const DOCKER: &str = "/var/lib/docker/containers";
/// Deeper cgroups than anybody has.
const DEEPEST: usize = 32;

/// A cgroup that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cgroup {
    /// The kernel's number for it.
    pub(super) id: u64,
    /// How far below the root it is.
    pub(super) level: u32,
}

/// The tree of cgroups (version 2), read when a number is not known.
#[derive(Debug, Default)]
pub(super) struct Cgroups {
    root: Option<PathBuf>,
    paths: HashMap<u64, String>,
}

impl Cgroups {
    pub(super) fn new() -> Self {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let root = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ');
            let point = fields.nth(1)?;
            (fields.next()? == "cgroup2").then(|| PathBuf::from(point))
        });
        let mut cgroups = Cgroups { root, paths: HashMap::new() };
        cgroups.read();
        cgroups
    }

    /// Reads the tree again.
    pub(super) fn read(&mut self) {
        self.paths.clear();
        let Some(root) = self.root.clone() else { return };
        let mut folders = vec![(root.clone(), 0)];
        while let Some((folder, level)) = folders.pop() {
            let Ok(metadata) = fs::metadata(&folder) else { continue };
            let below = folder.strip_prefix(&root).unwrap_or(Path::new(""));
            self.paths.insert(metadata.ino(), format!("/{}", below.display()));
            if level < DEEPEST {
                let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
                let is_folder =
                    |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
                folders.extend(entries.filter(is_folder).map(|entry| (entry.path(), level + 1)));
            }
        }
    }

    /// Its path below the root.
    pub(super) fn path(&self, id: u64) -> Option<&str> {
        self.paths.get(&id).map(String::as_str)
    }

    /// Whether a cgroup whose path is known is still there.
    pub(super) fn is_there(&self, id: u64) -> bool {
        let (Some(root), Some(path)) = (&self.root, self.path(id)) else { return false };
        fs::metadata(root.join(path.trim_start_matches('/'))).is_ok_and(|found| found.ino() == id)
    }

    /// By a path, below the root or with it, or the name or id of a container.
    pub(super) fn find(&self, wanted: &str) -> Result<Cgroup> {
        let problem = |why: &str| Error::Cgroup { name: wanted.to_owned(), why: why.to_owned() };
        let Some(root) = &self.root else {
            return Err(problem("no cgroup2 file system is mounted"));
        };
        let path = Path::new(wanted);
        let path = path.strip_prefix(root).unwrap_or(path);
        let path = format!("/{}", path.display()).replace("//", "/");
        let path = if path.len() > 1 { path.trim_end_matches('/') } else { &path };
        if let Some((id, _)) = self.paths.iter().find(|(_, known)| *known == path) {
            return Ok(Cgroup { id: *id, level: level(path) });
        }
        let id = docker_id(wanted).unwrap_or_else(|| wanted.to_owned());
        let mut found: Vec<_> =
            self.paths.iter().filter(|(_, path)| is_of_container(path, &id)).collect();
        found.sort_by_key(|(_, path)| path.len());
        match found[..] {
            [] => Err(problem("there is no cgroup of that path, and no container of that name")),
            [(id, path), ..] => Ok(Cgroup { id: *id, level: level(path) }),
        }
    }
}

fn level(path: &str) -> u32 {
    path.split('/').filter(|part| !part.is_empty()).count() as u32
}

/// Whether the cgroup's own name tells of the container: `docker-ID.scope`, `cri-containerd-ID.scope`,
/// `libpod-ID.scope`, `ID`; an id may be cut to 12 digits.
fn is_of_container(path: &str, id: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let name = name.strip_suffix(".scope").or(name.strip_suffix(".service")).unwrap_or(name);
    let own = name.rsplit('-').next().unwrap_or(name);
    let is_id = id.len() >= 12 && id.bytes().all(|digit| digit.is_ascii_hexdigit());
    name == id || (is_id && own.starts_with(id))
}

/// The id that Docker gave the container of this name.
fn docker_id(name: &str) -> Option<String> {
    let wanted = format!("\"Name\":\"/{name}\"");
    fs::read_dir(DOCKER).ok()?.flatten().find_map(|entry| {
        let config = fs::read_to_string(entry.path().join("config.v2.json")).ok()?;
        config.contains(&wanted).then(|| entry.file_name().to_string_lossy().into_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_known_by_their_cgroups_name() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        for path in [
            format!("/system.slice/docker-{id}.scope"),
            format!("/kubepods/pod1/cri-containerd-{id}.scope"),
            format!("/docker/{id}"),
        ] {
            assert!(is_of_container(&path, id), "{path}");
            assert!(is_of_container(&path, &id[..12]), "{path}");
            assert!(!is_of_container(&path, &id[..6]), "{path}");
            assert!(!is_of_container(&path, "docker"), "{path}");
        }
        assert!(is_of_container("/system.slice/nginx.service", "nginx"));
    }

    #[test]
    fn the_root_is_a_cgroup_too() {
        let cgroups = Cgroups::new();
        if cgroups.root.is_some() {
            let root = cgroups.find("/").unwrap();
            assert_eq!((root.level, cgroups.path(root.id)), (0, Some("/")));
        }
        let error = cgroups.find("no/such/cgroup").unwrap_err().to_string();
        assert!(error.contains("no/such/cgroup"), "{error}");
    }
}
