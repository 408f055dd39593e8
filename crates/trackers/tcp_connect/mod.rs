//! What did opening connections cost, and how often?

mod decode;

use crate::rows::columns;
use crate::{Attach, Decoder, Hook, Program, Tracker};

/// Connections that watched processes open, whatever became of them.
pub struct TcpConnectTracker;

const HOOKS: &[Hook] = &[Hook {
    what: "connections begun, made and refused",
    programs: &[Program {
        name: "tcp_connect_state",
        attach: Attach::BtfTracepoint("inet_sock_set_state"),
    }],
    required: true,
}];

fn connect_columns() -> Vec<String> {
    columns(&["process", "local", "peer", "outcome", "reconnect_ns", "syn_retransmits"])
}

impl Tracker for TcpConnectTracker {
    fn name(&self) -> &'static str {
        "tcp_connect"
    }

    fn question(&self) -> &'static str {
        "What did opening connections cost, and how often, per peer?"
    }

    fn hooks(&self) -> &'static [Hook] {
        HOOKS
    }

    fn sql(&self) -> &'static str {
        include_str!("table.sql")
    }

    fn tables(&self) -> Vec<(&'static str, Vec<String>)> {
        vec![("tcp_connect", connect_columns())]
    }

    fn readme(&self) -> &'static str {
        include_str!("README.md")
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(decode::TcpConnectDecoder::new(connect_columns()))
    }
}

#[cfg(test)]
mod tests;
