//! A process whose mappings are known, and when they are read again.

use std::rc::Rc;
use std::time::{Duration, Instant};

use super::address_space::AddressSpace;

/// A process's mappings are read again that often though nothing says that they have changed.
const READ_EVERY: Duration = Duration::from_secs(10);
/// Between reads that found nothing new the pause doubles, up to [`READ_EVERY`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// A process.
pub(super) struct Known {
    pub(super) space: Rc<AddressSpace>,
    /// Its mappings are not read again before that, whatever is met.
    not_before: Instant,
    pause: Duration,
    read: Instant,
    /// Pages of code that it had when an address that was in no mapping had them read.
    vain: Option<u64>,
    /// All of its mappings is known: as how many-th process that came to be.
    pub(super) whole: Option<u64>,
}

impl Known {
    /// Whose mappings were just read.
    pub(super) fn new(space: Rc<AddressSpace>, now: Instant) -> Self {
        Known { not_before: now + FIRST_PAUSE, ..Known::adopted(space, now) }
    }

    /// One that has its parent's.
    pub(super) fn adopted(space: Rc<AddressSpace>, now: Instant) -> Self {
        Known { space, not_before: now, pause: FIRST_PAUSE, read: now, vain: None, whole: None }
    }

    /// Its mappings were read again.
    pub(super) fn was_read(&mut self, now: Instant) {
        self.read = now;
    }

    /// And are what they were.
    pub(super) fn has_not_changed(&mut self, now: Instant) {
        self.not_before = now + self.pause;
        self.pause = (self.pause * 2).min(READ_EVERY);
    }

    /// Or could not be read.
    pub(super) fn cannot_be_read(&mut self, now: Instant) {
        self.read = now;
        self.not_before = now + READ_EVERY;
    }

    /// An address was met that is in no mapping, while it had so many pages of code: whether its mappings are to be read
    /// for that, now. What has no table yet is in no mapping, to BPF.
    pub(super) fn is_worth_reading(&mut self, code: Option<u64>) -> bool {
        // Code that was mapped since is reason enough.
        if self.vain != code {
            self.pause = FIRST_PAUSE;
            self.not_before = self.not_before.min(self.read + FIRST_PAUSE);
        }
        self.not_before <= Instant::now() && self.space.is_whole()
    }

    /// They were read for that.
    pub(super) fn was_read_for(&mut self, code: Option<u64>) {
        self.vain = code;
    }

    /// Whether its mappings are to be read though nothing says that they have changed.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now.duration_since(self.read) >= READ_EVERY
    }
}
