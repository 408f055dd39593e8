//! How a command fails: one line that says what and why, one that says what to do, and a status.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use crate::output;

/// Something went wrong and could not be put right. Usage errors (2) are clap's.
pub(crate) const FAILED: u8 = 1;
/// There is no request or trace with that id.
pub(crate) const UNKNOWN_ID: u8 = 3;
/// Options that do not go together.
pub(crate) const USAGE: u8 = 2;

/// An error with a hint and an exit status. A command returns it like any other error.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    status: u8,
}

impl Failure {
    /// An error whose message reads `what: why`.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Failure { message: message.into(), hint: None, status: FAILED }
    }

    /// What the user can do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The exit status, where it is not 1.
    pub(crate) fn status(mut self, status: u8) -> Self {
        self.status = status;
        self
    }

    /// Prints any error as `underspan: what: why` and its hint, and returns the exit status.
    pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
        let mut said = format!("underspan: {}\n", indented(&told(error)));
        let failure = error.chain().find_map(|cause| cause.downcast_ref::<Failure>());
        if let Some(hint) = failure.and_then(|failure| failure.hint.as_deref()) {
            said += &format!("hint: {hint}\n");
        }
        output::tell(&said);
        ExitCode::from(failure.map_or(FAILED, |failure| failure.status))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Failure {}

/// An error and what led to it, each once: some say their cause themselves.
fn told(error: &anyhow::Error) -> String {
    let mut told = String::new();
    for cause in error.chain() {
        let words = cause.to_string();
        if !told.contains(&words) {
            told += if told.is_empty() { "" } else { ": " };
            told += &words;
        }
    }
    told
}

/// What a server said may have many lines: those after the first are set in.
fn indented(message: &str) -> String {
    message.trim_end().replace('\n', "\n  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let denied = || anyhow::anyhow!("permission denied");
        assert_eq!(told(&denied().context("cannot read x")), "cannot read x: permission denied");
        let said = denied().context("cannot read x: permission denied; run as its owner");
        assert_eq!(told(&said), "cannot read x: permission denied; run as its owner");
    }

    #[test]
    fn a_servers_lines_are_set_in() {
        assert_eq!(indented("store: refused\nat line 2\n"), "store: refused\n  at line 2");
    }
}
