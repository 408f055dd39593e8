//! What libbpf says: passed on to the log; and why the verifier refused a program, kept for the
//! error.

use std::sync::{Mutex, PoisonError};

use libbpf_rs::PrintLevel;

static REFUSAL: Mutex<Option<String>> = Mutex::new(None);

/// Takes libbpf's messages.
pub(crate) fn print(level: PrintLevel, message: String) {
    let message = message.trim_end();
    if let Some(refusal) = refusal(message) {
        *REFUSAL.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
    }
    match level {
        PrintLevel::Warn => tracing::debug!(target: "libbpf", "{message}"),
        _ => tracing::trace!(target: "libbpf", "{message}"),
    }
}

/// Which program was refused last, and why. `None` if the verifier refused none.
pub(crate) fn take() -> Option<String> {
    REFUSAL.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// The verifier's last word, if this message has its log.
fn refusal(message: &str) -> Option<String> {
    let (program, log) = message.split_once("-- BEGIN PROG LOAD LOG --")?;
    let said = |line: &&str| {
        !line.is_empty() && !line.starts_with("processed ") && !line.starts_with("-- END ")
    };
    let reason = log.lines().map(str::trim).rfind(said)?;
    Some(format!("{}{reason}", program.trim_start_matches("libbpf: ")))
}

#[cfg(test)]
mod tests {
    use super::refusal;

    #[test]
    fn the_verifiers_last_word_is_found() {
        let message = "libbpf: prog 'ledger_switch': -- BEGIN PROG LOAD LOG --\n\
                       30: (4f) r1 |= r6\n\
                       R1 pointer |= pointer prohibited\n\
                       processed 29 insns (limit 1000000) max_states_per_insn 0\n\
                       -- END PROG LOAD LOG --";
        let said = "prog 'ledger_switch': R1 pointer |= pointer prohibited";
        assert_eq!(refusal(message).as_deref(), Some(said));
    }

    #[test]
    fn other_messages_and_empty_logs_say_nothing() {
        let messages = [
            "prog 'ledger_switch': BPF program load failed: -EACCES",
            "prog 'x': -- BEGIN PROG LOAD LOG --\n\n-- END PROG LOAD LOG --",
            "",
        ];
        for message in messages {
            assert_eq!(refusal(message), None, "{message}");
        }
    }
}
