//! The walker of Python frames, called as a function.

use std::ffi::{c_int, c_long, c_void};

use underspan_model::StackEnd;

use super::recording::Memory;
use crate::record::{PYTHON_FRAMES, python_frame, python_layout};
use crate::stack::PythonFrame;

type UserRead = extern "C" fn(*mut c_void, *mut u8, u32, u64) -> c_long;

unsafe extern "C" {
    fn underspan_test_walk_python(
        read: UserRead,
        recording: *mut c_void,
        layout: *const python_layout,
        pthread: u64,
        tstate: *mut u64,
        forget: c_int,
        frames: *mut python_frame,
        count: *mut u32,
    ) -> c_int;
}

/// What a walk found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Walk {
    pub(super) end: StackEnd,
    /// Where the thread's state is, or 0.
    pub(super) tstate: u64,
    pub(super) frames: Vec<PythonFrame>,
}

extern "C" fn read<M: Memory>(memory: *mut c_void, to: *mut u8, len: u32, from: u64) -> c_long {
    // SAFETY: `walk` hands a `&mut M` to the walker, which hands it on; the walker's buffers are
    // as long as what it asks for.
    let (memory, to) =
        unsafe { (&mut *memory.cast::<M>(), std::slice::from_raw_parts_mut(to, len as usize)) };
    if memory.read(from, to) { 0 } else { -14 }
}

/// The frames of the thread with this pthread id. `tstate` is where its state was the last time, or 0.
pub(super) fn walk<M: Memory>(
    memory: &mut M,
    layout: &python_layout,
    pthread: u64,
    mut tstate: u64,
) -> Walk {
    let mut frames = vec![python_frame::default(); PYTHON_FRAMES as usize];
    let mut count = 0;
    // A thread whose state is known was walked before; then its code objects are known too.
    let forget = c_int::from(tstate == 0);
    // SAFETY: `memory` outlives the call and is what `read` expects; there is room for all frames.
    let end = unsafe {
        underspan_test_walk_python(
            read::<M>,
            std::ptr::from_mut(memory).cast(),
            layout,
            pthread,
            &mut tstate,
            forget,
            frames.as_mut_ptr(),
            &mut count,
        )
    };
    let frames = frames.iter().take(count as usize).map(|frame| PythonFrame {
        code: frame.code,
        check: frame.check,
        lasti: frame.lasti(),
        entry: frame.entry() != 0,
    });
    Walk { end: StackEnd::ALL[end as usize], tstate, frames: frames.collect() }
}
