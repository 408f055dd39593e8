//! From a request's records to its row.

use std::mem::offset_of;

use underspan_model::Ledger;

use super::answering::Answering;
use super::assemble::{Asked, Assembler, Finished, Told, phases};
use super::framing::Framing;
use super::path::Paths;
use super::{address, http, open};
use crate::record::{
    DecodeError, ThreadSnapshot, comm, event_header, event_kind, kind, read, read_at,
    request_answer_event, request_head_event, request_read_event, request_sent_event,
    thread_exit_event,
};
use crate::rows::{span_row, write_ledger};
use crate::{Context, Decoder, Measure, Rows, Thread};

/// The fixed part of a `request_read_event`; the first bytes of the request follow.
const HEAD_OFFSET: usize = offset_of!(request_read_event, head);

/// A thread that starts is called what its process is, until Python has named it and that was read. A row
/// waits for the name, which is there within some milliseconds, but not longer than this.
pub(super) const UNNAMED_NS: u64 = 500_000_000;

pub(super) struct RequestDecoder {
    columns: Vec<String>,
    assembler: Assembler,
    answering: Answering,
    paths: Paths,
    /// Requests that are over, and whose thread has no name yet.
    unnamed: Vec<Finished>,
}

impl RequestDecoder {
    pub(super) fn new(columns: Vec<String>) -> Self {
        RequestDecoder {
            columns,
            assembler: Assembler::default(),
            answering: Answering::default(),
            paths: Paths::default(),
            unnamed: Vec::new(),
        }
    }

    /// A request is over: writes its row, or keeps it until its thread has a name.
    fn over(&mut self, finished: Finished, context: &mut dyn Context, rows: &mut Rows) {
        if context.is_soon_named(finished.asked.tid) {
            self.unnamed.push(finished);
        } else {
            self.write(&finished, context, rows);
        }
    }

    /// Writes the rows whose threads have their names by now, or have had time enough.
    fn write_named(&mut self, now: u64, context: &mut dyn Context, rows: &mut Rows) {
        for finished in std::mem::take(&mut self.unnamed) {
            if now.saturating_sub(finished.told.until) >= UNNAMED_NS {
                self.write(&finished, context, rows);
            } else {
                self.over(finished, context, rows);
            }
        }
    }

    fn write(&self, finished: &Finished, context: &mut dyn Context, rows: &mut Rows) {
        let reader =
            self.row("requests", &finished.asked, &finished.told, finished.end, context, rows);
        let (accept_queue, handoff, handler) = finished.phases();
        context.measure(&Measure::Request {
            process: &reader.process,
            status: finished.told.status,
            duration: accept_queue + handoff + handler,
            handoff,
        });
        self.paths.write(finished, context, rows);
    }

    /// Writes a request's row to a table, and returns the thread that read it.
    fn row(
        &self,
        table: &'static str,
        asked: &Asked,
        told: &Told,
        end: &str,
        context: &mut dyn Context,
        rows: &mut Rows,
    ) -> Thread {
        let (accept_queue, handoff, handler) = phases(asked, told);
        let reader = context.thread(asked.pid, asked.tid, &asked.comm);
        let sender = match told.sent_tid {
            0 => Thread::default(),
            tid if tid == asked.tid => reader.clone(),
            tid => context.thread(asked.pid, tid, ""),
        };
        let since_accept =
            if asked.accepted == 0 { 0 } else { asked.read.saturating_sub(asked.accepted) };

        let batch = rows.table(table, &self.columns);
        let duration = accept_queue + handoff + handler;
        let mut row = span_row(batch, context, &reader, asked.ready, duration);
        row.str(&reader.process).str(&format!("{:016x}", asked.id));
        row.str(&asked.head.trace_id).str(&asked.head.parent_span_id);
        row.u64(accept_queue).u64(handoff).u64(handler).u64(since_accept);
        row.u32(asked.number).str(&asked.head.method).str(&asked.head.path).u16(told.status);
        row.str(&asked.peer).str(&asked.local).u64(told.bytes_in).u64(told.bytes_out);
        row.u32(asked.accept_tid).u32(told.sent_tid).str(&sender.name);
        row.u8(told.shared_thread.into()).str(end);
        write_ledger(&mut row, &told.ledger);
        reader
    }
}

