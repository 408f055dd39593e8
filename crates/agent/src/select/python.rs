//! A cheap guess whether a process runs CPython. The guess decides whether to watch; what exactly
//! runs there, and whether it can be read, is for the inspection that follows.

use std::fs;
use std::path::Path;

use procfs::process::Process;

/// Whether the executable is called python, or a libpython is mapped.
pub(crate) fn runs_python(process: &Process, exe: &Path) -> bool {
    let name = exe.file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with("python") {
        return true;
    }
    fs::read(format!("/proc/{}/maps", process.pid())).is_ok_and(|maps| maps_libpython(&maps))
}

fn maps_libpython(maps: &[u8]) -> bool {
    maps.windows(b"/libpython".len()).any(|window| window == b"/libpython")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_embedding_program_is_known_by_its_library() {
        assert!(maps_libpython(b"7f00-7f01 r-xp 0 08:01 12 /usr/lib/libpython3.11.so.1.0\n"));
        assert!(!maps_libpython(b"7f00-7f01 r-xp 0 08:01 12 /usr/lib/libc.so.6\n"));
        let me = Process::myself().unwrap();
        assert!(!runs_python(&me, &me.exe().unwrap()));
    }
}
