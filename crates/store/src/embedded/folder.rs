//! The embedded store's folder, as others than the host see it: token and endpoint.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::EmbeddedError;
use crate::Endpoint;

/// The host's module, as its command line names it.
pub const MODULE: &str = "underspan.store";

/// Where data goes by default: `/var/lib/underspan` for root, else
/// `$XDG_STATE_HOME/underspan`, which is `~/.local/state/underspan` where that is not set.
pub fn default_folder() -> PathBuf {
    let root = nix::unistd::geteuid().is_root();
    folder_for(root, std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))
}

fn folder_for(root: bool, state: Option<OsString>, home: Option<OsString>) -> PathBuf {
    if root {
        return PathBuf::from("/var/lib/underspan");
    }
    // The specification says to ignore relative paths.
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let state = state
        .and_then(absolute)
        .or_else(|| home.and_then(absolute).map(|home| home.join(".local/state")))
        .unwrap_or_else(std::env::temp_dir);
    state.join("underspan")
}

/// `endpoint.json`, as the host writes it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Advertised {
    pub(super) url: String,
    pub(super) pid: i32,
}

/// What serves the folder, if anything says it does and that process is alive.
pub(super) fn advertised(folder: &Path) -> Result<Option<Advertised>, EmbeddedError> {
    let path = folder.join("endpoint.json");
    let Some(text) = read(&path)? else { return Ok(None) };
    let advertised: Advertised = serde_json::from_str(&text)
        .map_err(|error| EmbeddedError::Damaged { path, reason: error.to_string() })?;
    Ok(Some(advertised).filter(|advertised| is_alive(advertised.pid)))
}

/// The endpoint for a host at this URL, with the folder's token as password.
pub(super) fn endpoint(folder: &Path, url: &str) -> Result<Endpoint, EmbeddedError> {
    let path = folder.join("token");
    let token = read(&path)?.unwrap_or_default().trim().to_owned();
    if token.is_empty() {
        return Err(EmbeddedError::Damaged { path, reason: "it is missing or empty".to_owned() });
    }
    Ok(Endpoint {
        url: url.to_owned(),
        database: "default".to_owned(),
        user: "default".to_owned(),
        password: token,
    })
}

/// Who holds the folder, or did last.
pub(super) fn holder(folder: &Path) -> Option<i32> {
    std::fs::read_to_string(folder.join("lock")).ok()?.trim().parse().ok()
}

/// Whether a process is a host, and alive. One whose command line may not be read is taken for one.
pub(super) fn is_host(pid: i32) -> bool {
    let command = std::fs::read(format!("/proc/{pid}/cmdline"));
    is_alive(pid)
        && command.map_or_else(
            |error| error.kind() != ErrorKind::NotFound,
            |command| command.split(|byte| *byte == 0).any(|word| word == MODULE.as_bytes()),
        )
}

fn read(path: &Path) -> Result<Option<String>, EmbeddedError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(EmbeddedError::Folder { path: path.to_owned(), source }),
    }
}

fn is_alive(pid: i32) -> bool {
    use nix::errno::Errno;
    use nix::sys::signal::kill;
    use nix::unistd::Pid;
    // EPERM: it lives, and belongs to someone else.
    pid > 0 && matches!(kill(Pid::from_raw(pid), None), Ok(()) | Err(Errno::EPERM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_goes_where_the_user_may_keep_state() {
        let folder = |root, state: &str, home: &str| {
            folder_for(root, Some(state.into()), Some(home.into())).display().to_string()
        };
        assert_eq!(folder(true, "/s", "/h"), "/var/lib/underspan");
        assert_eq!(folder(false, "/s", "/h"), "/s/underspan");
        assert_eq!(folder(false, "", "/h"), "/h/.local/state/underspan");
        assert_eq!(folder(false, "relative", "/h"), "/h/.local/state/underspan");
    }

    #[test]
    fn a_damaged_endpoint_is_told_and_a_dead_one_is_none() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("endpoint.json");
        assert_eq!(advertised(folder.path()).unwrap(), None);
        std::fs::write(&path, "{\"url\": \"http://127.0.0.1:1\", \"pid\": 2147483647}").unwrap();
        assert_eq!(advertised(folder.path()).unwrap(), None);
        std::fs::write(&path, "{\"url\"").unwrap();
        let error = advertised(folder.path()).unwrap_err().to_string();
        assert!(error.contains("endpoint.json is damaged"), "{error}");
        let error = endpoint(folder.path(), "http://127.0.0.1:1").unwrap_err().to_string();
        assert!(error.contains("token is damaged (it is missing or empty)"), "{error}");
    }
}
