//! Whether a process's Python stacks can be read.

use std::time::{Duration, Instant};

use underspan_cpython::Interpreter;
use underspan_trackers::stack::PythonLayout;
use underspan_trackers::{ProcessConfig, Session};

/// What did not pass its self-check, or had no frames to check, is looked at again after this long;
const FIRST_LOOK: Duration = Duration::from_millis(100);
/// each pause is this many times as long as the last,
const LOOK_SLOWER: u32 = 3;
/// up to this.
const LAST_LOOK: Duration = Duration::from_secs(60);

/// A process's Python stacks.
#[derive(Clone, Debug)]
pub enum PythonStacks {
    /// They can be read.
    Read,
    /// Not yet, or never.
    NotRead {
        /// In words.
        why: String,
        /// Look again then.
        again: Instant,
        /// The pause before that.
        pause: Duration,
        /// What BPF was told of the process; the frames are missing in it.
        config: ProcessConfig,
    },
}

impl PythonStacks {
    /// Completes `config` with where the frames are, if they passed their self-check.
    pub(crate) fn find(interpreter: &Interpreter, config: &mut ProcessConfig) -> Self {
        Self::find_after(FIRST_LOOK, interpreter, config)
    }

    fn find_after(pause: Duration, found: &Interpreter, config: &mut ProcessConfig) -> Self {
        match &found.frames {
            Ok(facts) => {
                config.python = PythonLayout::from(facts);
                PythonStacks::Read
            }
            Err(why) => PythonStacks::NotRead {
                why: why.clone(),
                again: Instant::now() + pause,
                pause: (pause * LOOK_SLOWER).min(LAST_LOOK),
                config: *config,
            },
        }
    }

    /// When to look again.
    pub(crate) fn again(&self) -> Option<Instant> {
        match self {
            PythonStacks::Read => None,
            PythonStacks::NotRead { again, .. } => Some(*again),
        }
    }

    /// Looks again, and tells BPF if it can be done now. True: it can. `None` for a process that
    /// cannot be read at the moment: it executes another program, or ends.
    pub(crate) fn look_again(
        &mut self,
        session: &Session,
        pid: u32,
        interpreter: Option<&Interpreter>,
    ) -> bool {
        let PythonStacks::NotRead { pause, config, again, .. } = self else { return false };
        let Some(interpreter) = interpreter else {
            *again = Instant::now() + *pause;
            return false;
        };
        let (pause, mut config) = (*pause, *config);
        *self = Self::find_after(pause, interpreter, &mut config);
        if !matches!(self, PythonStacks::Read) {
            return false;
        }
        if let Err(error) = session.set_config(pid, config) {
            tracing::warn!(pid, "{error}");
        }
        true
    }

    /// `read`, or why not.
    pub fn note(&self) -> &str {
        match self {
            PythonStacks::Read => "read",
            PythonStacks::NotRead { why, .. } => why,
        }
    }
}
