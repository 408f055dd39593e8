//! How much time did connections lose, and to what?

mod decode;

use crate::rows::columns;
use crate::{Attach, Decoder, Hook, Program, Tracker};

/// Stalls of the connections of watched processes, and connections that were reset.
pub struct TcpLossTracker;

const fn hook(what: &'static str, programs: &'static [Program], required: bool) -> Hook {
    Hook { what, programs, required }
}

const HOOKS: &[Hook] = &[
    hook(
        "recovery begins and ends",
        &[Program {
            name: "tcp_loss_recovery",
            attach: Attach::BtfTracepoint("tcp_cong_state_set"),
        }],
        true,
    ),
    hook(
        "segments sent again",
        &[Program {
            name: "tcp_loss_retransmit",
            attach: Attach::BtfTracepoint("tcp_retransmit_skb"),
        }],
        true,
    ),
    hook(
        "segments received",
        &[Program { name: "tcp_loss_segment", attach: Attach::BtfTracepoint("tcp_probe") }],
        true,
    ),
    hook(
        "bytes read",
        &[Program { name: "tcp_loss_read", attach: Attach::BtfTracepoint("tcp_rcv_space_adjust") }],
        false,
    ),
    hook(
        "connections closed",
        &[Program { name: "tcp_loss_state", attach: Attach::BtfTracepoint("inet_sock_set_state") }],
        true,
    ),
    hook(
        "sockets that end",
        &[Program { name: "tcp_loss_gone", attach: Attach::BtfTracepoint("tcp_destroy_sock") }],
        false,
    ),
    hook(
        "resets received",
        &[Program {
            name: "tcp_loss_reset_received",
            attach: Attach::BtfTracepoint("tcp_receive_reset"),
        }],
        false,
    ),
    hook(
        "resets sent",
        &[Program { name: "tcp_loss_reset_sent", attach: Attach::BtfTracepoint("tcp_send_reset") }],
        false,
    ),
    hook(
        "packets dropped",
        // Since Linux 6.11 it says which socket they were for.
        &[Program { name: "tcp_loss_drop", attach: Attach::BtfTracepointWith("kfree_skb", 4) }],
        false,
    ),
];

fn loss_columns() -> Vec<String> {
    columns(&["process", "local", "peer", "kind", "reason", "retransmits", "backoff", "bytes"])
}

impl Tracker for TcpLossTracker {
    fn name(&self) -> &'static str {
        "tcp_loss"
    }

    fn question(&self) -> &'static str {
        "How much time did connections lose, and to what?"
    }

    fn hooks(&self) -> &'static [Hook] {
        HOOKS
    }

    fn sql(&self) -> &'static str {
        include_str!("table.sql")
    }

    fn tables(&self) -> Vec<(&'static str, Vec<String>)> {
        vec![("tcp_loss", loss_columns())]
    }

    fn readme(&self) -> &'static str {
        include_str!("README.md")
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(decode::TcpLossDecoder::new(loss_columns()))
    }
}

#[cfg(test)]
mod tests;
