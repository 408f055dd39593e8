//! From the record of a stall to its row.

use crate::record::{
    DecodeError, comm, event_kind, kind, read, tcp_loss_event, tcp_loss_kind, tcp_loss_reason,
};
use crate::rows::span_row;
use crate::tcp_accept::ends;
use crate::{Context, Decoder, Measure, Rows, Timing};

pub(super) struct TcpLossDecoder {
    columns: Vec<String>,
}

impl TcpLossDecoder {
    pub(super) fn new(columns: Vec<String>) -> Self {
        TcpLossDecoder { columns }
    }

    fn write(
        &self,
        event: &tcp_loss_event,
        context: &mut dyn Context,
        rows: &mut Rows,
    ) -> Result<(), DecodeError> {
        let wrong = |field, value: u8| DecodeError::Value {
            kind: event.h.kind,
            field,
            value: value.into(),
        };
        let kind = kind_name(event.kind).ok_or_else(|| wrong("kind", event.kind))?;
        let reason = reason_name(event.reason).ok_or_else(|| wrong("reason", event.reason))?;
        let thread = context.thread(event.h.tgid, event.h.tid, &comm(&event.h.comm));
        let (local, peer) = ends(&event.ends);
        let batch = rows.table("tcp_loss", &self.columns);
        let mut row = span_row(batch, context, &thread, event.h.time, event.duration);
        row.str(&thread.process).str(&local).str(&peer).str(kind).str(reason);
        row.u32(event.retransmits).u8(event.backoff).u64(event.bytes);
        context.measure(&Measure::Lasted {
            what: Timing::Loss(kind),
            process: &thread.process,
            duration: event.duration,
        });
        Ok(())
    }
}

fn kind_name(kind: u8) -> Option<&'static str> {
    Some(match u32::from(kind) {
        tcp_loss_kind::TCP_FAST_RETRANSMIT => "fast_retransmit",
        tcp_loss_kind::TCP_TAIL_LOSS_PROBE => "tail_loss_probe",
        tcp_loss_kind::TCP_RTO => "rto",
        tcp_loss_kind::TCP_SYN_RETRY => "syn_retry",
        tcp_loss_kind::TCP_ZERO_WINDOW_LOCAL => "zero_window_local",
        tcp_loss_kind::TCP_ZERO_WINDOW_PEER => "zero_window_peer",
        tcp_loss_kind::TCP_RESET_SENT => "reset_sent",
        tcp_loss_kind::TCP_RESET_RECEIVED => "reset_received",
        tcp_loss_kind::TCP_DROP => "drop",
        _ => return None,
    })
}

fn reason_name(reason: u8) -> Option<&'static str> {
    Some(match u32::from(reason) {
        tcp_loss_reason::TCP_REASON_NONE => "",
        tcp_loss_reason::TCP_REASON_OTHER => "other",
        tcp_loss_reason::TCP_REASON_ABORT_ON_CLOSE => "closed_with_unread_data",
        tcp_loss_reason::TCP_REASON_ABORTED => "aborted",
        tcp_loss_reason::TCP_REASON_ABORT_ON_DATA => "data_after_close",
        tcp_loss_reason::TCP_REASON_ABORT_ON_MEMORY => "out_of_memory",
        tcp_loss_reason::TCP_REASON_KEEPALIVE_TIMEOUT => "keepalive_timeout",
        tcp_loss_reason::TCP_REASON_RECEIVE_BUFFER => "receive_buffer",
        tcp_loss_reason::TCP_REASON_MEMORY => "memory",
        tcp_loss_reason::TCP_REASON_BACKLOG => "backlog",
        tcp_loss_reason::TCP_REASON_OUT_OF_ORDER_QUEUE => "out_of_order_queue",
        _ => return None,
    })
}

impl Decoder for TcpLossDecoder {
    fn event(
        &mut self,
        bytes: &[u8],
        context: &mut dyn Context,
        rows: &mut Rows,
    ) -> Result<(), DecodeError> {
        match kind(bytes) {
            event_kind::EVENT_TCP_LOSS => self.write(&read(bytes)?, context, rows),
            _ => Ok(()),
        }
    }

    fn tick(&mut self, _now: u64, _context: &mut dyn Context, _rows: &mut Rows) {}

    fn finish(&mut self, _now: u64, _context: &mut dyn Context, _rows: &mut Rows) {}
}
