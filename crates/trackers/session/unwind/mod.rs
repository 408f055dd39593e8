//! What the walker of native frames must know, kept up to date by a thread of its own.
//!
//! ```text
//!  processes (BPF) ──▶ which to know ┐
//!  unwind_stale (BPF) ▶ look again   ├─▶ worker ─▶ /proc/PID/maps ─▶ Images ─▶ Tables ─▶ unwind_shards
//!  time ─────────────▶ look again    ┘                └──▶ Told ─▶ unwind_mappings, then unwind_processes
//! ```
//!
//! - `worker.rs`: the thread; which processes there are, and when the mappings of each are read; `worker/binaries.rs`: reading
//!   binaries in between
//! - `known.rs`: a process, and when its mappings are worth reading again
//! - `address_space.rs`: a list of mappings, which forked processes share, and what is behind each
//! - `told.rs`: such lists where BPF finds them
//! - `images.rs`: binaries; each is read once, however many processes map it
//! - `tables.rs`: their tables where BPF finds them; `pack.rs`: how a table is packed
//! - `space.rs`: room in an array, handed out and given back

mod address_space;
mod images;
mod known;
mod pack;
mod space;
mod tables;
mod told;
mod worker;

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use libbpf_rs::Object;

use super::error::{Error, Result};
use super::load::map;
use worker::Worker;

/// What unwinding knows and uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnwindStats {
    /// Processes of whose mappings all is known, in the order in which that came to be.
    pub processes: Vec<u32>,
    /// Mappings of all processes; forked processes share theirs.
    pub mappings: usize,
    /// Binaries with a table.
    pub tables: usize,
    /// Bytes of memory for tables, in the kernel.
    pub table_bytes: u64,
    /// Tables, and processes' lists of mappings, for which there was no room.
    pub refused: u64,
}

/// The thread. It ends when this is dropped.
pub(super) struct Unwinding {
    nudge: Option<Sender<()>>,
    stats: Arc<Mutex<UnwindStats>>,
    thread: Option<JoinHandle<()>>,
}

impl Unwinding {
    /// Starts it. `megabytes`: of memory for tables at the most.
    pub(super) fn start(object: &Object, megabytes: u32) -> Result<Self> {
        let (nudge, nudged) = channel();
        let stats = Arc::new(Mutex::new(UnwindStats::default()));
        let maps = worker::Maps {
            watched: map(object, "processes")?,
            processes: map(object, "unwind_processes")?,
            mappings: map(object, "unwind_mappings")?,
            stale: map(object, "unwind_stale")?,
        };
        let shards = map(object, "unwind_shards")?;
        let told = Arc::clone(&stats);
        let thread = std::thread::Builder::new()
            .name("unwind".to_owned())
            .spawn(move || Worker::new(maps, shards, megabytes, told).run(&nudged))
            .map_err(|source| Error::Bpf {
                what: "starting the thread that reads unwind tables".to_owned(),
                source: source.into(),
            })?;
        Ok(Unwinding { nudge: Some(nudge), stats, thread: Some(thread) })
    }

    /// There may be something to do: do not wait for the next look.
    pub(super) fn nudge(&self) {
        if let Some(nudge) = &self.nudge {
            let _ = nudge.send(());
        }
    }

    pub(super) fn stats(&self) -> UnwindStats {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Unwinding {
    fn drop(&mut self) {
        drop(self.nudge.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
