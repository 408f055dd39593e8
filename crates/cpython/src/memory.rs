//! Another process's memory, and what its errors mean here.

use std::io;

pub(crate) use underspan_remote::{Memory, ReadError, after, word};

use crate::InspectError;

impl From<ReadError> for InspectError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Gone => InspectError::Gone,
            ReadError::Fault(address) => InspectError::SelfCheck {
                what: "pointers",
                expected: "mapped memory".into(),
                found: format!("nothing at {address:#x}"),
            },
            ReadError::Other(errno) => InspectError::io("process memory", io::Error::from(errno)),
        }
    }
}
