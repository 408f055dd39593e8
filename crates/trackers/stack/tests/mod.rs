//! The walkers, compiled as user code, on the memory of real programs.

mod live;
mod recorded;
mod recording;
mod walker;
