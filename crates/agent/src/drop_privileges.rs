//! From root to an ordinary user with the few capabilities the agent needs while it runs.
//!
//! BPF programs are attached as root. Then the process becomes another user, keeps
//! [`NEEDED`], loses the rest for good (also from the bounding set), and can gain none by `exec`.
//!
//! Credentials belong to a thread. So this is done while there is only one, and the threads started
//! later inherit them.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Path, PathBuf};

use caps::{CapSet, Capability, CapsHashSet};
use nix::sys::prctl;
use nix::unistd::{Gid, Uid, User, setgroups, setresgid, setresuid};

use crate::error::{Error, Result};

/// The user to become unless another is named.
pub const DEFAULT_USER: &str = "nobody";

/// What is kept, and why.
pub const NEEDED: [(Capability, &str); 6] = [
    (Capability::CAP_BPF, "load programs for interpreters that start later"),
    (Capability::CAP_PERFMON, "attach them, as uprobes and perf events"),
    (
        Capability::CAP_SYS_PTRACE,
        "read /proc/PID/{exe,fd,maps} and memory of other users' processes",
    ),
    (Capability::CAP_DAC_READ_SEARCH, "read their binaries, also in containers' file systems"),
    (Capability::CAP_CHECKPOINT_RESTORE, "and deleted ones, through /proc/PID/map_files"),
    (Capability::CAP_SYS_NICE, "look at goroutines when it is time, also where all CPUs are busy"),
];

/// How to drop privileges.
#[derive(Clone, Debug)]
pub struct Options {
    /// The user to become.
    pub user: String,
    /// Directories the agent writes to: they are given to the user first, with all below them.
    pub owned: Vec<PathBuf>,
    /// Capabilities to keep beside [`NEEDED`].
    pub also_keep: Vec<Capability>,
}

impl Default for Options {
    fn default() -> Self {
        Options { user: DEFAULT_USER.to_owned(), owned: Vec::new(), also_keep: Vec::new() }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The process now runs as this user.
    Dropped {
        /// The user's id.
        uid: u32,
    },
    /// It was not root to begin with; only gaining privileges is ruled out.
    NotRoot,
}

/// Drops privileges. Call it after attaching and before threads are started (also a Tokio runtime's).
///
/// # Errors
/// If the user does not exist, other threads run, or the kernel refuses a step. Nothing was changed
/// in the first two cases; after a refused step end the process.
pub fn drop_privileges(options: &Options) -> Result<Outcome> {
    if !Uid::effective().is_root() {
        prctl::set_no_new_privs().map_err(Error::system("prctl(PR_SET_NO_NEW_PRIVS)"))?;
        return Ok(Outcome::NotRoot);
    }
    let user = User::from_name(&options.user).map_err(Error::system("getpwnam"))?;
    let user = user.ok_or_else(|| Error::NoSuchUser { user: options.user.clone() })?;
    let threads = threads()?;
    if threads > 1 {
        return Err(Error::TooManyThreads { threads });
    }
    for directory in &options.owned {
        give(directory, user.uid, user.gid)?;
    }
    let kept: CapsHashSet = NEEDED
        .iter()
        .map(|(capability, _)| *capability)
        .chain(options.also_keep.iter().copied())
        .filter(|capability| has(CapSet::Permitted, *capability))
        .collect();
    switch(user.uid, user.gid, &kept)?;
    Ok(Outcome::Dropped { uid: user.uid.as_raw() })
}

/// Lets programs that are started from now on read every file, as this process may. Call it after
/// [`drop_privileges`], while there is one thread.
///
/// # Errors
/// If the kernel refuses, because the capability was not kept.
pub fn let_children_read() -> Result<()> {
    let read = Capability::CAP_DAC_READ_SEARCH;
    caps::raise(None, CapSet::Inheritable, read)
        .map_err(refused("set inheritable capabilities"))?;
    caps::raise(None, CapSet::Ambient, read).map_err(refused("set ambient capabilities"))
}

fn switch(uid: Uid, gid: Gid, kept: &CapsHashSet) -> Result<()> {
    // The bounding set can be changed only with CAP_SETPCAP, so it comes first.
    for capability in caps::all() {
        if !kept.contains(&capability) && has(CapSet::Bounding, capability) {
            caps::drop(None, CapSet::Bounding, capability).map_err(refused("drop capabilities"))?;
        }
    }
    prctl::set_keepcaps(true).map_err(Error::system("prctl(PR_SET_KEEPCAPS)"))?;
    setgroups(&[]).map_err(Error::system("setgroups"))?;
    setresgid(gid, gid, gid).map_err(Error::system("setresgid"))?;
    setresuid(uid, uid, uid).map_err(Error::system("setresuid"))?;
    // Changing the user emptied the effective set and kept the permitted one.
    caps::set(None, CapSet::Effective, kept).map_err(refused("set effective capabilities"))?;
    caps::set(None, CapSet::Permitted, kept).map_err(refused("set permitted capabilities"))?;
    caps::clear(None, CapSet::Inheritable).map_err(refused("clear inheritable capabilities"))?;
    prctl::set_keepcaps(false).map_err(Error::system("prctl(PR_SET_KEEPCAPS)"))?;
    prctl::set_no_new_privs().map_err(Error::system("prctl(PR_SET_NO_NEW_PRIVS)"))?;
    Ok(())
}

fn has(set: CapSet, capability: Capability) -> bool {
    caps::has_cap(None, set, capability).unwrap_or(false)
}

fn refused(call: &'static str) -> impl FnOnce(caps::errors::CapsError) -> Error {
    move |error| Error::System { call, source: std::io::Error::other(error.to_string()), hint: "" }
}

fn threads() -> Result<usize> {
    let path = Path::new("/proc/self/task");
    Ok(fs::read_dir(path).map_err(Error::file("read", path))?.count())
}

/// Makes the user own a directory and all below it. Links are changed themselves, never what they
/// point to, so that nobody can have a foreign file given away.
fn give(path: &Path, uid: Uid, gid: Gid) -> Result<()> {
    let meta = match fs::symlink_metadata(path) {
        // A store that is being served removes files at any time.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        meta => meta.map_err(Error::file("look at", path))?,
    };
    if meta.is_file() && meta.nlink() > 1 {
        // A hard link could be to anybody's file.
        return Ok(());
    }
    if (meta.uid(), meta.gid()) != (uid.as_raw(), gid.as_raw()) {
        match lchown(path, Some(uid.as_raw()), Some(gid.as_raw())) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            done => done.map_err(Error::file("change the owner of", path))?,
        }
    }
    if meta.is_dir() {
        let entries = match fs::read_dir(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(Error::file("read", path))?,
        };
        for entry in entries {
            let entry = entry.map_err(Error::file("read", path))?;
            give(&entry.path(), uid, gid)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    /// Runs `check` in a child process, which has one thread and may lose its privileges. The child
    /// says what failed on standard error.
    fn in_child(check: impl FnOnce() -> std::result::Result<(), String>) {
        // SAFETY: glibc's allocator is usable in the child, and it ends without running anything of
        // the parent.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let outcome = check();
                if let Err(failure) = &outcome {
                    let _ = nix::unistd::write(std::io::stderr(), failure.as_bytes());
                }
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(i32::from(outcome.is_err())) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
            }
        }
    }

