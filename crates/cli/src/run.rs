//! `underspan run -- CMD`.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitCode, ExitStatus};

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgrp, tcgetpgrp};
use underspan_agent::{Agent, Selection};

use crate::beside::{Running, beside};
use crate::failure::{FAILED, Failure};
use crate::metrics::Endpoint;
use crate::signals::Signals;
use crate::watch::{self, AgentArgs, TableArgs, progress};
use crate::{Global, store};

/// As shells have it: the command was found and cannot be run, or was not found.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Options of `underspan run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
    /// Say nothing of what is being done
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    tables: TableArgs,
}

/// Runs the command. It stays the caller's in every respect, so root is kept.
pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    watch::log_to_stderr();
    let target = store::Target::new(global, 0)?;
    // Beside an agent that is up, which has the first.
    let spools = args.agent.spools(global);
    let endpoint = Endpoint::bind(args.agent.metrics)?;
    let metrics = endpoint.as_ref().map(Endpoint::metrics);
    // The command waits before its first instruction until it is watched.
    let held = Held::start(&args.command)?;
    let selection = Selection { root: Some(held.pid), ..Selection::default() };
    let agent = Agent::open(args.agent.options(selection, metrics)?)?;
    beside(agent, async |starter| {
        let signals = Signals::take()?;
        let _serving = endpoint.map(Endpoint::serve).transpose()?;
        let store = signals.unless(target.open_saying(|text| args.say(text))).await?;
        let result = async {
            signals.unless(store.migrate(&args.tables)).await?;
            let start = starter.start(&store, &spools, args.agent.spool_options(&args.tables));
            let running = signals.unless(start).await?;
            watch_command(held, running, &args, &signals).await
        }
        .await;
        store.close(&signals).await;
        let status = result?;
        args.say("done; `underspan requests` lists what was asked of it");
        Ok(exit_code(status))
    })
}

impl Args {
    fn say(&self, text: &str) {
        if !self.quiet {
            progress(text);
        }
    }
}

/// Lets the command go and waits for its end. A signal is passed on; we go when it has gone, and what
/// was seen is written first.
async fn watch_command(
    held: Held,
    mut running: Running,
    args: &Args,
    signals: &Signals,
) -> anyhow::Result<ExitStatus> {
    let pid = held.pid;
    let mut child = match held.release() {
        Ok(child) => child,
        Err(error) => {
            signals.stopping();
            running.stop(signals).await?;
            return Err(error);
        }
    };
    args.say(&format!("watching {} (pid {pid})", args.command.join(" ")));
    let mut waiting = tokio::task::spawn_blocking(move || child.wait());
    let mut is_watched = true;
    let status = loop {
        tokio::select! {
            status = &mut waiting => break status??,
            signal = signals.next() => pass_on(signal, pid),
            () = running.ended(), if is_watched => {
                is_watched = false;
                progress("watching has ended; the command goes on");
            }
        }
    };
    // Those that came before were the command's.
    signals.stopping();
    running.stop(signals).await?;
    Ok(status)
}

/// Sends a signal that we got to the command, unless it got it, too.
fn pass_on(signal: i32, pid: u32) {
    let (Ok(signal), Ok(pid)) = (Signal::try_from(signal), i32::try_from(pid)) else { return };
    // Ctrl-C goes to everything that runs in the terminal's foreground.
    if signal == Signal::SIGINT && is_in_foreground() {
        return;
    }
    // It may have ended just now.
    let _ = kill(Pid::from_raw(pid), signal);
}

fn is_in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    terminal.is_ok_and(|terminal| tcgetpgrp(terminal) == Ok(getpgrp()))
}

/// As a shell would say it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
}

/// A command that has been forked and waits to start.
struct Held {
    pid: u32,
    go: std::io::PipeWriter,
    spawning: std::thread::JoinHandle<std::io::Result<Child>>,
    name: String,
}

impl Held {
    fn start(words: &[String]) -> anyhow::Result<Self> {
        let (program, arguments) = words.split_first().context("there is no command")?;
        let (mut pid_out, mut pid_in) = std::io::pipe()?;
        let (mut gate, go) = std::io::pipe()?;
        let mut command = Command::new(program);
        command.args(arguments);
        let our_end = go.as_raw_fd();
        let hold = move || {
            // A copy of this end would keep the gate from closing when we are gone.
            // SAFETY: this is the child, where nothing else uses the descriptor.
            unsafe { libc::close(our_end) };
            pid_in.write_all(&std::process::id().to_ne_bytes())?;
            let mut byte = [0];
            if gate.read_exact(&mut byte).is_err() {
                // We are gone, and a start would be unwatched. Nor is anybody there to be told an error.
                // SAFETY: it ends the child, and runs nothing of ours.
                unsafe { libc::_exit(FAILED.into()) };
            }
            Ok(())
        };
        let mut hold = Some(hold);
        // SAFETY: between fork and exec the closure only uses pipes and asks for its
        // pid, all of which are async-signal-safe.
        unsafe {
            command.pre_exec(move || hold.as_mut().map_or(Ok(()), |hold| hold()));
        }
        // spawn() returns when the program has started, which is after the gate has opened.
        let spawning = std::thread::spawn(move || command.spawn());
        let mut pid = [0; 4];
        if let Err(error) = pid_out.read_exact(&mut pid) {
            let spawned = spawning.join().map_err(|_| anyhow::anyhow!("cannot start a thread"))?;
            return Err(spawned.err().unwrap_or(error)).with_context(|| program.clone());
        }
        Ok(Held { pid: u32::from_ne_bytes(pid), go, spawning, name: program.clone() })
    }

    fn release(mut self) -> anyhow::Result<Child> {
        self.go.write_all(&[1])?;
        let spawned =
            self.spawning.join().map_err(|_| anyhow::anyhow!("the starting thread is gone"))?;
        spawned.map_err(|error| {
            let (status, hint) = match error.kind() {
                ErrorKind::NotFound => (NOT_FOUND, "is the command's name right, and on PATH?"),
                _ => (NOT_EXECUTABLE, "is it a program, and may this user execute it?"),
            };
            Failure::new(format!("{}: {error}", self.name)).hint(hint).status(status).into()
        })
    }
}
