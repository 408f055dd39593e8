//! Removing probes, on a thread of its own: the kernel waits until no CPU can be in them any more, which
//! takes a tenth of a second and longer on a busy host. Whoever drains the ring has no time for that.

use std::sync::mpsc::{Sender, channel};
use std::thread;

use libbpf_rs::Link;

/// Takes probes away. Its thread starts with the first ones, and has the privileges of the caller.
#[derive(Default)]
pub(super) struct Removal {
    probes: Option<Sender<Vec<Link>>>,
}

impl Removal {
    /// Removes probes, soon.
    pub(super) fn remove(&mut self, links: Vec<Link>) {
        if links.is_empty() {
            return;
        }
        // Without a thread they come back with the error, and go here and now.
        let _ = self.probes.get_or_insert_with(start).send(links);
    }
}

fn start() -> Sender<Vec<Link>> {
    let (probes, removed) = channel();
    let removing = move || removed.into_iter().for_each(drop);
    if let Err(error) = thread::Builder::new().name("probes".into()).spawn(removing) {
        tracing::warn!("no thread to remove probes: {error}");
    }
    probes
}
