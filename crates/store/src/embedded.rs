//! The embedded store: a Python process hosting chDB, started and supervised from here.
//!
//! The host speaks ClickHouse's HTTP interface on loopback, so all else is [`crate::Store`]. It is
//! found through its folder: `endpoint.json` says where it listens, `token` holds its password.

mod error;
mod folder;
mod host;
mod python;
mod readers;
mod supervisor;

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::{AccessFlags, access};
use tokio::time::{Instant, sleep};

pub use error::EmbeddedError;
pub use folder::{Contents, MODULE as HOST_MODULE, default_folder, is_ours};
pub use python::PYTHON_VARIABLE;
pub use readers::{Holds, Readers, ReadersError};

use crate::{Endpoint, Store};
use host::Host;
use supervisor::{Served, Supervisor};

/// Where the embedded store listens unless told otherwise.
pub const DEFAULT_PORT: u16 = 7078;

/// How long to wait for a host that another process is just starting.
const OTHER_START: Duration = Duration::from_secs(20);

/// What a host started from here needs and this process's user may not use by itself: the folder or
/// Python. Capabilities of this process do not count, since the host does not have them.
pub fn out_of_reach(folder: &Path) -> Option<PathBuf> {
    if access(folder, AccessFlags::W_OK | AccessFlags::X_OK).is_err() {
        return Some(folder.to_owned());
    }
    python::out_of_reach()
}

/// How the embedded store is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its folder: data, lock, token, endpoint.
    pub folder: PathBuf,
    /// Its port on 127.0.0.1; 0 takes a free one.
    pub port: u16,
    /// The Python to run it with, instead of looking for one.
    pub python: Option<PathBuf>,
    /// What its queries may use, in MiB; `None` leaves it to the host.
    pub memory_limit_mib: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            folder: default_folder(),
            port: DEFAULT_PORT,
            python: None,
            memory_limit_mib: None,
        }
    }
}

/// A running embedded store. A host that was started from here ends when this is dropped.
///
/// The address stays the same while this lives: a host that dies is started again, and one that
/// another process had started is replaced when that process ends.
#[derive(Debug)]
pub struct Embedded {
    endpoint: Endpoint,
    supervisor: Supervisor,
}

impl Embedded {
    /// Starts a host and waits until it answers. `progress` is told what is being waited for.
    ///
    /// # Errors
    ///
    /// Says which of Python, folder, port or engine stands in the way.
    pub async fn start(
        options: &Options,
        progress: impl Fn(&str),
    ) -> Result<Embedded, EmbeddedError> {
        progress("looking for a Python with the embedded store");
        let python = python::find(options.python.as_deref()).await?;
        let folder = std::path::absolute(&options.folder)?;
        progress(&format!("starting the embedded store on {}", folder.display()));
        let host = Host::start(&python, &folder, options).await?;
        let endpoint = folder::endpoint(&folder, host.url())?;
        progress(&format!("the embedded store answers at {}", endpoint.url));
        let options = Options { folder, python: Some(python), ..options.clone() };
        let supervisor = Supervisor::watch(Served::Here(Box::new(host)), &endpoint.url, options);
        Ok(Embedded { endpoint, supervisor })
    }

    /// The endpoint of the host that serves a folder.
    ///
    /// # Errors
    ///
    /// [`EmbeddedError::NotRunning`] when none does; others when its files cannot be read.
    pub fn attach(folder: &Path) -> Result<Endpoint, EmbeddedError> {
        match folder::advertised(folder)? {
            Some(advertised) => folder::endpoint(folder, &advertised.url),
            None => Err(EmbeddedError::NotRunning(folder.to_owned())),
        }
    }

    /// Connects to the host that serves the folder, else starts one.
    ///
    /// # Errors
    ///
    /// Those of [`Embedded::attach`] and [`Embedded::start`].
    pub async fn attach_or_start(
        options: &Options,
        progress: impl Fn(&str),
    ) -> Result<Embedded, EmbeddedError> {
        let mute = match Self::running(options).await {
            Ok(Some(running)) => return Ok(running),
            Ok(None) => None,
            Err(mute @ EmbeddedError::NoAnswer { .. }) => Some(mute),
            Err(error) => return Err(error),
        };
        match (Self::start(options, &progress).await, mute) {
            // So what is advertised is not stale.
            (Err(EmbeddedError::FolderInUse(_)), Some(mute)) => Err(mute),
            (Err(EmbeddedError::FolderInUse(reason)), None) => {
                Self::after_holder(options, reason, &progress).await
            }
            (started, _) => started,
        }
    }

    /// Somebody holds the folder and advertises nothing. A host that is starting soon will, and one that
    /// is ending gives the folder back; for anybody else there is nothing to wait for.
    async fn after_holder(
        options: &Options,
        reason: String,
        progress: impl Fn(&str),
    ) -> Result<Embedded, EmbeddedError> {
        let Some(holder) = folder::holder(&options.folder).filter(|pid| folder::is_host(*pid))
        else {
            return Err(EmbeddedError::FolderInUse(reason));
        };
        progress(&format!(
            "process {holder} is starting or ending the embedded store: waiting up to {OTHER_START:?}"
        ));
        let deadline = Instant::now() + OTHER_START;
        while Instant::now() < deadline {
            if let Some(running) = Self::running(options).await? {
                return Ok(running);
            }
            if !folder::is_host(holder) {
                return Self::start(options, progress).await;
            }
            sleep(Duration::from_millis(100)).await;
        }
        Err(EmbeddedError::FolderInUse(reason))
    }

    /// Where it is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Those who read it, for somebody who writes to it under a name of its own (letters and digits).
    pub fn readers(&self, writer: &str) -> Readers {
        Readers::new(self.endpoint.clone(), writer.to_owned())
    }

    /// The host's process id, where it was started from here and is up.
    pub fn pid(&self) -> Option<u32> {
        self.supervisor.pid()
    }

    /// Stops a host that was started from here, and waits until it has written everything out.
    pub async fn shutdown(self) {
        self.supervisor.shutdown().await;
    }

    /// The folder's host, if it really answers: after a crash, `endpoint.json` may be stale and its
    /// pid someone else's.
    async fn running(options: &Options) -> Result<Option<Embedded>, EmbeddedError> {
        let folder = std::path::absolute(&options.folder)?;
        let Some(advertised) = folder::advertised(&folder)? else { return Ok(None) };
        let endpoint = folder::endpoint(&folder, &advertised.url)?;
        match Store::connect(endpoint.clone()).check().await {
            Ok(_) => {}
            Err(crate::Error::TimedOut { url, after }) => {
                return Err(EmbeddedError::NoAnswer { folder, pid: advertised.pid, url, after });
            }
            Err(_) => return Ok(None),
        }
        let options = Options { folder, ..options.clone() };
        let supervisor = Supervisor::watch(Served::Elsewhere, &endpoint.url, options);
        Ok(Some(Embedded { endpoint, supervisor }))
    }
}
