//! What must be found, and what must not.

#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod interpreter;
mod locks;
mod loops;
mod queues;
mod relays;
mod told;
mod words;

use common::*;
use underspan_explain::{Evidence, Finding, explain};
use underspan_model::{Request, State};

fn findings(evidence: &Evidence) -> Vec<Finding> {
    explain(evidence).unwrap().findings
}

/// The only finding, so that nothing else is accused beside it.
fn only(evidence: &Evidence) -> Finding {
    let mut findings = findings(evidence);
    assert_eq!(findings.len(), 1, "{findings:#?}");
    findings.remove(0)
}

fn handler(cells: &[(State, u64)]) -> Request {
    let handler = 20 + cells.iter().map(|(_, ms)| ms).sum::<u64>();
    request(
        "/x",
        &Shape { id: 1, worker: 0, at_ms: 0, accept_queue: 0, handoff: 0, handler, cells },
    )
}

fn of(request: Request) -> Evidence {
    Evidence { request: Some(request), ..Evidence::default() }
}
