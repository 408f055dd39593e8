//! One life of the host's process.

use std::collections::VecDeque;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::unistd::setsid;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::folder::Advertised;
use super::{EmbeddedError, Options, folder as files};

/// Opening many parts on a slow disk takes long.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// A little more than the host itself gives the requests it has accepted.
const STOP_TIMEOUT: Duration = Duration::from_secs(35);
/// How much of what the host says is kept for an error message.
const LINES_KEPT: usize = 12;

// The host's exit statuses, as in its `__main__.py`.
const FOLDER_IN_USE: i32 = 3;
const PORT_IN_USE: i32 = 4;
const PACKAGE_MISSING: i32 = 5;

/// A host that is up. Dropping it closes its standard input, at which it ends by itself.
#[derive(Debug)]
pub(super) struct Host {
    child: Child,
    stdin: Option<ChildStdin>,
    advertised: Advertised,
}

impl Host {
    /// Starts the host and waits for the line that says it answers.
    pub(super) async fn start(
        python: &Path,
        folder: &Path,
        options: &Options,
    ) -> Result<Host, EmbeddedError> {
        let mut command = Command::new(python);
        command.args(["-m", files::MODULE, "--supervised", "--data"]).arg(folder);
        command.args(["--port", &options.port.to_string()]);
        if let Some(limit) = options.memory_limit_mib {
            command.args(["--memory-limit", &limit.to_string()]);
        }
        command
            // The current folder would come first where Python looks for packages.
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Ctrl-C in the terminal is for us: the host stays until the last rows are in. In a session of
        // its own it can also lower its priority where the kernel shares CPUs between sessions.
        // SAFETY: setsid() may be called between fork and exec, and touches no memory.
        unsafe { command.pre_exec(|| Ok(setsid().map(drop)?)) };
        let mut child = command.spawn()?;
        let stdin = child.stdin.take();
        let said = Said::default();
        let errors = child.stderr.take().map(|stderr| said.clone().listen(stderr));
        let Some(stdout) = child.stdout.take() else {
            return Err(std::io::Error::other("the host has no output").into());
        };
        let mut lines = BufReader::new(stdout).lines();
        let first = match timeout(START_TIMEOUT, lines.next_line()).await {
            Ok(first) => first?,
            Err(_) => {
                child.kill().await?;
                return Err(EmbeddedError::NotReady(START_TIMEOUT));
            }
        };
        let Some(first) = first else {
            return Err(why_it_ended(child.wait().await?, errors, &said).await);
        };
        let advertised = serde_json::from_str(&first).map_err(|_| EmbeddedError::Failed {
            status: "unexpected first line".to_owned(),
            message: first,
        })?;
        said.tell();
        Ok(Host { child, stdin, advertised })
    }

    /// Where it listens.
    pub(super) fn url(&self) -> &str {
        &self.advertised.url
    }

    /// Its process id.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until it ends. May be cancelled.
    pub(super) async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Asks it to end, waits, and kills it if it does not.
    pub(super) async fn stop(&mut self) {
        // The end of its input is the request. A signal would need the right to send one, which we
        // may have dropped since.
        self.stdin.take();
        if timeout(STOP_TIMEOUT, self.child.wait()).await.is_err() {
            tracing::error!("the embedded store did not end within {STOP_TIMEOUT:?}, killing it");
            if let Err(error) = self.child.kill().await {
                tracing::error!(%error, "cannot kill the embedded store");
            }
        }
    }
}

async fn why_it_ended(
    status: ExitStatus,
    errors: Option<JoinHandle<()>>,
    said: &Said,
) -> EmbeddedError {
    if let Some(errors) = errors {
        // Its last words are still on their way.
        let _ = timeout(Duration::from_secs(1), errors).await;
    }
    let message = said.text();
    let message = message.strip_prefix("error: ").unwrap_or(&message).to_owned();
    match status.code() {
        Some(FOLDER_IN_USE) => EmbeddedError::FolderInUse(message),
        Some(PORT_IN_USE) => EmbeddedError::PortInUse(message),
        Some(PACKAGE_MISSING) => EmbeddedError::NoPython { tried: vec![message] },
        _ => EmbeddedError::Failed { status: status.to_string(), message },
    }
}

/// What the host wrote to its standard error. If it does not come up, its last lines are the error; from
/// then on they are warnings.
#[derive(Clone, Debug, Default)]
struct Said(Arc<Mutex<Lines>>);

#[derive(Debug, Default)]
struct Lines {
    kept: VecDeque<String>,
    is_up: bool,
}

impl Said {
    fn listen(self, stderr: impl AsyncRead + Unpin + Send + 'static) -> JoinHandle<()> {
        tokio::spawn(async move {
            let mut lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                if lines.is_up {
                    warn(&line);
                }
                if lines.kept.len() == LINES_KEPT {
                    lines.kept.pop_front();
                }
                lines.kept.push_back(line);
            }
        })
    }

    /// It is up: what it said so far, and will say, is no error's text.
    fn tell(&self) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.is_up = true;
        lines.kept.iter().for_each(|line| warn(line));
    }

    fn text(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.kept.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

fn warn(line: &str) {
    tracing::warn!(target: "underspan::store::host", "{line}");
}
