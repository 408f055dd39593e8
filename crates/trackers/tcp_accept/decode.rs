//! From records of connections and listening sockets to rows.

use std::collections::HashMap;

use super::ends;
use super::netstat::{Netstat, Overflows};
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
    overflows: Overflows,
    cookies: Option<u64>,
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
        netstat: Option<Netstat>,
        context: &mut dyn Context,
        rows: &mut Rows,
    ) {
        let now = event.h.time;
        let counted = netstat.map(|netstat| netstat.listen_overflows);
        let sent = netstat.map(|netstat| netstat.syn_cookies_sent);
        let known = self.listeners.entry((event.sock, event.h.tgid)).or_insert_with(|| Known {
            read: now,
            told: 0,
            drops: event.drops,
            overflows: Overflows::new(counted),
            cookies: sent,
        });
        let start = std::mem::replace(&mut known.read, now);
        // Counters are the kernel's; they wrap, and begin anew if the socket's memory is another's.
        let drops = event.drops.wrapping_sub(std::mem::replace(&mut known.drops, event.drops));
        let drops = if drops > u32::MAX / 2 { 0 } else { drops };
        // It holds one more than its limit. Where there was room, nothing overflowed: it was another's.
        let full = event.queue_length > event.queue_limit;
        let overflows = known.overflows.since(counted, if full { drops } else { 0 });
        let cookies = sent.zip(known.cookies).map_or(0, |(now, then)| now.saturating_sub(then));
        let cookies = u32::try_from(cookies).unwrap_or(0);
        known.cookies = sent.or(known.cookies);
        let silent = event.queue_length == 0 && drops == 0 && cookies == 0;
        if silent && known.told != 0 && now.saturating_sub(known.told) < TOLD_ANYWAY {
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
