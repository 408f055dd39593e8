//! The embedded store's folder, as others than the host see it: token and endpoint.

use std::ffi::{OsStr, OsString};
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

/// What lies in a folder that was named for the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// There is no such folder.
    Missing,
    /// Nothing that could be read, and nothing of others: a store may be made.
    Empty,
    /// A store, perhaps of an older version, and perhaps with files of others beside it.
    Store,
    /// Files of others, such as this one: a store must not be made here.
    Foreign(OsString),
}

impl Contents {
    /// Looks into a folder, and writes nothing. The host checks by itself, too (`folder.py`).
    ///
    /// # Errors
    ///
    /// If it cannot be looked into, or is no folder.
    pub fn of(folder: &Path) -> std::io::Result<Contents> {
        let entries = match std::fs::read_dir(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Contents::Missing),
            entries => entries?,
        };
        let names: Vec<OsString> =
            entries.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<_>>()?;
        // Every host took its lock before it made anything else, and wrote its pid there.
        let lock = match std::fs::symlink_metadata(folder.join("lock")) {
            Err(error) if error.kind() == ErrorKind::NotFound => Lock::None,
            Err(error) => return Err(error),
            Ok(meta) if meta.is_file() => Lock::read(&std::fs::read(folder.join("lock"))?),
            Ok(_) => Lock::Foreign,
        };
        let has_data = folder.join("data").is_dir();
        Ok(match lock {
            Lock::Foreign => Contents::Foreign("lock".into()),
            Lock::Held if has_data => Contents::Store,
            // A copy may have been made without it.
            _ if has_data && folder.join("token").is_file() => Contents::Store,
            lock => {
                let is_known = |name: &&OsString| match lock {
                    // What a file system of its own begins with.
                    _ if *name == "lost+found" => true,
                    Lock::None => is_spool(name),
                    _ => is_ours(name),
                };
                let foreign = names.iter().find(|name| !is_known(name));
                // Somebody makes a store here just now, or keeps others from it: who opens it is told.
                let in_use = || holder(folder).is_some_and(is_alive);
                match foreign {
                    Some(name) => Contents::Foreign(name.clone()),
                    None if matches!(lock, Lock::Held) && in_use() => Contents::Store,
                    None => Contents::Empty,
                }
            }
        })
    }
}

/// The file `lock`.
enum Lock {
    None,
    /// A host ended just when it had made it.
    Empty,
    Held,
    Foreign,
}

impl Lock {
    fn read(bytes: &[u8]) -> Lock {
        match bytes.trim_ascii() {
            [] => Lock::Empty,
            pid if pid.iter().all(u8::is_ascii_digit) => Lock::Held,
            _ => Lock::Foreign,
        }
    }
}

/// Whether the store's folder may hold a file of this name.
pub fn is_ours(name: &OsStr) -> bool {
    let text = name.to_string_lossy();
    let text = text.strip_suffix(".new").unwrap_or(&text);
    matches!(text, "data" | "lock" | "token" | "endpoint.json") || is_spool(name)
}

/// The agents' spools lie there too, also when the store is elsewhere.
fn is_spool(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name == "spool" || name.strip_prefix("spool-").is_some_and(|n| n.parse::<u8>().is_ok())
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
    fn a_store_is_told_from_other_folders() {
        let place = tempfile::TempDir::new().unwrap();
        let folder = |name: &str, files: &[(&str, &str)]| {
            let folder = place.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            for (name, text) in files {
                match name.strip_suffix('/') {
                    Some(name) => std::fs::create_dir(folder.join(name)).unwrap(),
                    None => std::fs::write(folder.join(name), text).unwrap(),
                }
            }
            Contents::of(&folder).unwrap()
        };
        let foreign = |name: &str| Contents::Foreign(name.into());
        assert_eq!(Contents::of(&place.path().join("none")).unwrap(), Contents::Missing);
        assert_eq!(folder("empty", &[]), Contents::Empty);
        assert_eq!(folder("spools", &[("spool/", ""), ("spool-2/", "")]), Contents::Empty);
        assert_eq!(folder("volume", &[("lost+found/", "")]), Contents::Empty);
        assert_eq!(folder("begun", &[("lock", "")]), Contents::Empty);
        let held = ("lock", "123\n");
        assert_eq!(folder("begun too", &[held, ("token.new", "")]), Contents::Empty);
        assert_eq!(folder("store", &[held, ("data/", "")]), Contents::Store);
        let beside = [held, ("data/", ""), ("token", "x"), ("notes.txt", "")];
        assert_eq!(folder("files beside it", &beside), Contents::Store);
        assert_eq!(folder("copy", &[("data/", ""), ("token", "x")]), Contents::Store);
        assert_eq!(folder("other", &[("thesis.tex", "")]), foreign("thesis.tex"));
        assert_eq!(folder("other data", &[("data/", "")]), foreign("data"));
        assert_eq!(folder("other lock", &[("lock", "mine"), ("data/", "")]), foreign("lock"));
        assert_eq!(folder("packages", &[("lock", ""), ("status", "")]), foreign("status"));
        assert_eq!(folder("locked", &[held, ("status", "")]), foreign("status"));
        assert!(Contents::of(Path::new("/dev/null")).is_err());
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
