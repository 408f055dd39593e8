//! Debug files that are apart from their binary, found by build id. Only on disk: nothing is fetched.

use std::env;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};

use object::ReadCache;

use crate::image::Image;

/// Where debug files are looked for.
#[derive(Clone, Debug)]
pub(crate) struct DebugFiles {
    /// Laid out as `.build-id/ab/cdef….debug`.
    build_id: Vec<PathBuf>,
    /// Laid out as debuginfod's clients do: `abcdef…/debuginfo`.
    debuginfod: Vec<PathBuf>,
}

impl DebugFiles {
    /// The places that distributions and debuginfod's clients use.
    pub(crate) fn of_this_system() -> Self {
        let below = |variable: &str, path: &str| {
            env::var_os(variable).map(|directory| Path::new(&directory).join(path))
        };
        let mut debuginfod: Vec<_> = [
            below("DEBUGINFOD_CACHE_PATH", ""),
            below("XDG_CACHE_HOME", "debuginfod_client"),
            below("HOME", ".cache/debuginfod_client"),
            below("HOME", ".debuginfod_client_cache"),
        ]
        .into_iter()
        .flatten()
        .collect();
        debuginfod.dedup();
        DebugFiles { build_id: vec!["/usr/lib/debug/.build-id".into()], debuginfod }
    }

    /// One place, in the first layout.
    #[cfg(test)]
    pub(crate) fn below(directory: &Path) -> Self {
        DebugFiles { build_id: vec![directory.to_owned()], debuginfod: Vec::new() }
    }

    /// The debug file of a build, seen from here or, if it lies there, from within `root`: the root
    /// directory of a process that runs it.
    pub(crate) fn find(&self, build_id: &[u8], root: Option<&Path>) -> Option<PathBuf> {
        let hex = build_id.iter().fold(String::new(), |mut hex, byte| {
            // Writing to a string cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        let (first, rest) = hex.split_at_checked(2)?;
        let inside = root.map(|root| root.join("usr/lib/debug/.build-id"));
        let directories = self.build_id.iter().chain(&inside);
        let apart =
            directories.map(|directory| directory.join(first).join(format!("{rest}.debug")));
        let cached = self.debuginfod.iter().map(|directory| directory.join(&hex).join("debuginfo"));
        apart.chain(cached).find(|path| is_of(path, build_id))
    }
}

/// Whether the file is there and of this build.
fn is_of(path: &Path, build_id: &[u8]) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let cache = ReadCache::new(&file);
    Image::parse(&cache).and_then(|image| image.build_id()).is_some_and(|id| id == build_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_build_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let files = DebugFiles {
            build_id: vec![directory.path().to_owned()],
            debuginfod: vec![directory.path().join("cache")],
        };
        let file = File::open("/proc/self/exe").unwrap();
        let id = Image::parse(&ReadCache::new(&file)).unwrap().build_id();
        let Some(id) = id else {
            eprintln!("skipped: this linker writes no build id");
            return;
        };
        assert_eq!(files.find(&id, None), None);

        let other = [0xab; 20];
        let hex = |id: &[u8]| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let cached = |id: &[u8]| directory.path().join("cache").join(hex(id));
        for id in [&id[..], &other[..]] {
            std::fs::create_dir_all(cached(id)).unwrap();
            std::fs::copy("/proc/self/exe", cached(id).join("debuginfo")).unwrap();
        }
        assert_eq!(files.find(&id, None), Some(cached(&id).join("debuginfo")));
        assert_eq!(files.find(&other, None), None);
        assert_eq!(files.find(&[], None), None);
    }
}
