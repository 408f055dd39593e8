//! Which user the agent becomes once its programs are attached, and what it takes along.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::unistd::{Uid, User};
use underspan_agent::{DEFAULT_USER, DropOptions, DropOutcome, drop_privileges, let_children_read};
use underspan_store::embedded;

use crate::Global;
use crate::failure::Failure;
use crate::watch::data_folder;

/// Who to be.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Privileges")]
pub(crate) struct PrivilegeArgs {
    /// User to become once the BPF programs are attached; the data folder and the spool are given to
    /// it [default: who called sudo, else nobody]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Stay root
    #[arg(long, conflicts_with = "user")]
    keep_root: bool,
}

impl PrivilegeArgs {
    /// Drops root for good, but for what the agent needs. While there is one thread.
    pub(crate) fn drop(&self, global: &Global, spool: &Path) -> anyhow::Result<()> {
        let data = global.store.is_none().then(|| data_folder(global));
        let owned: Vec<_> = data.iter().map(PathBuf::as_path).chain([spool]).collect();
        if self.keep_root {
            return Ok(());
        }
        let mut folders = Vec::new();
        if Uid::effective().is_root() {
            for folder in owned {
                folders.push(prepare(folder)?);
            }
        }
        let options = DropOptions { user: self.user(), owned: folders, ..DropOptions::default() };
        let outcome = drop_privileges(&options).map_err(|error| {
            let message = format!("cannot go on as user {}: {error}", options.user);
            Failure::new(message).hint("name another with --user, or stay root with --keep-root")
        })?;
        let DropOutcome::Dropped { uid } = outcome else { return Ok(()) };
        tracing::info!(uid, user = options.user, "privileges dropped");
        if let Some(beyond) = data.as_deref().and_then(embedded::out_of_reach) {
            tracing::info!(
                "{} is not open to user {}: the embedded store is let read all files",
                beyond.display(),
                options.user
            );
            let_children_read()?;
        }
        Ok(())
    }

    fn user(&self) -> String {
        let caller = || {
            let name = std::env::var("SUDO_USER").ok()?;
            let user = User::from_name(&name).ok()??;
            (!user.uid.is_root()).then_some(name)
        };
        self.user.clone().or_else(caller).unwrap_or_else(|| DEFAULT_USER.to_owned())
    }
}

/// Makes the folder if need be, and makes sure that it may be given away.
fn prepare(folder: &Path) -> anyhow::Result<PathBuf> {
    let what = || format!("cannot use the folder {}", folder.display());
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent).with_context(what)?;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder).with_context(what)?;
    let folder = folder.canonicalize().with_context(what)?;
    for entry in fs::read_dir(&folder).with_context(what)? {
        let name = entry.with_context(what)?.file_name();
        if !is_ours(&name) {
            let message = format!(
                "{} holds more than Underspan's own files ({}): it is not given to another user",
                folder.display(),
                name.to_string_lossy()
            );
            let hint =
                "choose an empty folder with --data or --spool, or stay root with --keep-root";
            return Err(Failure::new(message).hint(hint).into());
        }
    }
    Ok(folder)
}

/// Also what lies in the spool.
fn is_ours(name: &OsStr) -> bool {
    let text = name.to_string_lossy();
    let text = text.strip_suffix(".new").unwrap_or(&text);
    embedded::is_ours(name) || matches!(text, "rejected" | "cursor") || text.ends_with(".segment")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_our_own_are_given_away() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("a/b");
        assert_eq!(prepare(&folder).unwrap(), folder.canonicalize().unwrap());
        for name in ["lock", "token.new", "00000000000000000003.segment", "cursor"] {
            fs::write(folder.join(name), "").unwrap();
        }
        prepare(&folder).unwrap();
        fs::write(folder.join("thesis.tex"), "").unwrap();
        let error = prepare(&folder).unwrap_err().to_string();
        assert!(error.contains("thesis.tex"), "{error}");
    }
}
