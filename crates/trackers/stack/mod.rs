//! Stacks as BPF records them: addresses without names. Trackers that take stacks share this.
//!
//! ```text
//!  walker (BPF) ─▶ struct stack_event ─▶ RawStack ─▶ Context::stack() ─▶ stack_id, at once
//!                                                          └▶ names, later and elsewhere ─▶ table `stacks`
//! ```

mod python;
#[cfg(test)]
mod tests;
mod told;

use underspan_model::StackEnd;
use underspan_store::Component;

use crate::record::{DecodeError, python_frame, read_at, stack_event};

pub use python::PythonLayout;
pub(crate) use told::Told;

/// A Python frame, not yet looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PythonFrame {
    /// Address of its code object.
    pub code: u64,
    /// Fields of the code object folded into a number: another object at the same address differs.
    pub check: u32,
    /// Byte offset of the instruction in the bytecode.
    pub lasti: u32,
    /// The native evaluator was entered for this frame.
    pub entry: bool,
}

/// A stack of one process, not yet looked up. Each part is innermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RawStack {
    /// The process.
    pub pid: u32,
    /// Kernel addresses.
    pub kernel: Vec<u64>,
    /// The process's code addresses. All but the first are return addresses.
    pub native: Vec<u64>,
    /// Python frames.
    pub python: Vec<PythonFrame>,
    /// Why the walk ended, of each part.
    pub ends: Ends,
}

/// Why the walks of a stack's parts ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ends {
    /// Of the kernel's frames.
    pub kernel: StackEnd,
    /// Of the native frames.
    pub native: StackEnd,
    /// Of the Python frames.
    pub python: StackEnd,
}

/// The table `stacks`, which several trackers refer to.
pub fn component() -> Component {
    Component { name: "stack", sql: include_str!("table.sql") }
}

/// Columns of `stacks`, in the order in which rows are written.
pub const COLUMNS: [&str; 9] = [
    "host",
    "stack_id",
    "start_time",
    "kinds",
    "functions",
    "files",
    "lines",
    "modules",
    "truncated",
];

/// Reads a record's frames.
pub(crate) fn raw_stack(event: &stack_event, bytes: &[u8]) -> Result<RawStack, DecodeError> {
    let mut at = size_of::<stack_event>();
    let kernel = addresses(bytes, &mut at, event.kernel_frames)?;
    let native = addresses(bytes, &mut at, event.native_frames)?;
    let mut python = Vec::with_capacity(usize::from(event.python_frames));
    for _ in 0..event.python_frames {
        let frame: python_frame = read_at(bytes, at)?;
        at += size_of::<python_frame>();
        python.push(PythonFrame {
            code: frame.code,
            check: frame.check,
            lasti: frame.lasti(),
            entry: frame.entry() != 0,
        });
    }
    let end = |value: u8| {
        StackEnd::ALL.get(usize::from(value)).copied().ok_or(DecodeError::Value {
            kind: event.h.kind,
            field: "stack_end",
            value: u64::from(value),
        })
    };
    Ok(RawStack {
        pid: event.h.tgid,
        kernel,
        native,
        python,
        ends: Ends {
            kernel: end(event.kernel_end)?,
            native: end(event.native_end)?,
            python: end(event.python_end)?,
        },
    })
}

fn addresses(bytes: &[u8], at: &mut usize, count: u16) -> Result<Vec<u64>, DecodeError> {
    let mut addresses = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        addresses.push(read_at(bytes, *at)?);
        *at += size_of::<u64>();
    }
    Ok(addresses)
}
