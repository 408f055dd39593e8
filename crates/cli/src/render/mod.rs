//! Text for people: tables, bars, explanations. No I/O: everything returns strings.

mod bar;
mod difference;
mod explanation;
mod findings;
mod ink;
mod path;
mod requests;
mod shares;
mod sockets;
mod text;

#[cfg(test)]
mod tests;

pub(crate) use difference::difference;
pub(crate) use explanation::explanation;
pub(crate) use ink::Ink;
pub(crate) use requests::requests;
pub(crate) use text::{clean, instant};

/// How wide output is when nobody looks at it, and at most.
pub(crate) const WIDTH: usize = 100;
