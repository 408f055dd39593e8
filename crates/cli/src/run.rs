//! `underspan run -- CMD`.

use std::io::{Read as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitCode, ExitStatus};

use anyhow::Context as _;
use underspan_agent::Selection;

use crate::failure::Failure;
use crate::watch::{self, AgentArgs, Running, TableArgs, progress};
use crate::{Global, signals};

/// Options of `underspan run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    tables: TableArgs,
    /// Say nothing of what is being done
    #[arg(long, short)]
    quiet: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    watch::log_to_stderr();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(watch_command(args, global))
}

async fn watch_command(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let say = |text: &str| {
        if !args.quiet {
            progress(text);
        }
    };
    let (store, embedded) = watch::open_store(global, 0).await?;
    watch::migrate(&store, &args.tables).await?;

    // The command waits before its first instruction until it is watched.
    let held = Held::start(&args.command)?;
    let pid = held.pid;
    let selection = Selection { root: Some(pid), ..Selection::default() };
    let options = args.agent.options(selection)?;
    let never = embedded.iter().filter_map(|embedded| embedded.pid()).collect();
    let running = Running::start(options, &args.agent, global, store, never).await?;
    let mut child = held.release()?;
    say(&format!("watching {} (pid {pid})", args.command.join(" ")));

    let waiting = tokio::task::spawn_blocking(move || child.wait());
    // Ctrl-C reaches the command too; a SIGTERM to us is passed on. Either way we go when it has
    // gone, and what was seen is written first.
    loop {
        signals::interrupted_or(|| waiting.is_finished() || running.has_ended()).await?;
        if waiting.is_finished() {
            break;
        }
        if running.has_ended() {
            return running.stop().await.map(|()| ExitCode::FAILURE);
        }
        if let Ok(pid) = i32::try_from(pid) {
            // It may have ended just now.
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGTERM);
        }
    }
    let status = waiting.await??;
    let outcome = running.stop().await;
    if let Some(embedded) = embedded {
        embedded.shutdown().await;
    }
    outcome?;
    say("done; `underspan requests` lists what was asked of it");
    Ok(exit_code(status))
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
        let hold = move || {
            pid_in.write_all(&std::process::id().to_ne_bytes())?;
            let mut byte = [0];
            // An end of file means that we are gone: start anyway would be unwatched, so do not.
            gate.read_exact(&mut byte)
        };
        let mut hold = Some(hold);
        // SAFETY: between fork and exec the closure only writes to and reads from pipes and asks
        // for its pid, all of which are async-signal-safe.
        unsafe {
            command.pre_exec(move || hold.as_mut().map_or(Ok(()), |hold| hold()));
        }
        // spawn() returns when the program has started, which is after the gate has opened.
        let spawning = std::thread::spawn(move || command.spawn());
        let mut pid = [0; 4];
        if let Err(error) = pid_out.read_exact(&mut pid) {
            let spawned = spawning.join().map_err(|_| anyhow::anyhow!("cannot start a thread"))?;
            return Err(spawned.err().unwrap_or(error)).with_context(|| format!("{program}"));
        }
        Ok(Held { pid: u32::from_ne_bytes(pid), go, spawning, name: program.clone() })
    }

    fn release(mut self) -> anyhow::Result<Child> {
        self.go.write_all(&[1])?;
        let spawned =
            self.spawning.join().map_err(|_| anyhow::anyhow!("the starting thread is gone"))?;
        spawned.map_err(|error| {
            let failure = Failure::new(format!("{}: {error}", self.name));
            failure.hint("is the command's name right, and on PATH?").into()
        })
    }
}
