//! Spans on their way from OTLP to the store.

pub(crate) mod counters;
pub(crate) mod intake;
mod losses;
pub(crate) mod queue;
pub(crate) mod row;
pub(crate) mod sink;
mod value;
pub(crate) mod writer;

#[cfg(test)]
mod tests;
