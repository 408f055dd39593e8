//! From the record of an attempt to its row.

use std::collections::HashMap;

use crate::record::{DecodeError, comm, event_header, event_kind, kind, read, tcp_connect_event};
use crate::rows::span_row;
use crate::tcp_accept::ends;
use crate::{Context, Decoder, Measure, Rows, Timing};

/// Peers remembered; beyond it, those that were connected longest ago are forgotten.
const PEERS: usize = 16_384;

pub(super) struct TcpConnectDecoder {
    columns: Vec<String>,
    /// When a process last began to connect to a peer.
    peers: HashMap<(u32, String), u64>,
}

impl TcpConnectDecoder {
    pub(super) fn new(columns: Vec<String>) -> Self {
        TcpConnectDecoder { columns, peers: HashMap::new() }
    }

    /// Nanoseconds since the process last began to connect to this peer, 0 if it is the first time.
    /// Attempts are told when they end, perhaps not in the order in which they began.
    pub(super) fn reconnect(&mut self, pid: u32, peer: &str, start: u64) -> u64 {
        if self.peers.len() >= PEERS {
            self.forget_half();
        }
        let last = self.peers.entry((pid, peer.to_owned())).or_insert(start);
        let since = start.saturating_sub(*last);
        *last = start.max(*last);
        since
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.peers.len()
    }

    fn forget_half(&mut self) {
        let mut times: Vec<_> = self.peers.values().copied().collect();
        let middle = times.len() / 2;
        let (_, median, _) = times.select_nth_unstable(middle);
        let median = *median;
        self.peers.retain(|_, last| *last > median);
    }

    fn write(&mut self, event: &tcp_connect_event, context: &mut dyn Context, rows: &mut Rows) {
        let thread = context.thread(event.h.tgid, event.h.tid, &comm(&event.h.comm));
        let (local, peer) = ends(&event.ends);
        let reconnect = self.reconnect(event.h.tgid, &peer, event.h.time);
        let batch = rows.table("tcp_connect", &self.columns);
        let mut row = span_row(batch, context, &thread, event.h.time, event.duration);
        row.str(&thread.process).str(&local).str(&peer).str(outcome(event));
        row.u64(reconnect).u32(event.retransmits);
        context.measure(&Measure::Lasted {
            what: Timing::Connect,
            process: &thread.process,
            duration: event.duration,
        });
    }
}

/// What became of an attempt.
fn outcome(event: &tcp_connect_event) -> &'static str {
    match event.error {
        _ if event.connected != 0 => "connected",
        libc::ECONNREFUSED => "refused",
        libc::ETIMEDOUT => "timed_out",
        libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN | libc::ENETDOWN => "unreachable",
        _ if event.sent == 0 => "not_sent",
        // Nobody answered yet, and nothing was wrong: the program gave up.
        0 => "interrupted",
        libc::ECONNRESET | libc::EPIPE => "reset",
        _ => "failed",
    }
}

impl Decoder for TcpConnectDecoder {
    fn event(
        &mut self,
        bytes: &[u8],
        context: &mut dyn Context,
        rows: &mut Rows,
    ) -> Result<(), DecodeError> {
        match kind(bytes) {
            event_kind::EVENT_TCP_CONNECT => self.write(&read(bytes)?, context, rows),
            event_kind::EVENT_PROCESS_EXIT => {
                let header: event_header = read(bytes)?;
                self.peers.retain(|(pid, _), _| *pid != header.tgid);
            }
            _ => {}
        }
        Ok(())
    }

    fn tick(&mut self, _now: u64, _context: &mut dyn Context, _rows: &mut Rows) {}

    fn finish(&mut self, _now: u64, _context: &mut dyn Context, _rows: &mut Rows) {}
}
