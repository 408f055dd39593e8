//! What one or more processes have mapped, and what is known of the binary behind each mapping.

use std::cell::{Cell, RefCell};

use underspan_unwind::Mapping;

use super::images::{Done, Found, Images};
use super::space::Extent;
use crate::record::{bytes_of, unwind_process};

/// A list of mappings, as BPF was told it.
pub(super) struct AddressSpace {
    pub(super) mappings: Vec<Mapping>,
    /// Where BPF has them.
    pub(super) extent: Extent,
    /// As BPF tells this list from all others.
    generation: u32,
    /// What is behind each mapping; tables are kept while they are here.
    found: RefCell<Vec<Found>>,
    /// So many of these are still to be read.
    wanted: Cell<usize>,
    /// BPF has not all of that.
    is_changed: Cell<bool>,
}

impl AddressSpace {
    /// One of which BPF has been told all that was found.
    pub(super) fn told(
        mappings: Vec<Mapping>,
        found: Vec<Found>,
        extent: Extent,
        generation: u32,
    ) -> Self {
        let wanted = found.iter().filter(|found| found.wanted().is_some()).count();
        AddressSpace {
            mappings,
            extent,
            generation,
            found: RefCell::new(found),
            wanted: Cell::new(wanted),
            is_changed: Cell::new(false),
        }
    }

    /// As BPF has it for each process.
    pub(super) fn value(&self) -> Vec<u8> {
        let Extent { first, count } = self.extent;
        bytes_of(&unwind_process { first, count, generation: self.generation }).to_vec()
    }

    /// What is behind each mapping.
    pub(super) fn found(&self) -> Vec<Found> {
        self.found.borrow().clone()
    }

    /// What is behind one of them.
    pub(super) fn found_at(&self, at: usize) -> Option<Found> {
        self.found.borrow().get(at).cloned()
    }

    /// The smallest of its binaries that are still to be read: which mapping, and how many bytes.
    pub(super) fn smallest(&self, images: &Images) -> Option<(usize, u64)> {
        if self.wanted.get() == 0 {
            return None;
        }
        let found = self.found.borrow();
        let wanted = found.iter().enumerate().filter_map(|(at, found)| Some((at, found.wanted()?)));
        let next = wanted.filter(|(_, wanted)| images.is_next(wanted));
        next.map(|(at, wanted)| (at, wanted.work())).min_by_key(|&(_, work)| work)
    }

    /// A binary was read: it may be behind some of the mappings.
    pub(super) fn resolve(&self, done: &Done) {
        if self.wanted.get() == 0 {
            return;
        }
        for found in self.found.borrow_mut().iter_mut() {
            if found.resolve(done) {
                self.one_more_is_known();
            }
        }
    }

    /// What is behind a mapping cannot be read.
    pub(super) fn is_nothing(&self, at: usize) {
        if let Some(found) = self.found.borrow_mut().get_mut(at) {
            *found = Found::Nothing;
            self.one_more_is_known();
        }
    }

    /// One that was wanted is known by now.
    fn one_more_is_known(&self) {
        self.wanted.set(self.wanted.get().saturating_sub(1));
        self.is_changed.set(true);
    }

    /// BPF has not all that is known.
    pub(super) fn is_changed(&self) -> bool {
        self.is_changed.get()
    }

    /// Whether BPF has not all that is known, which is said once.
    pub(super) fn take_changed(&self) -> bool {
        self.is_changed.replace(false)
    }

    /// BPF could not be told.
    pub(super) fn stays_changed(&self) {
        self.is_changed.set(true);
    }

    /// Whether all of its binaries were read, and BPF knows.
    pub(super) fn is_whole(&self) -> bool {
        !self.is_changed.get() && self.wanted.get() == 0
    }
}
