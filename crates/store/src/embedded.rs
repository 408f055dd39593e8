//! The embedded store: a Python process hosting chDB, started and supervised from here.
//!
//! The host speaks ClickHouse's HTTP interface on loopback, so all else is [`crate::Store`]. It is
//! found through its folder: `endpoint.json` says where it listens, `token` holds its password.

mod error;
mod folder;
mod host;
mod python;
mod supervisor;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

pub use error::EmbeddedError;
pub use folder::default_folder;
pub use python::PYTHON_VARIABLE;

use crate::{Endpoint, Store};
use host::Host;
use supervisor::Supervisor;

/// Where the embedded store listens unless told otherwise.
pub const DEFAULT_PORT: u16 = 7078;

/// How long to wait for a host that another process is just starting.
const OTHER_START: Duration = Duration::from_secs(20);

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

/// A running embedded store. One that was started from here ends when this is dropped.
#[derive(Debug)]
pub struct Embedded {
    endpoint: Endpoint,
    supervisor: Option<Supervisor>,
}

impl Embedded {
    /// Starts a host and waits until it answers. `progress` is told what is being waited for.
    ///
    /// Should the host die, it is started again, at the same address.
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
        Ok(Embedded { endpoint, supervisor: Some(Supervisor::watch(host, options)) })
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
        if let Some(running) = Self::running(&options.folder).await? {
            return Ok(running);
        }
        match Self::start(options, &progress).await {
            // Someone else was quicker; its endpoint is about to appear.
            Err(EmbeddedError::FolderInUse(reason)) => {
                progress("another process is starting the embedded store");
                let deadline = Instant::now() + OTHER_START;
                while Instant::now() < deadline {
                    if let Some(running) = Self::running(&options.folder).await? {
                        return Ok(running);
                    }
                    sleep(Duration::from_millis(100)).await;
                }
                Err(EmbeddedError::FolderInUse(reason))
            }
            started => started,
        }
    }

    /// Where it is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The host's process id, where it was started from here and is up.
    pub fn pid(&self) -> Option<u32> {
        self.supervisor.as_ref().and_then(Supervisor::pid)
    }

    /// Stops a host that was started from here, and waits until it has written everything out.
    pub async fn shutdown(mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.shutdown().await;
        }
    }

    /// The folder's host, if it really answers: after a crash, `endpoint.json` may be stale and its
    /// pid someone else's.
    async fn running(folder: &Path) -> Result<Option<Embedded>, EmbeddedError> {
        let endpoint = match Self::attach(folder) {
            Err(EmbeddedError::NotRunning(_)) => return Ok(None),
            endpoint => endpoint?,
        };
        let answers = Store::connect(endpoint.clone()).check().await.is_ok();
        Ok(answers.then_some(Embedded { endpoint, supervisor: None }))
    }
}
