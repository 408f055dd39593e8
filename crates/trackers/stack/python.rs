//! What the walker of Python frames is told of a process.

use underspan_cpython::{EntryMark, FrameFacts, Instruction};

use crate::record::{python_frames, python_layout};

/// Where a process's Python frames are, as the walker wants it.
#[derive(Clone, Copy, Debug, Default)]
pub struct PythonLayout(pub(crate) python_layout);

impl From<&FrameFacts> for PythonLayout {
    fn from(facts: &FrameFacts) -> Self {
        let (threads, frame, code) = (&facts.threads, &facts.layout, &facts.layout.object);
        let (style, mark) = match frame.entry {
            EntryMark::Every => (python_frames::PYTHON_EVERY_FRAME, None),
            EntryMark::Flag(at) => (python_frames::PYTHON_ENTRY_FLAG, Some(at)),
            EntryMark::Shim(at) => (python_frames::PYTHON_SHIM_FRAMES, Some(at)),
        };
        let (instr, unit, start) = match frame.instruction {
            Instruction::Index { offset, unit } => (offset, unit, 0),
            Instruction::Address { offset, start } => (offset, 0, start),
        };
        let (frame_from, frame_len) = part(&[
            (frame.previous, 8),
            (frame.code, 8),
            (instr, 8),
            (mark.unwrap_or(instr), 1),
            (frame.tags[0], 8),
            (frame.tags[1], 8),
        ]);
        let ob_type = 8;
        let (code_from, code_len) = part(&[
            (ob_type, 8),
            (code.firstlineno, 4),
            (code.filename, 8),
            (code.name, 8),
            (code.linetable, 8),
        ]);
        PythonLayout(python_layout {
            interpreters: threads.interpreters,
            main: threads.main,
            code_type: facts.code_type,
            interp_next: threads.interp_next,
            interp_threads: threads.interp_threads,
            tstate_next: threads.tstate_next,
            tstate_thread_id: threads.tstate_thread_id,
            tstate_frame: frame.tstate_frame,
            code_start: start,
            frames: style as u8,
            has_cframe: u8::from(frame.cframe_frame.is_some()),
            cframe_frame: frame.cframe_frame.unwrap_or(0),
            lasti_unit: unit,
            frame_from,
            frame_len,
            frame_previous: frame.previous - frame_from,
            frame_code: frame.code - frame_from,
            frame_instr: instr - frame_from,
            frame_entry: mark.map_or(0, |at| at - frame_from),
            frame_tags: frame.tags.map(|at| at - frame_from),
            code_from,
            code_len,
            code_ob_type: ob_type - code_from,
            code_firstlineno: code.firstlineno - code_from,
            code_filename: code.filename - code_from,
            code_name: code.name - code_from,
            code_linetable: code.linetable - code_from,
            ..python_layout::default()
        })
    }
}

/// Where the part of a structure begins that holds these fields (offset, size), and its length.
fn part(fields: &[(u8, u8)]) -> (u8, u8) {
    let from = fields.iter().map(|&(at, _)| at).min().unwrap_or(0);
    let end = fields.iter().map(|&(at, size)| at.saturating_add(size)).max().unwrap_or(from);
    (from, end - from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_reaches_from_the_first_field_to_the_end_of_the_last() {
        assert_eq!(part(&[(24, 8), (32, 8), (104, 4)]), (24, 84));
        assert_eq!(part(&[(0, 8)]), (0, 8));
        assert_eq!(part(&[(248, 8), (8, 8)]), (8, 247));
        assert_eq!(part(&[]), (0, 0));
    }
}
