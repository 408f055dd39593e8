//! Probes of processes, and removing them on a thread of its own: the kernel waits until no CPU can be in them any more,
//! which takes a tenth of a second and longer on a busy host. Whoever drains the ring has no time for that.

use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use libbpf_rs::Link;

/// Each process's probes. Whoever takes some away does not wait until they are gone.
pub(super) struct Probes<P = Link> {
    of: HashMap<u32, Vec<P>>,
    /// The thread that removes them. It starts with the first ones, and has the privileges of the caller.
    removal: Option<Sender<Vec<P>>>,
}

impl<P> Default for Probes<P> {
    fn default() -> Self {
        Probes { of: HashMap::new(), removal: None }
    }
}

impl<P: Send + 'static> Probes<P> {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.of.values().map(Vec::len).sum()
    }

    /// A process has these from now on. What it had before goes, soon.
    pub(super) fn put(&mut self, pid: u32, probes: Vec<P>) {
        self.remove(pid);
        self.of.insert(pid, probes);
    }

    /// A process's probes go, soon.
    pub(super) fn remove(&mut self, pid: u32) {
        let probes = self.of.remove(&pid).unwrap_or_default();
        if probes.is_empty() {
            return;
        }
        // Without a thread they come back with the error, and go here and now.
        let _ = self.removal.get_or_insert_with(start).send(probes);
    }
}

fn start<P: Send + 'static>() -> Sender<Vec<P>> {
    let (probes, removed) = channel();
    let removing = move || removed.into_iter().for_each(drop);
    if let Err(error) = thread::Builder::new().name("probes".into()).spawn(removing) {
        tracing::warn!("no thread to remove probes: {error}");
    }
    probes
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, TryRecvError};
    use std::thread::ThreadId;

    use super::*;

    /// Tells which thread removes it. Its removal is over when nobody holds `until` open any more.
    struct Probe {
        drains: ThreadId,
        removed_by: Sender<ThreadId>,
        until: Receiver<()>,
    }

    impl Drop for Probe {
        fn drop(&mut self) {
            let me = thread::current().id();
            let _ = self.removed_by.send(me);
            // Who drains would wait for itself for ever; that it was here is told.
            if me != self.drains {
                let _ = self.until.recv();
            }
        }
    }

    #[test]
    fn who_drains_goes_on_while_probes_are_removed() {
        let drains = thread::current().id();
        let (told, removed_by) = channel();
        let (open, until) = channel();
        let probe = |until| vec![Probe { drains, removed_by: told.clone(), until }];
        let at_once = || channel().1;

        let mut probes = Probes::default();
        probes.put(1, probe(until));
        for pid in 2..=4 {
            probes.put(pid, probe(at_once()));
        }
        assert_eq!(probes.count(), 4);

        probes.remove(1);
        assert_ne!(removed_by.recv(), Ok(drains));
        // The kernel is at it still. Meanwhile a process ends, one is no longer watched, and one runs another program.
        probes.remove(2);
        probes.remove(3);
        probes.put(4, probe(at_once()));
        assert_eq!(probes.count(), 1);
        assert_eq!(removed_by.try_recv(), Err(TryRecvError::Empty), "one after the other");

        drop(open);
        for _ in 2..=4 {
            assert_ne!(removed_by.recv(), Ok(drains));
        }
    }

    #[test]
    fn who_has_no_probes_needs_no_thread() {
        let mut probes = Probes::<()>::default();
        probes.remove(1);
        probes.put(1, Vec::new());
        probes.remove(1);
        assert!(probes.removal.is_none());
    }
}
