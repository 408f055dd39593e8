//! `underspan`: one file a subcommand.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod agent;
mod beside;
mod diff;
mod doctor;
mod explain;
mod failure;
mod flame;
mod global;
mod heap;
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
#[command(name = "underspan", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Watch everything on this machine, until Ctrl-C
    Up(up::Args),
    /// Run a command and watch it and its children for as long as it lives
    Run(run::Args),
    /// Collect: watch this machine and send what is seen to the store
    Agent(agent::Args),
    /// Serve: take spans over OTLP, answer the API
    Server(server::Args),
    /// Recent requests, slowest first
    Requests(requests::Args),
    /// Where one request's time went, who is to blame, what to change
    Explain(explain::Args),
    /// Flame graphs of running and waiting, also for other viewers
    Flame(Box<flame::Args>),
    /// Two time ranges, side by side: did the fix work, by how much, per route and per cause
    Diff(diff::Args),
    /// What every thread does, live, in the terminal; needs no store
    Top(top::Args),
    /// How long received packets sit in the kernel, stage by stage, live; needs no store
    Netstack(netstack::Args),
    /// Send a query to ClickHouse
    Sql(sql::Args),
    /// What can be seen here, tracker by tracker, and why not
    Doctor(doctor::Args),
}

fn main() -> ExitCode {
    heap::share();
    let Cli { global, command } = Cli::parse();
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
