//! Where collections can be seen, and attaching there: per binary, or per address.

use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use libbpf_rs::{Link, ProgramAttachType, UprobeMultiOpts, UprobeOpts};

use super::Session;
use super::error::{Doing as _, Error, Result};
use super::load::program;
use crate::gc::Rung;

/// A file to probe. Two paths to one file are the same binary.
#[derive(Clone, Debug)]
pub struct ProbedBinary {
    /// A path that opens it from here.
    pub path: PathBuf,
    /// With `inode`, the file's identity.
    pub dev: u64,
    /// With `dev`, the file's identity.
    pub inode: u64,
}

/// Where a process's collections can be seen.
#[derive(Clone, Debug)]
pub enum GcTarget {
    /// Its `python:gc__start` and `gc__done` probes.
    Usdt(ProbedBinary),
    /// The collector's function, by file offsets: a compiler may have made several clones of it.
    Symbol(ProbedBinary, Vec<u64>),
    /// A write to this address, in any process.
    Watchpoint(u64),
}

/// A target's identity: rung, and file or address.
pub(super) type GcKey = (Rung, u64, u64);

impl GcTarget {
    /// The rung of the ladder that this is.
    pub fn rung(&self) -> Rung {
        match self {
            GcTarget::Usdt(_) => Rung::Usdt,
            GcTarget::Symbol(..) => Rung::Symbol,
            GcTarget::Watchpoint(_) => Rung::Watchpoint,
        }
    }

    fn key(&self) -> GcKey {
        match self {
            GcTarget::Usdt(binary) | GcTarget::Symbol(binary, _) => {
                (self.rung(), binary.dev, binary.inode)
            }
            GcTarget::Watchpoint(address) => (self.rung(), *address, 0),
        }
    }
}

impl Session {
    /// Attaches to a place where collections can be seen. Attaching twice does nothing.
    pub fn attach_gc(&mut self, target: &GcTarget) -> Result<()> {
        if self.gc.contains_key(&target.key()) {
            return Ok(());
        }
        let links = match target {
            GcTarget::Usdt(binary) => self.attach_usdt(&binary.path)?,
            GcTarget::Symbol(binary, offsets) => self.attach_symbol(&binary.path, offsets)?,
            GcTarget::Watchpoint(address) => self.attach_watchpoint(*address)?,
        };
        self.gc.insert(target.key(), links);
        Ok(())
    }

    fn attach_usdt(&self, path: &Path) -> Result<Vec<Link>> {
        [("gc_usdt_start", "gc__start"), ("gc_usdt_done", "gc__done")]
            .into_iter()
            .map(|(name, probe)| {
                program(&self.object, name)?
                    .attach_usdt(-1, path, "python", probe)
                    .doing(format!("attaching to python:{probe} of {}", path.display()))
            })
            .collect()
    }

    fn attach_symbol(&self, path: &Path, offsets: &[u64]) -> Result<Vec<Link>> {
        let offsets: Vec<_> = offsets.iter().map(|&offset| offset as usize).collect();
        let doing = || format!("attaching to the collector in {}", path.display());
        let mut links = Vec::new();
        for (name, retprobe) in [("gc_symbol_start", false), ("gc_symbol_done", true)] {
            let program = program(&self.object, name)?;
            if matches!(program.attach_type(), ProgramAttachType::TraceUprobeMulti) {
                let offsets = offsets.clone();
                let options = UprobeMultiOpts { offsets, retprobe, ..UprobeMultiOpts::default() };
                let link = program.attach_uprobe_multi_with_opts(-1, path, "", options);
                links.push(link.doing(doing())?);
                continue;
            }
            for &offset in &offsets {
                let options = UprobeOpts { retprobe, ..UprobeOpts::default() };
                let link = program.attach_uprobe_with_opts(-1, path, offset, options);
                links.push(link.doing(doing())?);
            }
        }
        Ok(links)
    }

    fn attach_watchpoint(&self, address: u64) -> Result<Vec<Link>> {
        let program = program(&self.object, "gc_watchpoint")?;
        let cpus = libbpf_rs::num_possible_cpus().doing("counting CPUs")?;
        (0..cpus)
            .map(|cpu| {
                let event = crate::gc::watchpoint(address, cpu).map_err(|source| Error::Bpf {
                    what: "opening a hardware watchpoint".to_owned(),
                    source: source.into(),
                })?;
                let link = program
                    .attach_perf_event(event.as_raw_fd())
                    .doing("attaching to a hardware watchpoint")?;
                // The link keeps the event open from here on.
                std::mem::forget(event);
                Ok(link)
            })
            .collect()
    }

    /// Detaches from a place that no watched process needs any more.
    pub fn detach_gc(&mut self, target: &GcTarget) {
        self.gc.remove(&target.key());
    }
}
