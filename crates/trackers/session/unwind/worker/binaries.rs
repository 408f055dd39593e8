//! What the worker does when it has time: reads binaries, the smallest first and for a moment only, and tells BPF what
//! became of them.

use std::rc::Rc;
use std::time::{Duration, Instant};

use super::super::images::{Done, Found};
use super::super::known::Known;
use super::Worker;

/// So long binaries are read before anything else is looked at.
const READ_FOR: Duration = Duration::from_millis(20);

impl Worker {
    /// Reads binaries, for a while. Says whether there are more.
    pub(super) fn read_binaries(&mut self) -> bool {
        let until = Instant::now() + READ_FOR;
        let more = loop {
            let next = self.known.iter().filter_map(|(pid, known)| {
                let (at, work) = known.space.smallest(&self.images)?;
                Some((*pid, at, work))
            });
            if let Some((pid, at, _)) = next.min_by_key(|&(.., work)| work) {
                self.begin(pid, at);
            } else if !self.images.is_reading() {
                break false;
            }
            if let Some(done) = self.images.go_on() {
                self.resolve(&done);
            }
            if Instant::now() >= until {
                break true;
            }
        };
        self.tell_changed();
        more
    }

    /// Begins to read what is behind a process's mapping.
    fn begin(&mut self, pid: u32, at: usize) {
        let Some(space) = self.known.get(&pid).map(|known| Rc::clone(&known.space)) else { return };
        let (Some(mapping), Some(Found::Wanted(wanted))) =
            (space.mappings.get(at), space.found_at(at))
        else {
            return;
        };
        match self.images.begin(pid, mapping, &wanted) {
            Ok(None) => {}
            Ok(Some(done)) => self.resolve(&done),
            Err(error) => {
                tracing::debug!(pid, "{:?}: {error}", mapping.backing);
                space.is_nothing(at);
            }
        }
    }

    /// A binary was read.
    fn resolve(&self, done: &Done) {
        for known in self.known.values() {
            known.space.resolve(done);
        }
    }

    /// Tells BPF what was read.
    fn tell_changed(&mut self) {
        let now = Instant::now();
        let changed = self.known.iter().filter(|(_, known)| known.space.is_changed());
        let changed: Vec<_> = changed.map(|(pid, known)| (*pid, Rc::clone(&known.space))).collect();
        for (pid, space) in changed {
            // Another process that has the same may have been first.
            if !space.take_changed() {
                continue;
            }
            let Some(told) = self.told.place(pid, space.mappings.clone(), space.found()) else {
                // What was given back has not rested yet.
                space.stays_changed();
                continue;
            };
            let told = Rc::new(told);
            let sharing = |(pid, known): (&u32, &mut Known)| {
                Rc::ptr_eq(&known.space, &space).then(|| {
                    known.space = Rc::clone(&told);
                    *pid
                })
            };
            let sharing: Vec<u32> = self.known.iter_mut().filter_map(sharing).collect();
            for pid in sharing {
                self.told.tell(pid, &told);
            }
            self.told.give(space, now);
        }
    }
}
