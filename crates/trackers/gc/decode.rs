//! From a collection's record to its row.

use super::Rung;
use crate::record::{DecodeError, comm, event_kind, gc_event, kind, read};
use crate::rows::span_row;
use crate::{Context, Decoder, Measure, Rows, Timing};

pub(super) struct GcDecoder {
    columns: Vec<String>,
}

impl GcDecoder {
    pub(super) fn new(columns: Vec<String>) -> Self {
        GcDecoder { columns }
    }
}

impl Decoder for GcDecoder {
    fn event(
        &mut self,
        bytes: &[u8],
        context: &mut dyn Context,
        rows: &mut Rows,
    ) -> Result<(), DecodeError> {
        if kind(bytes) != event_kind::EVENT_GC {
            return Ok(());
        }
        let gc: gc_event = read(bytes)?;
        let rung = Rung::from_raw(gc.rung).ok_or(DecodeError::Value {
            kind: event_kind::EVENT_GC,
            field: "rung",
            value: gc.rung.into(),
        })?;
        let thread = context.thread(gc.h.tgid, gc.h.tid, &comm(&gc.h.comm));
        let batch = rows.table("gc_pause", &self.columns);
        let mut row = span_row(batch, context, &thread, gc.h.time, gc.duration);
        row.i8(i8::try_from(gc.generation).unwrap_or(-1));
        row.i64(gc.collected).u64(gc.cpu).str(rung.name());
        context.measure(&Measure::Lasted {
            what: Timing::GcPause,
            process: &thread.process,
            duration: gc.duration,
        });
        Ok(())
    }

    fn tick(&mut self, _now: u64, _context: &mut dyn Context, _rows: &mut Rows) {}

    fn finish(&mut self, _now: u64, _context: &mut dyn Context, _rows: &mut Rows) {}
}
