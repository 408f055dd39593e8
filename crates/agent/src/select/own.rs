//! Underspan's own processes, whoever started them: what they do follows from what is recorded, and recording
//! that would make more of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use procfs::process::Process;
use underspan_store::embedded::HOST_MODULE;

/// This program.
static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(|| std::env::current_exe().ok());

/// Whether it is this program too (`underspan server`), or hosts an embedded store.
pub(super) fn is_own(process: &Process, exe: &Path) -> bool {
    PROGRAM.as_deref() == Some(exe)
        || fs::read(format!("/proc/{}/cmdline", process.pid()))
            .is_ok_and(|command| hosts_store(&command))
}

/// `python -m underspan.store …`
fn hosts_store(command: &[u8]) -> bool {
    let mut words = command.split(|byte| *byte == 0).skip_while(|word| *word != b"-m");
    words.nth(1) == Some(HOST_MODULE.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_store_is_known_by_its_command_line() {
        assert!(hosts_store(b"/usr/bin/python3\0-m\0underspan.store\0--data\0/d\0"));
        assert!(hosts_store(b"python3\0-X\0dev\0-m\0underspan.store\0"));
        assert!(!hosts_store(b"grep\0underspan.store\0"));
        assert!(!hosts_store(b"python3\0-m\0gunicorn\0underspan.store\0"));
        assert!(!hosts_store(b""));
    }
}
