//! What takes stacks, compiled as user code: the walkers on the memory of real programs, and what is remembered of stacks
//! against what user space knows of them.

mod again;
mod live;
mod recorded;
mod recording;
mod walker;
