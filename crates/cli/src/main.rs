//! `underspan`: one file a subcommand.
//!
//! What several share: `watch.rs` (options of `agent`, `up` and `run`), `beside.rs` (the agent, and the runtime
//! beside it), `store.rs` and `session.rs` (a store to write to, and to read from), `signals.rs`, and
//! `output.rs` and `failure.rs` (what is said where). `render` makes text for people.

use std::process::ExitCode;

use clap::{ArgAction, Parser, Subcommand};

mod agent;
mod beside;
mod diff;
mod doctor;
mod examples;
mod explain;
mod failure;
mod flame;
mod global;
mod heap;
mod interval;
mod metrics;
mod netstack;
mod output;
mod privileges;
mod render;
mod requests;
mod run;
mod server;
mod session;
mod signals;
mod sql;
mod store;
mod top;
mod up;
mod watch;

use failure::Failure;
use global::Global;

/// Every millisecond your APM cannot see, accounted for.
#[derive(Parser)]
#[command(name = "underspan", version, max_term_width = 100, disable_help_flag = true)]
#[command(disable_version_flag = true)]
#[command(after_help = examples::ALL)]
struct Cli {
    #[command(flatten)]
    global: Global,
    /// Print the version
    #[arg(long, short = 'V', action = ArgAction::Version, help_heading = "Global options")]
    version: Option<bool>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Watch everything on this machine, until Ctrl-C
    #[command(after_help = examples::UP)]
    Up(up::Args),
    /// Run a command and watch it and its children for as long as it lives
    #[command(after_help = examples::RUN)]
    Run(run::Args),
    /// Watch this machine and send what is seen to a store; `up` without a server
    #[command(after_help = examples::AGENT)]
    Agent(agent::Args),
    /// Take spans over OTLP and answer the API; `up` without an agent
    #[command(after_help = examples::SERVER)]
    Server(server::Args),
    /// Recent requests, slowest first
    #[command(after_help = examples::REQUESTS)]
    Requests(requests::Args),
    /// Where one request's time went, who is to blame, what to change
    #[command(after_help = examples::EXPLAIN)]
    Explain(explain::Args),
    /// Flame graphs of running and waiting: SVG, or files for other viewers
    #[command(after_help = examples::FLAME)]
    Flame(Box<flame::Args>),
    /// Two time ranges side by side: did the fix work, for which routes and causes
    #[command(after_help = examples::DIFF)]
    Diff(diff::Args),
    /// What every thread does, live, in the terminal; needs no store
    #[command(after_help = examples::TOP)]
    Top(top::Args),
    /// How long received packets sit in the kernel, stage by stage, live; needs no store
    #[command(after_help = examples::NETSTACK)]
    Netstack(netstack::Args),
    /// Query the tables in SQL, as ClickHouse has it
    #[command(after_help = examples::SQL)]
    Sql(sql::Args),
    /// What can be seen on this machine, tracker by tracker, and if not, why
    #[command(after_help = examples::DOCTOR)]
    Doctor(doctor::Args),
}

fn main() -> ExitCode {
    heap::share();
    let Cli { global, command, .. } = Cli::parse();
    let result = match command {
        Command::Up(args) => up::run(args, &global),
        Command::Run(args) => run::run(args, &global),
        Command::Agent(args) => agent::run(args, &global),
        Command::Server(args) => server::run(args, &global),
        Command::Requests(args) => requests::run(args, &global),
        Command::Explain(args) => explain::run(args, &global),
        Command::Flame(args) => flame::run(*args, &global),
        Command::Diff(args) => diff::run(args, &global),
        Command::Top(args) => top::run(args, &global),
        Command::Netstack(args) => netstack::run(args, &global),
        Command::Sql(args) => sql::run(args, &global),
        Command::Doctor(args) => doctor::run(args, &global),
    };
    result.unwrap_or_else(|error| Failure::report(&error))
}
