//! From a sample's record to its row.

use underspan_model::State;

use crate::record::{DecodeError, comm, event_kind, kind, read, stack_event};
use crate::rows::span_row;
use crate::stack::raw_stack;
use crate::{Context, Decoder, Rows};

/// As BPF writes a counter that cannot be read.
const UNKNOWN: u64 = u64::MAX;

pub(super) struct OnCpuDecoder {
    columns: Vec<String>,
}

impl OnCpuDecoder {
    pub(super) fn new(columns: Vec<String>) -> Self {
        OnCpuDecoder { columns }
    }
}

impl Decoder for OnCpuDecoder {
    fn event(
        &mut self,
        bytes: &[u8],
        context: &mut dyn Context,
        rows: &mut Rows,
    ) -> Result<(), DecodeError> {
        if kind(bytes) != event_kind::EVENT_ON_CPU {
            return Ok(());
        }
        let sample: stack_event = read(bytes)?;
        let state = State::from_index(sample.state).filter(|state| !state.is_blocked()).ok_or(
            DecodeError::Value {
                kind: event_kind::EVENT_ON_CPU,
                field: "state",
                value: sample.state.into(),
            },
        )?;
        let stack = context.stack(raw_stack(&sample, bytes)?);
        let thread = context.thread(sample.h.tgid, sample.h.tid, &comm(&sample.h.comm));
        let known = |count: u64| (count != UNKNOWN).then_some(count);

        let batch = rows.table("on_cpu", &self.columns);
        let mut row = span_row(batch, context, &thread, sample.h.time, sample.weight);
        row.str(state.name()).u64(stack);
        for count in [sample.cycles, sample.instructions, sample.cache_misses, sample.branch_misses]
        {
            row.nullable_u64(known(count));
        }
        Ok(())
    }

    fn tick(&mut self, _now: u64, _context: &mut dyn Context, _rows: &mut Rows) {}

    fn finish(&mut self, _now: u64, _context: &mut dyn Context, _rows: &mut Rows) {}
}
