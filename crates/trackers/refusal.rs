//! What libbpf says: passed on to the log; and which program the kernel refused and why, kept for
//! whoever loads.

use std::sync::{Mutex, PoisonError};

use libbpf_rs::PrintLevel;

static LAST: Mutex<Option<Refusal>> = Mutex::new(None);

/// A program that could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Its name.
    pub(crate) program: String,
    /// The verifier's last word, or an error's name.
    pub(crate) why: String,
}

/// Takes libbpf's messages.
pub(crate) fn print(level: PrintLevel, message: String) {
    let message = message.trim_end();
    if let Some(refusal) = refusal(message) {
        *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
    }
    match level {
        PrintLevel::Warn => tracing::debug!(target: "libbpf", "{message}"),
        _ => tracing::trace!(target: "libbpf", "{message}"),
    }
}

/// The refusal that was told last. `None` if there was none since the last call.
pub(crate) fn take() -> Option<Refusal> {
    LAST.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// An error is told first; then comes the verifier's log, if it was the verifier.
fn refusal(message: &str) -> Option<Refusal> {
    let (_, rest) = message.split_once("prog '")?;
    let (program, rest) = rest.split_once("': ")?;
    let why = match rest.strip_prefix("-- BEGIN PROG LOAD LOG --") {
        Some(log) => {
            let said = |line: &&str| {
                !line.is_empty() && !line.starts_with("processed ") && !line.starts_with("-- END ")
            };
            log.lines().map(str::trim).rfind(said)?
        }
        None => rest.strip_prefix("BPF program load failed: ")?,
    };
    Some(Refusal { program: program.to_owned(), why: why.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::{Refusal, refusal};

    fn found(message: &str) -> Option<(String, String)> {
        refusal(message).map(|Refusal { program, why }| (program, why))
    }

    #[test]
    fn the_verifiers_last_word_is_found() {
        let message = "libbpf: prog 'ledger_switch': -- BEGIN PROG LOAD LOG --\n\
                       30: (4f) r1 |= r6\n\
                       R1 pointer |= pointer prohibited\n\
                       processed 29 insns (limit 1000000) max_states_per_insn 0\n\
                       -- END PROG LOAD LOG --";
        let said = ("ledger_switch".to_owned(), "R1 pointer |= pointer prohibited".to_owned());
        assert_eq!(found(message), Some(said));
    }

    #[test]
    fn an_error_without_a_log_is_found() {
        let message = "libbpf: prog 'request_accept_fexit': BPF program load failed: -EPERM";
        let said = ("request_accept_fexit".to_owned(), "-EPERM".to_owned());
        assert_eq!(found(message), Some(said));
    }

    #[test]
    fn other_messages_and_empty_logs_say_nothing() {
        let messages = [
            "prog 'x': failed to load: -EPERM",
            "prog 'x': -- BEGIN PROG LOAD LOG --\n\n-- END PROG LOAD LOG --",
            "failed to load object 'underspan'",
            "prog 'x",
            "",
        ];
        for message in messages {
            assert_eq!(refusal(message), None, "{message}");
        }
    }
}