    fn ensure(what: &str, is: bool) -> std::result::Result<(), String> {
        if is { Ok(()) } else { Err(format!("not so: {what}\n")) }
    }

    #[test]
    fn root_becomes_a_user_that_can_still_watch_and_do_little_else() {
        assert!(Uid::effective().is_root(), "this test needs root");
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        fs::create_dir_all(data.join("spool")).unwrap();
        fs::write(data.join("spool/1.segment"), "rows").unwrap();
        let outside = dir.path().join("outside");
        fs::write(&outside, "root's").unwrap();
        std::os::unix::fs::symlink(&outside, data.join("link")).unwrap();
        // The user must be able to reach the directory at all.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(dir.path(), open).unwrap();
        let secret = dir.path().join("secret");
        fs::write(&secret, "x").unwrap();
        let closed = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&secret, closed).unwrap();
        let parent = std::process::id();

        in_child(|| {
            let options = Options { owned: vec![data.clone()], ..Options::default() };
            let outcome = drop_privileges(&options).map_err(|error| error.to_string())?;
            ensure("dropped", matches!(outcome, Outcome::Dropped { uid } if uid != 0))?;
            ensure("no longer root", !Uid::current().is_root() && !Uid::effective().is_root())?;
            ensure("cannot become root again", setresuid(0.into(), 0.into(), 0.into()).is_err())?;
            for (capability, _) in NEEDED {
                ensure("kept", has(CapSet::Effective, capability))?;
            }
            for lost in [Capability::CAP_SYS_ADMIN, Capability::CAP_CHOWN, Capability::CAP_SETUID] {
                ensure("lost", !has(CapSet::Permitted, lost) && !has(CapSet::Bounding, lost))?;
            }
            ensure("no new privileges", prctl::get_no_new_privs() == Ok(true))?;
            // What the agent does while it runs:
            ensure("writes its spool", fs::write(data.join("spool/2.segment"), "rows").is_ok())?;
            ensure("deletes from it", fs::remove_file(data.join("spool/1.segment")).is_ok())?;
            let fds = fs::read_dir(format!("/proc/{parent}/fd"));
            ensure("reads root's processes", fds.is_ok())?;
            ensure("reads root's binaries", fs::read(&secret).is_ok())?;
            ensure("looks at goroutines on time", crate::priority::first().is_ok())?;
            // What it must not be able to do:
            ensure("writes to root's files", fs::write(&secret, "y").is_err())?;
            ensure("still root's", fs::metadata(&outside).is_ok_and(|meta| meta.uid() == 0))?;
            Ok(())
        });
    }

    #[test]
    fn threads_and_unknown_users_are_refused_before_anything_changes() {
        let no_user = Options { user: "no-such-user".into(), ..Options::default() };
        let error = drop_privileges(&no_user).unwrap_err().to_string();
        assert!(error.contains("no-such-user") && error.contains("--keep-root"), "{error}");
        // The test harness itself runs this on a second thread.
        let error = drop_privileges(&Options::default()).unwrap_err();
        assert!(matches!(error, Error::TooManyThreads { threads } if threads > 1), "{error}");
        assert!(Uid::effective().is_root());
    }

    #[test]
    fn who_is_not_root_only_rules_out_gaining_privileges() {
        in_child(|| {
            let nobody = User::from_name(DEFAULT_USER).ok().flatten().ok_or("no user nobody")?;
            setresuid(nobody.uid, nobody.uid, nobody.uid).map_err(|error| error.to_string())?;
            let outcome =
                drop_privileges(&Options::default()).map_err(|error| error.to_string())?;
            ensure("not root", outcome == Outcome::NotRoot)?;
            ensure("no new privileges", prctl::get_no_new_privs() == Ok(true))
        });
    }
}
