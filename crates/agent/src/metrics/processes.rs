//! The label `process` has a bounded number of values.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// So many names have series of their own.
pub(super) const MOST: usize = 20;
/// What all others go by.
pub(super) const OTHER: &str = "other";
/// A name that did nothing for so long gives its place to one that does.
const SILENT: Duration = Duration::from_secs(600);
/// Running for so long within a second is to do something.
pub(super) const WORK_NS: u64 = 1_000_000;

/// The names that have a place: the first that did something. A name keeps its place, so that no
/// counter ever goes back.
#[derive(Debug, Default)]
pub(super) struct Processes(BTreeMap<Arc<str>, Instant>);

impl Processes {
    /// What a process that did something goes by, and the name that lost its place to it, if any.
    pub(super) fn label(&mut self, name: &str, now: Instant) -> (Arc<str>, Option<Arc<str>>) {
        if let Some((known, active)) = self.0.get_key_value(name).map(|(k, v)| (Arc::clone(k), *v))
        {
            if now > active {
                self.0.insert(Arc::clone(&known), now);
            }
            return (known, None);
        }
        let mut replaced = None;
        if self.0.len() >= MOST {
            let silent = self.0.iter().min_by_key(|(_, active)| **active);
            let silent =
                silent.filter(|(_, active)| now.saturating_duration_since(**active) >= SILENT);
            let Some(name) = silent.map(|(name, _)| Arc::clone(name)) else {
                return (Arc::from(OTHER), None);
            };
            self.0.remove(&name);
            replaced = Some(name);
        }
        // A name that is not known, as of a thread that was never seen alive.
        let name: Arc<str> = Arc::from(if name.is_empty() { OTHER } else { name });
        self.0.insert(Arc::clone(&name), now);
        (name, replaced)
    }

    /// What a process that only waits goes by.
    pub(super) fn known(&self, name: &str) -> Arc<str> {
        self.0.get_key_value(name).map_or_else(|| Arc::from(OTHER), |(name, _)| Arc::clone(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_names_that_do_something_have_a_place_and_keep_it() {
        let (mut processes, now) = (Processes::default(), Instant::now());
        assert_eq!(&*processes.known("idle"), OTHER);
        for index in 0..MOST {
            let name = format!("p{index}");
            assert_eq!(processes.label(&name, now), (Arc::from(name.as_str()), None));
        }
        assert_eq!(processes.label("late", now), (Arc::from(OTHER), None));
        assert_eq!(processes.label("p3", now), (Arc::from("p3"), None));
        assert_eq!(&*processes.known("p3"), "p3");
    }

    #[test]
    fn a_silent_name_gives_its_place_up() {
        let (mut processes, now) = (Processes::default(), Instant::now());
        for index in 0..MOST {
            processes.label(&format!("p{index}"), now);
        }
        let later = now + SILENT;
        for index in 1..MOST {
            processes.label(&format!("p{index}"), later);
        }
        assert_eq!(processes.label("late", later), (Arc::from("late"), Some(Arc::from("p0"))));
        assert_eq!(processes.label("p0", later), (Arc::from(OTHER), None));
    }
}
