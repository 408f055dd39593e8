//! The ledgers, read while their threads run.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use super::entries::entries;
use super::error::{Doing as _, Result};
use crate::record::{self, Off, ThreadSnapshot};

/// What was copied in the middle of a change sums the next time, and if not, it is off by another
/// amount. A ledger that is off by the same amount for so long is wrong.
const WRONG: Duration = Duration::from_millis(500);

/// A ledger that was off when it was last read, and since when by the same amount.
struct Doubtful {
    off: Off,
    since: Instant,
}

pub(super) struct Ledgers {
    map: MapHandle,
    doubtful: RefCell<HashMap<u32, Doubtful>>,
    begun_anew: Cell<u64>,
}

impl Ledgers {
    pub(super) fn new(map: MapHandle) -> Self {
        Ledgers { map, doubtful: RefCell::default(), begun_anew: Cell::new(0) }
    }

    /// Every thread's. One that changed while it was copied is read again; one that never holds still is
    /// left out until the next time.
    ///
    /// One that is wrong is taken out of the map: its thread is to be adopted again, with a new one.
    pub(super) fn all(&self) -> Result<Read> {
        let mut read = Read::default();
        let mut doubtful = self.doubtful.borrow_mut();
        let before = std::mem::take(&mut *doubtful);
        for (key, value) in entries(&self.map).doing("reading the ledgers")? {
            let mut copied = ThreadSnapshot::copied(&value);
            for _ in 0..3 {
                if matches!(copied, Some(Ok(_))) {
                    break;
                }
                let Ok(Some(again)) = self.map.lookup(&key, MapFlags::ANY) else { break };
                copied = ThreadSnapshot::copied(&again);
            }
            let off = match copied {
                Some(Ok(snapshot)) => {
                    read.ledgers.push(snapshot);
                    continue;
                }
                Some(Err(off)) => off,
                None => continue,
            };
            let now = Instant::now();
            let same = before.get(&off.tid).filter(|before| before.off == off);
            let since = same.map_or(now, |before| before.since);
            if now.duration_since(since) < WRONG {
                doubtful.insert(off.tid, Doubtful { off, since });
            } else if self.map.delete(&key).is_ok() {
                self.begun_anew.set(self.begun_anew.get() + 1);
                read.orphans = true;
            }
        }
        Ok(read)
    }

    /// One thread's. `None`: there is none, or it would not hold still.
    pub(super) fn one(&self, tid: u32) -> Option<ThreadSnapshot> {
        (0..3).find_map(|_| {
            let bytes = self.map.lookup(&tid.to_ne_bytes(), MapFlags::ANY).ok()??;
            ThreadSnapshot::copied(&bytes)?.ok()
        })
    }

    /// Takes away those of a process.
    pub(super) fn forget_process(&self, pid: u32) -> Result<()> {
        for (key, value) in entries(&self.map).doing("reading the ledgers")? {
            if record::from_bytes::<record::thread>(&value).is_some_and(|raw| raw.tgid == pid) {
                // It may be gone already.
                let _ = self.map.delete(&key);
            }
        }
        Ok(())
    }

    /// How many were wrong.
    pub(super) fn begun_anew(&self) -> u64 {
        self.begun_anew.get()
    }
}

/// What was read.
#[derive(Default)]
pub(super) struct Read {
    pub(super) ledgers: Vec<ThreadSnapshot>,
    /// There are threads of watched processes without a ledger now.
    pub(super) orphans: bool,
}
