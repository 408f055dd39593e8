//! Finds a Python that has the store host and chDB.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::{AccessFlags, access};
use tokio::process::Command;
use tokio::time::timeout;

use super::EmbeddedError;

/// The environment variable that names the Python to use.
pub const PYTHON_VARIABLE: &str = "UNDERSPAN_PYTHON";

/// A first import from a cold disk may take a while.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// Finds the packages without loading the engine, and names what is missing.
const PROBE: &str = "
import importlib.util, sys
for name in ('underspan.store', 'chdb', 'lz4', 'zstandard', 'clickhouse_cityhash'):
    try:
        found = importlib.util.find_spec(name)
    except ImportError:
        found = None
    if found is None:
        sys.exit('no package ' + name)
";

/// The first Python that will do: the given one alone, else `UNDERSPAN_PYTHON` alone, else the one
/// beside this executable, else `python3` on the path.
pub(super) async fn find(given: Option<&Path>) -> Result<PathBuf, EmbeddedError> {
    let mut tried = Vec::new();
    for candidate in candidates(given) {
        match probe(&candidate).await {
            Ok(()) => return Ok(candidate),
            Err(reason) => tried.push(format!("  {}: {reason}", candidate.display())),
        }
    }
    Err(EmbeddedError::NoPython { tried })
}

fn candidates(given: Option<&Path>) -> Vec<PathBuf> {
    if let Some(given) = given {
        return vec![given.to_owned()];
    }
    if let Some(named) = std::env::var_os(PYTHON_VARIABLE).filter(|name| !name.is_empty()) {
        return vec![PathBuf::from(named)];
    }
    let beside = std::env::current_exe().ok();
    let beside = beside.and_then(|exe| Some(exe.parent()?.join("python3")));
    beside.into_iter().chain([PathBuf::from("python3")]).collect()
}

/// The Python that [`find`] tries first, if it lies where this process's user may not go. Its
/// capabilities do not count: the host will not have them.
pub(super) fn out_of_reach() -> Option<PathBuf> {
    let candidates = candidates(None).into_iter().flat_map(|candidate| on_path(&candidate));
    // With capabilities or without: one that is not there is not tried.
    let first = candidates.into_iter().find(|candidate| candidate.exists())?;
    access(&first, AccessFlags::X_OK).is_err().then_some(first)
}

/// Where a program without a folder may be.
fn on_path(program: &Path) -> Vec<PathBuf> {
    if program.components().count() > 1 {
        return vec![program.to_owned()];
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).map(|folder| folder.join(program)).collect()
}

async fn probe(python: &Path) -> Result<(), String> {
    // Python looks for packages in the current folder first, and `/` has none.
    let mut command = Command::new(python);
    command.args([OsStr::new("-c"), OsStr::new(PROBE)]).current_dir("/").kill_on_drop(true);
    match timeout(PROBE_TIMEOUT, command.output()).await {
        Err(_) => Err(format!("no answer within {PROBE_TIMEOUT:?}")),
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => Err("not found".into()),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => {
            let text = String::from_utf8_lossy(&output.stderr);
            Err(text.lines().last().unwrap_or("it fails without a word").to_owned())
        }
    }
}
