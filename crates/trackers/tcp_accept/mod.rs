//! How long did connections wait to be accepted, and what overflowed?

mod decode;
mod netstat;

use crate::record::tcp_ends;
use crate::request::{ACCEPT, ACCEPT4, address};
use crate::rows::columns;
use crate::{Attach, Decoder, Hook, Program, Tracker};

/// Connections between their handshake and `accept()`, and the sockets that listen for them.
pub struct TcpAcceptTracker;

const HOOKS: &[Hook] = &[
    Hook {
        what: "connections made",
        programs: &[Program {
            name: "tcp_accept_state",
            attach: Attach::BtfTracepoint("inet_sock_set_state"),
        }],
        required: true,
    },
    // The request tracker's: it hears of them anyway.
    ACCEPT4,
    ACCEPT,
    Hook {
        what: "sockets that are open already",
        programs: &[Program { name: "tcp_adopt", attach: Attach::Iterator("task_file") }],
        required: true,
    },
    Hook {
        what: "listening sockets",
        programs: &[Program {
            name: "tcp_accept_listeners",
            attach: Attach::Iterator("bpf_map_elem"),
        }],
        required: true,
    },
];

fn accept_columns() -> Vec<String> {
    columns(&[
        "process",
        "local",
        "peer",
        "handshake_ns",
        "queue_ns",
        "queue_length",
        "queue_limit",
        "synack_retransmits",
    ])
}

fn listener_columns() -> Vec<String> {
    columns(&[
        "process",
        "local",
        "queue_length",
        "queue_limit",
        "overflows",
        "drops",
        "syn_cookies",
    ])
}

/// The two ends of a connection, as rows write them: local, peer.
pub(crate) fn ends(ends: &tcp_ends) -> (String, String) {
    let local = address(ends.family, &ends.local, ends.local_port);
    (local, address(ends.family, &ends.peer, ends.peer_port))
}

impl Tracker for TcpAcceptTracker {
    fn name(&self) -> &'static str {
        "tcp_accept"
    }

    fn question(&self) -> &'static str {
        "How long did connections wait to be accepted, and what overflowed?"
    }

    fn hooks(&self) -> &'static [Hook] {
        HOOKS
    }

    fn sql(&self) -> &'static str {
        include_str!("table.sql")
    }

    fn tables(&self) -> Vec<(&'static str, Vec<String>)> {
        vec![("tcp_accept", accept_columns()), ("tcp_listener", listener_columns())]
    }

    fn readme(&self) -> &'static str {
        include_str!("README.md")
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(decode::TcpAcceptDecoder::new(accept_columns(), listener_columns()))
    }
}

#[cfg(test)]
mod tests;
