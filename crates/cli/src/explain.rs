//! `underspan explain`.

use std::process::ExitCode;

use anyhow::Context;
use underspan_evidence::{evidence_for, request_by_id, requests_of_trace, spans_of_trace};
use underspan_explain::{Explanation, explain};
use underspan_model::Request;
use underspan_store::Store;

use crate::failure::{Failure, UNKNOWN_ID};
use crate::render::{self, Ink};
use crate::{Global, output, session};

/// Options of `underspan explain`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A request id (16 hexadecimal digits) or a trace id (32)
    #[arg(value_name = "ID")]
    id: String,
}

/// Runs the command.
pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let id = Id::parse(&args.id)?;
    let (explanation, others) = session::with_store(global, async |store| {
        let (request, others) = find(&store, &id).await?;
        let evidence = evidence_for(&store, request).await?;
        let explanation = explain(&evidence).context("the request vanished from its evidence")?;
        Ok((explanation, others))
    })?;
    if global.json {
        output::print_json(&explanation)?;
        return Ok(ExitCode::SUCCESS);
    }
    output::print(text(&explanation, &others, global).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn text(explanation: &Explanation, others: &[Request], global: &Global) -> String {
    let ink = Ink::new(global.colour());
    let width = global.width().unwrap_or(render::WIDTH).clamp(60, render::WIDTH);
    let mut text = render::explanation(explanation, width, ink);
    if !others.is_empty() {
        text += &format!("\n{}\n", ink.bold("Other requests of this trace"));
        text += &render::requests(others, global.width(), ink);
    }
    text
}

/// What the user gave.
enum Id {
    Request(String),
    Trace(String),
}

impl Id {
    /// Capital letters and the dashes of a UUID do no harm.
    fn parse(given: &str) -> anyhow::Result<Id> {
        let id: String =
            given.trim().chars().filter(|c| *c != '-').map(|c| c.to_ascii_lowercase()).collect();
        let hexadecimal = id.chars().all(|c| c.is_ascii_hexdigit());
        match id.len() {
            16 if hexadecimal => Ok(Id::Request(id)),
            32 if hexadecimal => Ok(Id::Trace(id)),
            _ => Err(Failure::new(format!("unknown id '{given}': neither a request id nor a trace id"))
                .hint("a request id has 16 hexadecimal digits, a trace id 32; `underspan requests` lists ids")
                .status(UNKNOWN_ID)
                .into()),
        }
    }
}

/// The request itself, or the slowest of a trace and then the others.
async fn find(store: &Store, id: &Id) -> anyhow::Result<(Request, Vec<Request>)> {
    match id {
        Id::Request(id) => match request_by_id(store, id).await? {
            Some(request) => Ok((request, Vec::new())),
            None => Err(unknown(&format!("unknown request {id}: no such row in the store"))),
        },
        Id::Trace(id) => {
            let mut requests = requests_of_trace(store, id).await?.into_iter();
            if let Some(slowest) = requests.next() {
                return Ok((slowest, requests.collect()));
            }
            let spans = spans_of_trace(store, id).await?.len();
            Err(if spans == 0 {
                unknown(&format!("unknown trace {id}: neither a span nor a request has it"))
            } else {
                let spans = match spans {
                    1 => String::from("1 span has it"),
                    n => format!("{n} spans have it"),
                };
                let message =
                    format!("unknown trace {id}: {spans}, but no request that was watched");
                let hint =
                    "was the service watched then? `underspan doctor` says what is seen here";
                Failure::new(message).hint(hint).status(UNKNOWN_ID).into()
            })
        }
    }
}

fn unknown(message: &str) -> anyhow::Error {
    let hint = "`underspan requests` lists recent ones; a row is written when its request ends, or has \
        gone on for a second, and kept for 7 days by default";
    Failure::new(message).hint(hint).status(UNKNOWN_ID).into()
}
