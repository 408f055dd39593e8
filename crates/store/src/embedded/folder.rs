//! The embedded store's folder, as others than the host see it: token and endpoint.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::EmbeddedError;
use crate::Endpoint;

/// Where data goes by default: `/var/lib/underspan` for root, else
/// `$XDG_STATE_HOME/underspan`, which is `~/.local/state/underspan` where that is not set.
pub fn default_folder() -> PathBuf {
    if nix::unistd::geteuid().is_root() {
        return PathBuf::from("/var/lib/underspan");
    }
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".local/state")))
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