impl Decoder for RequestDecoder {
    fn event(
        &mut self,
        bytes: &[u8],
        context: &mut dyn Context,
        rows: &mut Rows,
    ) -> Result<(), DecodeError> {
        match kind(bytes) {
            event_kind::EVENT_REQUEST_READ => {
                let asked = asked(bytes)?;
                self.answering.read(asked.tid, asked.read);
                if !self.assembler.asked(asked) {
                    context.count_lost("request", "too_many_in_flight", 1);
                }
            }
            event_kind::EVENT_REQUEST_HEAD => {
                let (id, at, piece) = more(bytes)?;
                self.assembler.more(id, at, piece);
            }
            event_kind::EVENT_REQUEST_ANSWER => {
                let event: request_answer_event = read(bytes)?;
                let start = event.start.get(..event.len as usize).ok_or(DecodeError::Value {
                    kind: event_kind::EVENT_REQUEST_ANSWER,
                    field: "len",
                    value: event.len.into(),
                })?;
                self.assembler.answers(event.id, start);
            }
            event_kind::EVENT_REQUEST_SENT | event_kind::EVENT_REQUEST_END => {
                let event: request_sent_event = read(bytes)?;
                if let Some(finished) = self.assembler.told(&event) {
                    self.over(finished, context, rows);
                }
            }
            event_kind::EVENT_THREAD_EXIT => {
                let exit: thread_exit_event = read(bytes)?;
                let ledger = Ledger::new(exit.ns);
                self.assembler.thread_ended(exit.h.tid, exit.h.time, exit.until, ledger);
            }
            event_kind::EVENT_PROCESS_EXIT => {
                let header: event_header = read(bytes)?;
                for finished in self.assembler.process_ended(header.tgid, header.time) {
                    self.over(finished, context, rows);
                }
            }
            _ => self.paths.event(bytes)?,
        }
        Ok(())
    }

    fn ledgers(
        &mut self,
        threads: &[ThreadSnapshot],
        now: u64,
        context: &mut dyn Context,
        rows: &mut Rows,
    ) {
        self.paths.watch(threads);
        let mut assembler = std::mem::take(&mut self.assembler);
        open::tell(&mut assembler, threads, now, |asked, told| {
            self.row("requests_open", asked, told, "open", context, rows);
        });
        self.assembler = assembler;
        self.answering.look(&self.assembler, threads, now);
    }

    fn tick(&mut self, now: u64, context: &mut dyn Context, rows: &mut Rows) {
        self.paths.forget(now);
        self.assembler.forget_threads();
        for finished in self.assembler.silent(now, &self.answering) {
            self.over(finished, context, rows);
        }
        self.write_named(now, context, rows);
    }

    fn finish(&mut self, now: u64, context: &mut dyn Context, rows: &mut Rows) {
        let unnamed = std::mem::take(&mut self.unnamed);
        for finished in unnamed.into_iter().chain(self.assembler.all(now)) {
            self.write(&finished, context, rows);
        }
    }
}

/// Reads the record whose length varies: only as much of the head was sent as there was.
pub(super) fn asked(bytes: &[u8]) -> Result<Asked, DecodeError> {
    let kind = event_kind::EVENT_REQUEST_READ;
    let (fixed, head) = bytes.split_at_checked(HEAD_OFFSET).ok_or(DecodeError::Short {
        kind,
        len: bytes.len(),
        wanted: HEAD_OFFSET,
    })?;
    let mut whole = [0; size_of::<request_read_event>()];
    whole[..HEAD_OFFSET].copy_from_slice(fixed);
    let event: request_read_event = read(&whole)?;
    let head = head.get(..event.head_len.into()).ok_or(DecodeError::Value {
        kind,
        field: "head_len",
        value: event.head_len.into(),
    })?;
    Ok(Asked {
        id: event.id,
        pid: event.h.tgid,
        tid: event.h.tid,
        comm: comm(&event.h.comm).into_owned(),
        ready: event.ready,
        accepted: event.accepted,
        accept_tid: event.accept_tid,
        read: event.h.time,
        number: event.number,
        peer: address(event.family, &event.peer, event.peer_port),
        local: address(event.family, &event.local, event.local_port),
        head: http::request_head(head),
        unsure: event.unsure != 0,
        bytes: event.bytes.into(),
        born: event.born,
        at_read: Ledger::new(event.ns),
        open_told: 0,
        framing: Framing::Unknown,
        unfinished: if event.head_open == 0 { Vec::new() } else { head.to_vec() },
    })
}

/// Whose head a piece belongs to, how much of it was told before, and the piece.
fn more(bytes: &[u8]) -> Result<(u64, usize, &[u8]), DecodeError> {
    let id = read_at(bytes, offset_of!(request_head_event, id))?;
    let at: u32 = read_at(bytes, offset_of!(request_head_event, at))?;
    let len: u32 = read_at(bytes, offset_of!(request_head_event, len))?;
    let piece = bytes.get(offset_of!(request_head_event, head)..).unwrap_or_default();
    let piece = piece.get(..len as usize).ok_or(DecodeError::Value {
        kind: event_kind::EVENT_REQUEST_HEAD,
        field: "len",
        value: len.into(),
    })?;
    Ok((id, at as usize, piece))
}
