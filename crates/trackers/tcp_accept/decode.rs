//! From records of connections and listening sockets to rows.

use std::collections::HashMap;

use super::ends;
use super::netstat::Netstat;
use crate::record::{
    DecodeError, comm, event_header, event_kind, kind, read, tcp_accept_event, tcp_listener_event,
};
use crate::rows::span_row;
use crate::{Context, Decoder, Measure, Rows, Timing};

/// A socket of which nothing is to be said is told this often, so that it is known to be there.
const TOLD_ANYWAY: u64 = 60_000_000_000;

/// What was last read of a listening socket.
struct Known {
    read: u64,
    /// 0: never.
    told: u64,
    drops: u32,
    netstat: Netstat,
}

pub(super) struct TcpAcceptDecoder {
    accept_columns: Vec<String>,
    listener_columns: Vec<String>,
    listeners: HashMap<(u64, u32), Known>,
}

impl TcpAcceptDecoder {
    pub(super) fn new(accept_columns: Vec<String>, listener_columns: Vec<String>) -> Self {
        TcpAcceptDecoder { accept_columns, listener_columns, listeners: HashMap::new() }
    }

    fn accepted(&self, event: &tcp_accept_event, context: &mut dyn Context, rows: &mut Rows) {
        let thread = context.thread(event.h.tgid, event.h.tid, &comm(&event.h.comm));
        let (local, peer) = ends(&event.ends);
        let batch = rows.table("tcp_accept", &self.accept_columns);
        let mut row = span_row(batch, context, &thread, event.h.time, event.duration);
        row.str(&thread.process).str(&local).str(&peer);
        row.u64(event.handshake).u64(event.duration);
        row.u32(event.queue_length).u32(event.queue_limit).u32(event.synacks);
        context.measure(&Measure::Lasted {
            what: Timing::AcceptQueue,
            process: &thread.process,
            duration: event.duration,
        });
    }

    fn listener(
        &mut self,
        event: &tcp_listener_event,
        netstat: Netstat,
        context: &mut dyn Context,
        rows: &mut Rows,
    ) {
        let now = event.h.time;
        let first = Known { read: now, told: 0, drops: event.drops, netstat };
        let known = self.listeners.entry((event.sock, event.h.tgid)).or_insert(first);
        let start = known.read;
        // Counters are the kernel's; they wrap, and begin anew if the socket's memory is another's.
        let drops = event.drops.wrapping_sub(known.drops);
        let drops = if drops > u32::MAX / 2 { 0 } else { drops };
        let sum = |now: u64, before: u64| u32::try_from(now.saturating_sub(before)).unwrap_or(0);
        // The namespace counts all its sockets together: no more than this one dropped is its.
        let overflows = sum(netstat.listen_overflows, known.netstat.listen_overflows).min(drops);
        let cookies = sum(netstat.syn_cookies_sent, known.netstat.syn_cookies_sent);
        let silent = event.queue_length == 0 && drops == 0 && cookies == 0;
        let told = known.told;
        *known = Known { read: now, told, drops: event.drops, netstat };
        if silent && told != 0 && now.saturating_sub(told) < TOLD_ANYWAY {
            return;
        }
        known.told = now;

        let thread = context.thread(event.h.tgid, event.h.tid, &comm(&event.h.comm));
        let batch = rows.table("tcp_listener", &self.listener_columns);
        let mut row = span_row(batch, context, &thread, start, now.saturating_sub(start));
        row.str(&thread.process).str(&ends(&event.ends).0);
        row.u32(event.queue_length).u32(event.queue_limit);
        row.u32(overflows).u32(drops).u32(cookies);
    }
}

impl Decoder for TcpAcceptDecoder {
    fn event(
        &mut self,
        bytes: &[u8],
        context: &mut dyn Context,
        rows: &mut Rows,
    ) -> Result<(), DecodeError> {
        match kind(bytes) {
            event_kind::EVENT_TCP_ACCEPT => self.accepted(&read(bytes)?, context, rows),
            event_kind::EVENT_TCP_LISTENER => {
                let event: tcp_listener_event = read(bytes)?;
                let netstat = Netstat::of(event.h.tid).or_else(|| Netstat::of(event.h.tgid));
                let netstat = netstat.unwrap_or_default();
                self.listener(&event, netstat, context, rows);
            }
            event_kind::EVENT_PROCESS_EXIT => {
                let header: event_header = read(bytes)?;
                self.listeners.retain(|(_, pid), _| *pid != header.tgid);
            }
            _ => {}
        }
        Ok(())
    }

    fn tick(&mut self, now: u64, _context: &mut dyn Context, _rows: &mut Rows) {
        // Sockets that are closed are read no more.
        self.listeners.retain(|_, known| known.read.saturating_add(TOLD_ANYWAY) > now);
    }

    fn finish(&mut self, _now: u64, _context: &mut dyn Context, _rows: &mut Rows) {}
}
